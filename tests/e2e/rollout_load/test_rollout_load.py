"""Rollouts under steady traffic, judged by the clients and by a watch of the API server.

A stream lasts for four seconds, so that some forty are open at every moment. The model has two replicas of
each of its two roles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.kube import wait_for
from tests.e2e.rollout_load.stage import TARGET, both
from tests.judge import Bounds, is_ready
from tpu_operator.core import names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.e2e.kube import Object
    from tests.e2e.rollout_load.ledger import Record
    from tests.e2e.rollout_load.stage import Stage

ALL = 2000
SOME = 600
DEADLINE = 30
PICKERS_SECONDS = 5
"""Until pickers have heard of what the API server says."""
FULL = both(TARGET)
"""Never fewer than all of both roles."""
SURGE = Bounds(1, both(TARGET + 1), FULL)


def nothing_lost(record: Record, requests: int) -> None:
    """Check what a rollout promises to clients and to the API server."""
    assert len(record.requests) >= requests
    assert not record.failed, record.failed[:5]
    assert not record.cut, record.cut[:5]
    assert not record.across, record.across[:5]
    assert not record.below, record.below[:5]
    assert not record.over, record.over[:5]
    assert not record.alone, record.alone[:5]


def test_a_template_change_with_a_spare_slice_of_each_role(stage: Stage) -> None:
    old = stage.status()["currentRevision"]
    with stage.under_load("template change", ALL, SURGE) as recording:
        stage.seed(1)
        new = stage.rolled()["currentRevision"]
    nothing_lost(recording.record, ALL)
    assert recording.record.served().keys() == {old, new}


@pytest.mark.usefixtures("exactly_full")
def test_no_spare_slice_and_the_successor_gets_the_chips_of_who_has_gone(stage: Stage) -> None:
    stage.change(rollout={"maxSurge": 0, "maxUnavailable": 1})
    with stage.under_load("no surge on full capacity", ALL, Bounds(1, FULL, both(TARGET - 1))) as recording:
        stage.seed(1)
        stage.rolled()
    nothing_lost(recording.record, ALL)


@pytest.mark.usefixtures("exactly_full")
def test_drain_first_on_exactly_full_capacity(stage: Stage) -> None:
    stage.change(rollout={"onCapacityShortage": "DrainFirst"})
    bounds = Bounds(1, both(TARGET + 1), both(TARGET - 1))
    with stage.under_load("drain first on full capacity", ALL, bounds) as recording:
        stage.seed(1)
        stage.rolled()
    nothing_lost(recording.record, ALL)


def test_a_canary_gets_its_share_and_then_all(stage: Stage) -> None:
    stage.change(rollout={"canary": {"steps": [{"percent": 50, "pauseSeconds": 15}]}})
    old = stage.status()["currentRevision"]
    with stage.under_load("canary", SOME, SURGE) as recording:
        stage.seed(1)
        wait_for("the pause", lambda: stage.gate() == "Pause" and len(servable(stage)) == TARGET, 300)
        stage.mark("pause")
        shares = [[role["replicas"] for role in each["roles"]] for each in stage.status()["revisions"]]
        new = stage.rolled()["currentRevision"]
    nothing_lost(recording.record, SOME)
    assert recording.record.served().keys() == {old, new}
    assert shares == [[1, 1], [1, 1]]


def test_a_rollback_returns_to_what_is_left_of_the_old_revision(stage: Stage) -> None:
    old = stage.status()["currentRevision"]
    with stage.under_load("rollback", SOME, SURGE) as recording:
        stage.seed(1)
        left = wait_for("one of each role is left", lambda: half(routed(stage, old)), 300)
        stage.roll_back()
        assert stage.rolled()["currentRevision"] == old
    nothing_lost(recording.record, SOME)
    after = uids(stage.pods(old))
    assert {name: after.get(name) for name in uids(left)} == uids(left)
    assert old in recording.record.served()
    assert len(recording.record.served()) == TARGET


def test_a_broken_image_goes_no_further_than_its_budget_and_is_undone_by_one_command(stage: Stage) -> None:
    stage.change(rollout={"progressDeadlineSeconds": DEADLINE})
    old = stage.status()["currentRevision"]
    before = uids(stage.pods(old))
    with stage.under_load("broken image", SOME, SURGE) as recording:
        stage.change(engine={"image": "localhost/no-such-image:v1"})
        stage.mark("broken image")
        wait_for("it is said", lambda: "ImagePull" in stage.reason("Blocked"), DEADLINE)
        stage.mark("said")
        wait_for(
            "the deadline", lambda: stage.reason("Progressing") == "ProgressDeadlineExceeded", 2 * DEADLINE
        )
        stage.mark("deadline")
        stage.roll_back()
        assert stage.rolled()["currentRevision"] == old
    nothing_lost(recording.record, SOME)
    assert recording.record.served().keys() == {old}
    assert uids(stage.pods(old)) == before


def test_a_node_that_dies_in_a_rollout_takes_its_own_streams_along_and_no_others(stage: Stage) -> None:
    old = stage.status()["currentRevision"]
    victim = stage.decoder_apart(old)
    name, address = victim["metadata"]["name"], victim["status"]["podIP"]
    bounds = Bounds(1, both(TARGET + 1), both(TARGET - 1))
    with stage.under_load("node kill", SOME, bounds) as recording:
        stage.seed(1)
        wait_for("the new revision", lambda: len(stage.status().get("revisions", ())) == TARGET)
        stage.kill_node(victim["spec"]["nodeName"])
        wait_for("Kubernetes sees it", lambda: name not in ready(stage, old), 180)
        stage.mark("seen")
        stage.revive_node(victim["spec"]["nodeName"])
        stage.rolled()
    record = recording.record
    assert not record.across, record.across[:5]
    assert not record.below, record.below[:5]
    assert not record.over, record.over[:5]
    for request in (*record.failed, *record.cut):
        assert address in {each.rpartition(":")[0] for each in request.outcome.sent_to}, request
        assert request.sent < record.marks["seen"] + PICKERS_SECONDS, request


def servable(stage: Stage) -> list[str]:
    """Revisions that have a ready replica of every role."""
    return [each["name"] for each in stage.status().get("revisions", ()) if each["servable"]]


def uids(pods: Iterable[Object]) -> dict[str, str]:
    """Of those pods that are to stay, by name."""
    return {
        pod["metadata"]["name"]: pod["metadata"]["uid"]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
    }


def routed(stage: Stage, revision: str) -> list[Object]:
    """The pods of a revision that routers may find: those of the replicas that have not been told to go."""
    labels = ((pod, pod["metadata"]["labels"]) for pod in stage.pods(revision))
    return [pod for pod, found in labels if found.get(names.LABEL_LLMD_SERVING) == names.SERVING]


def half(pods: list[Object]) -> list[Object]:
    """Pods if there is just one of each role, and otherwise none."""
    roles = sorted(pod["metadata"]["labels"][names.LABEL_ROLE] for pod in pods)
    return pods if roles == sorted(both(1)) else []


def ready(stage: Stage, revision: str) -> set[str]:
    """Names of the pods of a revision that are ready."""
    return {pod["metadata"]["name"] for pod in stage.pods(revision) if is_ready(pod)}

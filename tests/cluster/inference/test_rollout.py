"""Rollouts, judged by a watch of the API server and not by what the operator says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.inference.models import HELD, HOSTS, ONE_HOST, REVISION, image, judged, label, role, uids
from tests.kube import POD, wait_for

if TYPE_CHECKING:
    from hack.devcluster import Cluster
    from tests.cluster.inference.models import Models
    from tests.kube import Object

ONE_EACH = {"prefill": 1, "decode": 1}


pytestmark = pytest.mark.usefixtures("operator")


def test_pc01_both_roles_move_to_one_new_revision(models: Models, control_plane: Cluster) -> None:
    models.create()
    old = models.serves()["currentRevision"]
    with judged(control_plane.kubeconfig, models.namespace, {"prefill": 2, "decode": 2}, ONE_EACH):
        models.change(roles=[role("prefill"), role("decode", args=["--seed=1"])])
        new = models.serves()["currentRevision"]
    assert new != old
    assert {label(pod, "revision") for pod in models.pods().values()} == {new}
    # What no pod is made from rolls nothing.
    before = uids(models.pods())
    models.change(rollout={"maxSurge": 2}, roles=[role("prefill"), role("decode", args=["--seed=1"])])
    models.serves()
    assert uids(models.pods()) == before


@pytest.mark.usefixtures("single_hosts")
def test_pc01_pc32_another_image_of_one_role_moves_both_in_ratio(
    models: Models, control_plane: Cluster
) -> None:
    def roles(tag: str) -> list[Object]:
        template = {"spec": {"containers": [{"name": "main", "image": f"example/decode:{tag}"}]}}
        decode = role("decode", 2, tpu=ONE_HOST, template=template)
        return [role("prefill", 4, tpu=ONE_HOST), decode]

    models.create(roles=roles("1"))
    models.serves()
    four, budgets = {"prefill": 4, "decode": 2}, {"prefill": 5, "decode": 3}
    with judged(control_plane.kubeconfig, models.namespace, budgets, four, hosts=1) as judge:
        models.change(roles=roles("2"))
        new = models.serves()["currentRevision"]
    assert {label(pod, "revision") for pod in models.pods().values()} == {new}
    images = {pod["spec"]["containers"][0]["image"] for pod in models.pods(role="decode").values()}
    assert images == {"example/decode:2"}
    assert len(set(judge.revisions.values())) == 2
    # One replica of the smallest role.
    assert judge.drift <= 1 / 2


def test_pc03_without_surge_there_are_never_more_slices_than_asked_for(
    models: Models, control_plane: Cluster
) -> None:
    budgets = {"maxSurge": 0, "maxUnavailable": 1}
    models.create(roles=[role("prefill", 2), role("decode", 2)], rollout=budgets)
    models.serves()
    two = {"prefill": 2, "decode": 2}
    with judged(control_plane.kubeconfig, models.namespace, two, ONE_EACH) as judge:
        models.change(engine=image("2"))
        models.serves()
    assert judge.states > 32


def test_pc11_the_old_spec_applied_again_goes_back_to_its_revision_and_pods(models: Models) -> None:
    models.create()
    old = models.serves()["currentRevision"]
    before = uids(models.pods())
    models.change(roles=[role("prefill", template=HELD), role("decode")])
    wait_for(lambda: len(models.pods()) == 4 * HOSTS, "the replicas of the new revision")
    models.change(roles=[role("prefill"), role("decode")])
    wait_for(lambda: models.status()["updatedRevision"] == old, "the way back")
    for name, pod in models.pods().items():
        if label(pod, "revision") != old and "devcluster/hold" in pod["metadata"].get("annotations", {}):
            models.kube.delete(POD, name, models.namespace, gracePeriodSeconds=0)
    assert models.serves()["currentRevision"] == old
    assert uids(models.pods()) == before
    # It is the newest of the history again, and nothing is wrong with that.
    numbers = {
        each["metadata"]["name"]: each["revision"] for each in models.kube.list(REVISION, models.namespace)
    }
    assert max(numbers, key=numbers.__getitem__) == f"qwen-{old}"
    wait_for(lambda: models.condition("Blocked").get("status") != "True", "nothing to be refused")


def test_pc12_a_revision_that_never_becomes_ready_takes_nothing_down(
    models: Models, control_plane: Cluster
) -> None:
    models.create(rollout={"progressDeadlineSeconds": 3})
    models.serves()
    with judged(control_plane.kubeconfig, models.namespace, {"prefill": 2, "decode": 2}, ONE_EACH):
        models.change(roles=[role("prefill", template=HELD), role("decode", template=HELD)])
        models.has_condition("Progressing", "False", "ProgressDeadlineExceeded")
        assert models.condition("Available")["status"] == "True"
        models.change(roles=[role("prefill"), role("decode")], engine=image("3"))
        for name, pod in models.pods().items():
            if "devcluster/hold" in (pod["metadata"].get("annotations") or {}):
                models.kube.delete(POD, name, models.namespace, gracePeriodSeconds=0)
        models.serves()


def test_pc18_a_pause_stops_everything_but_repair(models: Models) -> None:
    models.create(rollout={"paused": True})
    old = models.serves()["currentRevision"]
    models.change(engine=image("2"))
    models.has_condition("Progressing", "False", "Paused")
    victim = sorted(models.pods(role="decode"))[1]
    models.end_pod(victim)
    wait_for(lambda: models.status()["restarts"] == 1, "the repair")
    wait_for(lambda: models.status()["ready"] == "prefill 1/1, decode 1/1", "the replica to be back")
    assert {label(pod, "revision") for pod in models.pods().values()} == {old}
    models.change(rollout={"paused": False})
    assert models.serves()["currentRevision"] != old


@pytest.mark.usefixtures("single_hosts")
def test_case_58_case_60_budgets_are_kept_and_each_replica_is_made_once(
    models: Models, control_plane: Cluster
) -> None:
    budgets = {"maxSurge": 1, "maxUnavailable": 2}
    models.create(roles=[role("decode", 4, tpu=ONE_HOST)], rollout=budgets)
    models.serves()
    five, two = {"decode": 5}, {"decode": 2}
    with judged(control_plane.kubeconfig, models.namespace, five, two, hosts=1) as judge:
        models.change(engine=image("2"))
        status = models.serves()
    assert status["restarts"] == 0
    assert len(judge.uids) == 8
    assert all(len(uids) == 1 for uids in judge.uids.values())


@pytest.mark.usefixtures("single_hosts")
def test_case_58_an_old_version_that_is_not_ready_does_not_block_its_own_fix(
    models: Models, control_plane: Cluster
) -> None:
    def broken(pod: Object) -> bool:
        return "devcluster/hold" in (pod["metadata"].get("annotations") or {})

    models.create(roles=[role("decode", 2, tpu=ONE_HOST, template=HELD)])
    wait_for(lambda: len(models.pods()) == 2, "pods that never become ready")
    with judged(control_plane.kubeconfig, models.namespace, {"decode": 3}, {}, hosts=1):
        models.change(roles=[role("decode", 2, tpu=ONE_HOST)])

        def fixed() -> bool:
            # kwok leaves those alone that are held, also when they are to go.
            for name, pod in models.pods().items():
                if broken(pod) and "deletionTimestamp" in pod["metadata"]:
                    models.kube.delete(POD, name, models.namespace, gracePeriodSeconds=0)
            return not any(map(broken, models.pods().values()))

        wait_for(fixed, "the broken ones to be replaced")
        models.serves()


def test_case_59_a_replica_comes_back_from_its_own_revision_in_a_rollout(models: Models) -> None:
    models.create()
    old = models.serves()["currentRevision"]
    models.change(roles=[role("prefill", template=HELD), role("decode", template=HELD)])
    wait_for(lambda: len(models.pods()) == 4 * HOSTS, "the replicas of the new revision")
    victim = sorted(models.pods(role="decode", revision=old))[2]
    models.end_pod(victim)
    wait_for(lambda: models.status()["restarts"] == 1, "the repair")

    def back() -> bool:
        pods = models.pods(role="decode", revision=old)
        return len(pods) == HOSTS and {label(pod, "attempt") for pod in pods.values()} == {"1"}

    wait_for(back, "the replica to be back from its own revision")


def test_pc29_a_slice_that_there_is_no_room_for_is_told_and_comes_once_there_is(models: Models) -> None:
    models.create("other", roles=[role("decode", 2)])
    models.serves("other")
    models.create()
    models.serves()
    models.change(engine=image("2"))
    told = models.has_condition("Blocked", "True", "CapacityInUse")
    assert "other" in told["message"]
    hold = wait_for(lambda: models.status()["rollout"].get("hold"), "the hold")
    assert hold["gate"] == "Capacity"
    assert models.condition("Available")["status"] == "True"
    models.change("other", replicas=0)
    models.serves()


def test_pc34_roles_come_and_go_with_the_revision(models: Models) -> None:
    models.create()
    models.serves()
    models.change(roles=[role("decode"), role("fill", type="prefill")])
    status = models.serves()
    assert [each["name"] for each in status["roles"]] == ["decode", "fill"]
    assert not models.pods(role="prefill")

"""Rollouts in which something goes wrong, or without a slice to spare, judged by a watch of the server."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.inference.models import HELD, HOSTS, image, judged, label, role, uids
from tests.kube import EVENT, NODE, POD, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hack.devcluster import Cluster
    from tests.cluster.inference.models import Models
    from tests.kube import Kube, Object

pytestmark = pytest.mark.usefixtures("operator")

ONE_EACH = {"prefill": 1, "decode": 1}
TWO_EACH = {"prefill": 2, "decode": 2}
# Nobody else evicts for this effect, so that it is the operator that finds the node lost.
OUT_OF_SERVICE = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoSchedule"}
HELD_ROLES = [role("prefill", template=HELD), role("decode", template=HELD)]
ROLES = [role("prefill"), role("decode")]


def begun(models: Models, **rollout: Any) -> tuple[str, str]:
    """A rollout whose replicas get nodes and never become ready, with the revisions before and of it."""
    models.create(rollout=rollout)
    old = models.serves()["currentRevision"]
    models.change(roles=HELD_ROLES)
    wait_for(lambda: len(models.pods()) == 4 * HOSTS, "the replicas of the new revision")
    wait_for(lambda: all(pod["spec"].get("nodeName") for pod in models.pods().values()), "their nodes")
    return old, models.status()["updatedRevision"]


def release(models: Models) -> None:
    """Have pods go that no kubelet looks after, once they are told to."""

    def gone() -> bool:
        held = [pod for pod in models.pods().values() if pod["metadata"].get("annotations")]
        left = [pod for pod in held if "devcluster/hold" in pod["metadata"]["annotations"]]
        for pod in left:
            if "deletionTimestamp" in pod["metadata"]:
                models.kube.delete(POD, pod["metadata"]["name"], models.namespace, gracePeriodSeconds=0)
        return not left

    wait_for(gone, "the pods that never became ready to go")


def waits_for(models: Models, pod: str, reason: str, message: str) -> None:
    """A container that cannot start, as its kubelet says it."""
    container = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    state = {"state": {"waiting": {"reason": reason, "message": message}}}
    status = {"phase": "Pending", "containerStatuses": [container | state]}
    models.kube.patch_status(POD, pod, models.namespace, status)


def test_pc12_a_broken_image_is_told_within_the_deadline_and_undone_by_the_old_spec(
    models: Models, control_plane: Cluster
) -> None:
    old, new = begun(models, progressDeadlineSeconds=5)
    before = uids(models.pods(revision=old))
    with judged(control_plane.kubeconfig, models.namespace, TWO_EACH, ONE_EACH):
        for pod in models.pods(revision=new):
            waits_for(models, pod, "ErrImagePull", "example/vllm:typo: not found")
        told = models.has_condition("Blocked", "True", "ImagePullFailed")
        assert "example/vllm:typo: not found" in told["message"]
        models.has_condition("Progressing", "False", "ProgressDeadlineExceeded")
        models.change(roles=ROLES)
        release(models)
        assert models.serves()["currentRevision"] == old
    assert uids(models.pods()) == before


def test_pc12_a_crash_loop_goes_no_further_and_gives_way_to_the_third_revision(
    models: Models, control_plane: Cluster
) -> None:
    old, new = begun(models)
    with judged(control_plane.kubeconfig, models.namespace, TWO_EACH, ONE_EACH):
        for restarts in (1, 2):
            models.end_pod(f"qwen-decode-{new}-0-2")
            wait_for(partial(_attempt, models, new, restarts), f"attempt {restarts}")
            assert models.status()["restarts"] == restarts
        assert len(models.pods(revision=old)) == 2 * HOSTS
        models.change(roles=ROLES, engine=image("3"))
        release(models)
        third = models.serves()["currentRevision"]
    assert {label(pod, "revision") for pod in models.pods().values()} == {third}
    assert third not in {old, new}


def _attempt(models: Models, revision: str, attempt: int) -> bool:
    """Whether all hosts of the decode replica are of an attempt, and have nodes.

    The hosts of the attempt before are ended by their kubelets, which are not there.
    """
    pods = models.pods(role="decode", revision=revision)
    for name, pod in pods.items():
        if "deletionTimestamp" in pod["metadata"]:
            models.kube.delete(POD, name, models.namespace, gracePeriodSeconds=0)
    right = [label(pod, "attempt") == str(attempt) and pod["spec"].get("nodeName") for pod in pods.values()]
    return len(pods) == HOSTS and all(right)


def test_pc13_an_engine_whose_startup_probe_fails_starts_anew_as_a_whole(models: Models) -> None:
    old, new = begun(models)
    others = uids(models.pods(role="prefill", revision=new)) | uids(models.pods(revision=old))
    # Host 0 of an engine that hangs while it compiles is killed by its kubelet.
    models.end_pod(f"qwen-decode-{new}-0-0", exit_code=137)
    wait_for(lambda: _attempt(models, new, 1), "the replica to start anew")
    assert models.status()["restarts"] == 1
    now = uids(models.pods())
    assert {name: now.get(name) for name in others} == others
    assert models.condition("Available")["status"] == "True"
    models.change(roles=ROLES)
    release(models)
    assert models.serves()["currentRevision"] == old


@pytest.fixture
def lose(kube: Kube) -> Iterator[Callable[[str], None]]:
    """Takes a node out of service, until the end of the test."""
    lost: dict[str, list[Object]] = {}

    def out(node: str) -> None:
        found = kube.get(NODE, node) or {}
        lost[node] = found["spec"].get("taints", [])
        kube.patch(NODE, node, "", {"spec": {"taints": [*lost[node], OUT_OF_SERVICE]}})

    yield out
    for node, taints in lost.items():
        kube.patch(NODE, node, "", {"spec": {"taints": taints}})


def test_pc13_a_node_that_is_lost_in_a_rollout_costs_one_replica_and_stops_nothing(
    models: Models, lose: Callable[[str], None]
) -> None:
    # Without surge, so that one of the cluster's four node pools is free for who loses a node.
    models.create(
        roles=[role("decode", 3, type="prefill-decode")], rollout={"maxSurge": 0, "maxUnavailable": 1}
    )
    models.serves()
    models.change(engine=image("2"))
    new = wait_for(lambda: _other(models), "the new revision")
    wait_for(lambda: len(models.pods(revision=new, host="1")) == 1, "the first replica of the new revision")
    pod = next(iter(models.pods(revision=new, host="1").values()))
    name = pod["metadata"]["name"]
    lose(wait_for(lambda: models.pods()[name]["spec"].get("nodeName"), "its node"))
    status = models.serves()
    assert status["currentRevision"] == new
    assert status["restarts"] == 1
    assert status["lastFailure"]["cause"] == "NodeLost"


def _other(models: Models) -> str:
    """The revision of a rollout that has begun; empty before."""
    status = models.status()
    return "" if status["updatedRevision"] == status["currentRevision"] else str(status["updatedRevision"])


def test_pc29_on_full_nodes_drain_first_goes_one_replica_at_a_time(
    models: Models, control_plane: Cluster
) -> None:
    # Two slices of each of two roles: all that the cluster has.
    models.create(roles=[role("prefill", 2), role("decode", 2)], rollout={"onCapacityShortage": "DrainFirst"})
    old = models.serves()["currentRevision"]
    most = {"prefill": 3, "decode": 3}
    with judged(control_plane.kubeconfig, models.namespace, most, ONE_EACH):
        models.change(engine=image("2"))
        assert models.serves()["currentRevision"] != old
    told = {event["reason"] for event in models.kube.list(EVENT, models.namespace)}
    assert "CapacityInUse" in told

"""Why a job does not run yet."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tests.builders import NOW, STARTING, World, decode_pod, job, stamp
from tpu_operator.api import BlockedReason
from tpu_operator.core import pending
from tpu_operator.core.snapshot import Node, Pod

ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
SELECTOR = {
    ACCELERATOR: "tpu-v5-lite-podslice",
    "cloud.google.com/gke-tpu-topology": "4x4",
}
UNSCHEDULABLE: dict[str, Any] = {
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/9 nodes are available",
        }
    ]
}


def pod(name: str = "train-0-0", node: str = "", gone_at: float | None = None, **status: Any) -> Pod:
    """A pod; `gone_at`: seconds from now until its grace period is over."""
    metadata: dict[str, Any] = {"name": name, "labels": {}}
    if gone_at is not None:
        metadata["deletionTimestamp"] = stamp(NOW + timedelta(seconds=gone_at))
    return decode_pod({"metadata": metadata, "spec": {"nodeName": node}}, **status)


def plain_node(name: str = "n", **labels: str) -> Node:
    return msgspec.convert({"metadata": {"name": name, "labels": labels}}, Node)


class TestImages:
    @pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"])
    @pytest.mark.parametrize("kind", ["containerStatuses", "initContainerStatuses"])
    def test_an_image_that_cannot_be_had(self, kind: str, reason: str) -> None:
        waiting = {"name": "main", "state": {"waiting": {"reason": reason, "message": "not found"}}}
        status: dict[str, Any] = {kind: [waiting]}
        hold = pending.not_started([pod(), pod("train-0-1", **status)])
        assert hold is not None
        assert hold.reason == "ImagePullFailed"
        assert hold.message == f"container main of pod train-0-1: {reason}: not found"

    @pytest.mark.parametrize("state", [{"waiting": {"reason": "ContainerCreating"}}, {"running": {}}, {}])
    def test_containers_on_their_way(self, state: dict[str, Any]) -> None:
        assert pending.not_started([pod(containerStatuses=[{"name": "main", "state": state}])]) is None

    @pytest.mark.parametrize("reason", ["CreateContainerConfigError", "CrashLoopBackOff"])
    def test_a_container_that_its_kubelet_cannot_start(self, reason: str) -> None:
        waiting = {"reason": reason, "message": 'configmap "nope" not found'}
        hold = pending.not_started([pod(containerStatuses=[{"name": "main", "state": {"waiting": waiting}}])])
        assert hold is not None
        assert hold.reason == "CreateRefused"
        assert hold.message == f'container main of pod train-0-0: {reason}: configmap "nope" not found'


def aged(seconds: float, node: str = "", **status: Any) -> Pod:
    """A pod that has been as it is for some seconds."""
    then = stamp(NOW - timedelta(seconds=seconds))
    conditions = [c | {"lastTransitionTime": then} for c in status.pop("conditions", [])]
    metadata = {"name": "train-0-0", "labels": {}, "creationTimestamp": then}
    return decode_pod({"metadata": metadata, "spec": {"nodeName": node}}, conditions=conditions, **status)


NO_SANDBOX = [{"type": "PodReadyToStartContainers", "status": "False"}]
GATED = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]


class TestNeglected:
    def test_a_pod_that_no_scheduler_looks_at(self) -> None:
        hold = pending.neglected([aged(61)], NOW)
        assert hold is not None
        assert (hold.reason, hold.message[:40]) == (
            "Unschedulable",
            "no scheduler has looked at pod train-0-0",
        )

    def test_a_pod_whose_volumes_do_not_come(self) -> None:
        hold = pending.neglected([aged(61, node="n", conditions=NO_SANDBOX)], NOW)
        assert hold is not None
        assert hold.reason == "CreateRefused"
        assert hold.message.startswith("pod train-0-0 on node n waits for its volumes or its network")

    @pytest.mark.parametrize(
        "other",
        [
            aged(61, conditions=GATED),
            aged(61, node="n"),
            aged(61, node="n", conditions=NO_SANDBOX, phase="Succeeded"),
            aged(61, node="n", conditions=[{"type": "PodReadyToStartContainers", "status": "True"}]),
        ],
        ids=["gated", "old kubelet", "over", "pulling"],
    )
    def test_pods_that_somebody_else_speaks_of(self, other: Pod) -> None:
        assert pending.neglected([other], NOW) is None
        assert pending.late_in([other], NOW) is None

    def test_a_pod_that_is_not_late_yet_is_looked_at_again(self) -> None:
        assert pending.neglected([aged(20)], NOW) is None
        assert pending.late_in([aged(20), aged(50), aged(90)], NOW) == 10

    def test_gates_are_told(self) -> None:
        hold = pending.gated([pod(), aged(1, conditions=GATED)])
        assert hold is not None
        assert hold.reason == "AwaitingAdmission"
        assert hold.message == (
            "1 pod waits until somebody removes spec.schedulingGates, from train-0-0 for example"
        )
        assert pending.gated([pod(), pod(**UNSCHEDULABLE)]) is None

    def test_it_does_not_matter_how_much_a_registry_has_to_say(self) -> None:
        waiting = {"name": "main", "state": {"waiting": {"reason": "ErrImagePull", "message": "x" * 100_000}}}
        the_world = World(job()).settle()
        the_world.set_pod("train-0-0", containerStatuses=[waiting])
        assert the_world.settle().condition("Blocked") == "True/ImagePullFailed"
        assert len(the_world.job.status.message or "") <= 32768


class TestOldPods:
    def test_they_have_their_grace_period_and_half_a_minute(self) -> None:
        assert pending.waiting_for_old([pod(gone_at=-29), pod(gone_at=30), pod()], NOW) is None

    def test_then_they_are_named_with_their_nodes(self) -> None:
        hold = pending.waiting_for_old([pod("a", node="n-1", gone_at=-31), pod("b", gone_at=-31)], NOW)
        assert hold is not None
        assert hold.reason == "WaitingForOldPods"
        assert hold.message.startswith(
            "2 pods of an earlier attempt do not terminate: a on node n-1, b on node (none); "
        )

    @pytest.mark.parametrize(
        ("gone_at", "seconds"),
        [([30.0], 60.0), ([30.0, 5.0, -31.0], 35.0), ([-31.0], None), ([None], None), ([], None)],
    )
    def test_when_to_look_again(self, gone_at: list[float | None], seconds: float | None) -> None:
        pods = [pod(gone_at=at) for at in gone_at]
        assert pending.stuck_in(pods, NOW) == seconds

    def test_looking_again_at_that_time_finds_them(self) -> None:
        pods = [pod(gone_at=30)]
        later = NOW + timedelta(seconds=pending.stuck_in(pods, NOW) or 0)
        assert pending.waiting_for_old(pods, later) is not None
        assert pending.stuck_in(pods, later) is None


class TestOthers:
    def test_pods_of_somebody_else(self) -> None:
        hold = pending.foreign_pods([pod(name) for name in "abcd"])
        assert hold is not None
        assert hold.reason == "WaitingForOldPods"
        assert hold.message == "pods a, b, c exist and belong to another owner; they have to go first"
        assert pending.foreign_pods([]) is None

    def test_a_refused_child(self) -> None:
        hold = pending.refused("denied by policy")
        assert hold == pending.Hold(BlockedReason.CREATE_REFUSED, "denied by policy")

    def test_a_quota_has_a_reason_of_its_own(self) -> None:
        hold = pending.refused("pods is forbidden: exceeded quota: team")
        assert hold is not None
        assert hold.reason == BlockedReason.QUOTA_EXCEEDED
        assert pending.refused("") is None

    def test_it_does_not_matter_how_much_the_server_has_to_say(self) -> None:
        the_world = World(job(), refusal="x" * 100_000)
        the_world.step()
        assert the_world.condition("Blocked") == "True/CreateRefused"
        assert len(the_world.job.status.message or "") <= 32768


class TestNodePool:
    @pytest.mark.parametrize(
        ("pools", "found"),
        [
            (["a", "a"], "a"),
            (["a", "b"], None),
            (["a", ""], "a"),
            ([], None),
            (["", ""], None),
            (["-", "-"], None),
        ],
    )
    def test_the_pool_of_all_pods_that_have_a_node(self, pools: list[str], found: str | None) -> None:
        """`-` is a node without the label, the empty string no node."""
        nodes = {
            "on-a": plain_node("on-a", **{"cloud.google.com/gke-nodepool": "a"}),
            "on-b": plain_node("on-b", **{"cloud.google.com/gke-nodepool": "b"}),
            "on--": plain_node("on--"),
        }
        assert pending.node_pool([pod(node=f"on-{p}" if p else "") for p in pools], nodes) == found

    def test_a_node_that_is_gone(self) -> None:
        assert pending.node_pool([pod(node="gone")], {}) is None


def test_the_first_thing_that_a_person_can_do_something_about_is_told() -> None:
    the_world = World(job(), refusal="denied by policy").settle()
    the_world.set_pod("train-0-0", **UNSCHEDULABLE)
    waiting = {"name": "main", "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}
    the_world.set_pod("train-0-1", containerStatuses=[waiting])
    assert the_world.settle().condition("Blocked") == "True/CreateRefused"
    the_world.refusal = ""
    assert the_world.settle().condition("Blocked") == "True/ImagePullFailed"
    the_world.set_pod("train-0-1", **STARTING)
    assert the_world.settle().condition("Blocked") == "True/NoMatchingNodes"
    labels = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
        "cloud.google.com/gke-accelerator-count": "4",
    }
    the_world.nodes["n"] = plain_node("n", **labels)
    assert the_world.settle().condition("Blocked") == "True/Unschedulable"
    the_world.all_pods(**STARTING)
    assert the_world.settle().condition("Blocked") == "False/NotBlocked"


def test_how_long_it_has_waited_is_for_one_reason() -> None:
    the_world = World(job()).settle()
    the_world.set_pod("train-0-0", **UNSCHEDULABLE)
    the_world.settle()
    first = the_world.job.status.pending
    the_world.now += timedelta(minutes=1)
    labels = {**SELECTOR, "cloud.google.com/gke-accelerator-count": "4"}
    the_world.settle()
    assert the_world.job.status.pending == first
    the_world.nodes["n"] = plain_node("n", **labels)
    the_world.settle()
    second = the_world.job.status.pending
    assert first is not None
    assert second is not None
    assert (first.since, second.since) == (NOW, NOW + timedelta(minutes=1))


@pytest.mark.parametrize(("reason", "told"), [("SchedulerError", True), ("SchedulingGated", False)])
def test_an_error_of_the_scheduler_itself_is_passed_on(reason: str, told: bool) -> None:
    condition = UNSCHEDULABLE["conditions"][0] | {"reason": reason, "message": "plugin: not found"}
    found = pending.unscheduled(pod(conditions=[condition]))
    assert bool(found) is told
    assert found is None or found.message == "plugin: not found"

"""Rollouts in which something goes wrong, or for which there is no room, from the spec to the pods."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from tests.builders import NOW, RUNNING, STARTING, node_pool, report, stamp, terminated
from tests.inference import InferenceWorld, image, inference, role
from tpu_operator.core import names
from tpu_operator.core.kueue import Workload

ONE_HOST = {"accelerator": "v5e", "topology": "2x2"}
TWO_EACH = [role("prefill", 2, tpu=ONE_HOST), role("decode", 2, tpu=ONE_HOST)]
NO_SURGE = {"maxSurge": 0, "maxUnavailable": 1}
FLOOR = {"prefill": 2, "decode": 2}
FULL_QUOTA = (
    "couldn't assign flavors to pod set main: insufficient unused quota for google.com/tpu in flavor v5e"
)


def rolling(tag: str = "2", **spec: Any) -> tuple[InferenceWorld, str, str]:
    """A rollout that has just begun, with the revisions before and of it."""
    world = InferenceWorld(inference(**{"roles": TWO_EACH} | spec)).run()
    old = world.status.current_revision
    world.patch_spec(engine=image(tag)).settle()
    return world, old, world.status.updated_revision


def ready(world: InferenceWorld) -> dict[str, int]:
    return {each.name: each.ready for each in world.status.roles}


def gate(world: InferenceWorld) -> tuple[str, str]:
    hold = world.status.rollout.hold
    return (hold.gate, hold.reason) if hold else ("", "")


def waiting(reason: str, message: str) -> dict[str, Any]:
    """A pod whose main container cannot start."""
    state = {"waiting": {"reason": reason, "message": message}}
    return STARTING | {"containerStatuses": [{"name": "main", "state": state}]}


# What does not start.


def test_pc12_a_crash_loop_goes_no_further_than_its_budget_and_is_undone_by_the_old_spec() -> None:
    world, old, new = rolling()
    began = world.counts()
    assert began == {old: FLOOR, new: {"prefill": 1, "decode": 1}}
    for _ in range(6):
        world.start(*world.of("prefill", new), *world.of("decode", new)).settle()
        for name in world.of("decode", new):
            world.set_pod(name, **terminated(1, report(at=world.now, error="no such weights"), world.now))
        world.settle().vanish().settle()
        assert (world.counts(), ready(world)) == (began, FLOOR)
        world.now += timedelta(seconds=200)
        world.settle()
    assert world.condition("Available") == "True/Serving"
    assert world.condition("Progressing") == "False/ProgressDeadlineExceeded"
    assert world.status.last_failure is not None
    assert world.status.last_failure.message == "no such weights"
    world.patch_spec(engine={"type": "vllm"}).settle()
    # Replicas that are known not to start go at once.
    assert world.of("decode", new) == world.of("prefill", new) == []
    assert world.counts() == {old: FLOOR}
    assert world.condition("Progressing") == "False/Complete"


def test_pc12_a_broken_image_is_told_within_the_deadline_and_undone_by_the_old_spec() -> None:
    world, old, new = rolling("typo", rollout={"progressDeadlineSeconds": 120})
    for name in [*world.of("prefill", new), *world.of("decode", new)]:
        world.set_pod(name, **waiting("ErrImagePull", "example/vllm:typo: not found"))
    world.settle()
    assert world.condition("Blocked") == "True/ImagePullFailed"
    assert world.condition("Progressing") == "True/RollingOut"
    again = world.plan().requeue_after
    assert again is not None
    assert again <= 120
    world.now += timedelta(seconds=120)
    world.settle()
    assert world.condition("Progressing") == "False/ProgressDeadlineExceeded"
    assert gate(world)[0] == "Deadline"
    assert "ready replicas of revision" in gate(world)[1]
    assert ready(world) == FLOOR
    world.patch_spec(engine={"type": "vllm"}).settle()
    assert world.counts() == {old: FLOOR}
    assert world.condition("Blocked") == "False/NotBlocked"


def test_a_replica_that_starts_anew_long_after_a_rollout_has_the_time_that_rollouts_have() -> None:
    world = InferenceWorld(inference(rollout={"progressDeadlineSeconds": 120})).run()
    world.now += timedelta(days=3)
    world.set_pod(world.of("decode", host=0)[0], **terminated(1, at=world.now))
    world.settle().vanish().settle()
    assert gate(world)[0] == "Readiness"
    world.now += timedelta(seconds=121)
    world.settle()
    assert gate(world)[0] == "Deadline"
    world.now += timedelta(seconds=60)
    assert world.plan().status is None, "time alone is no news"


def test_pc13_an_engine_that_never_compiles_is_ended_by_its_probe_and_starts_anew_as_a_whole() -> None:
    four_hosts = [role("prefill", 1), role("decode", 1)]
    world, old, new = rolling(roles=four_hosts)
    pods = world.of("decode", new)
    world.start(*pods).settle()
    # Hosts wait for each other for ever; the kubelet ends host 0, whose startup probe has not passed.
    killed = terminated(137, at=world.now + timedelta(hours=4))
    world.now += timedelta(hours=4)
    assert world.settle().condition("Progressing") == "False/ProgressDeadlineExceeded"
    world.set_pod(world.of("decode", new, host=0)[0], **killed)
    world.settle().vanish().settle()
    assert {world.pods[name].attempt for name in world.of("decode", new)} == {1}
    assert len(world.of("decode", new)) == 4
    assert {world.pods[name].attempt for name in world.of("prefill", new)} == {0}
    assert world.counts()[old] == {"prefill": 1, "decode": 1}
    assert world.condition("Available") == "True/Serving"
    world.run()
    assert (world.counts(), world.status.restarts) == ({new: {"prefill": 1, "decode": 1}}, 1)


def test_pc12_a_broken_revision_in_the_middle_gives_way_to_the_third_before_the_first() -> None:
    world, first, second = rolling()
    # One of its roles starts, so that a part of the first revision goes, and then it breaks.
    world.all_pods(**RUNNING).settle().vanish().settle()
    assert world.counts()[first] != FLOOR
    for name in [*world.of("prefill", second), *world.of("decode", second)]:
        world.set_pod(name, **waiting("CrashLoopBackOff", "back-off"))
    world.settle()
    kept = world.counts()[first]
    world.patch_spec(engine=image("3")).settle()
    third = world.status.updated_revision
    assert second not in world.counts()
    assert world.counts()[first] == kept
    world.run()
    assert world.counts() == {third: FLOOR}
    assert world.status.current_revision == third


# Nodes.


def on_nodes(world: InferenceWorld) -> InferenceWorld:
    """Have all pods that wait run on the nodes that were chosen for them."""
    for name, pod in world.pods.items():
        if not pod.spec.node_name:
            host = pod.metadata.labels[names.LABEL_HOST]
            world.set_pod(name, node=f"{pod.spec.node_selector.pool}-{host}", **RUNNING)
    return world.settle()


def pools(world: InferenceWorld, role: str, revision: str = "") -> set[str]:
    return {world.pods[name].spec.node_selector.pool or "" for name in world.of(role, revision)}


def serving_on(*pools: str, **spec: Any) -> InferenceWorld:
    """One that serves on node pools, each for one slice."""
    world = InferenceWorld(inference(**spec))
    world.nodes = {name: node for pool in pools for name, node in node_pool(pool).items()}
    world.settle()
    return on_nodes(world)


def test_pc13_a_node_that_is_lost_in_a_rollout_costs_one_replica_and_stops_nothing() -> None:
    world = serving_on("a", "b", "c", "d", "e", roles=[role("prefill", 1), role("decode", 1)])
    old = world.status.current_revision
    world.patch_spec(engine=image("2")).settle()
    new = world.status.updated_revision
    on_nodes(world)
    (pool,) = pools(world, "prefill", new) or {""}
    world.nodes |= {
        f"{pool}-1": node_pool(pool, ready="Unknown", since=NOW - timedelta(minutes=5))[f"{pool}-1"]
    }
    for _ in range(10):
        world.settle().vanish()
        on_nodes(world)
    assert world.status.last_failure is not None
    assert world.status.last_failure.cause == "NodeLost"
    assert world.counts() == {new: {"prefill": 1, "decode": 1}}
    assert pool not in pools(world, "prefill")
    assert (world.status.restarts, old in world.counts()) == (1, False)


def test_pc03_without_surge_the_successor_gets_the_node_pool_of_the_replica_that_made_room() -> None:
    two = [role("prefill", 2), role("decode", 2)]
    # Pools a and b are free, and first in line.
    world = serving_on("c", "d", "e", "f", roles=two, rollout=NO_SURGE)
    world.nodes = {**node_pool("a"), **node_pool("b"), **world.nodes}
    before = {each: pools(world, each) for each in ("prefill", "decode")}
    world.keep_deleted = True
    world.patch_spec(engine=image("2"))
    for _ in range(12):
        world.settle()
        new = world.of("prefill", world.status.updated_revision)
        leaving = [pod for pod in world.pods.values() if pod.deleting]
        # Chips are seen to be free before anything is made in their place.
        taken = {pod.spec.node_selector.pool for pod in leaving}
        assert not taken & {world.pods[name].spec.node_selector.pool for name in new}
        world.vanish()
        on_nodes(world)
    assert world.status.current_revision == world.status.updated_revision
    assert {each: pools(world, each) for each in ("prefill", "decode")} == before


# Room.


def unscheduled(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


def gated(since: str) -> dict[str, Any]:
    """A pod that Kueue has not admitted."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    return {"phase": "Pending", "conditions": [condition | {"lastTransitionTime": since}]}


def test_pc29_the_reason_for_a_surge_without_room_is_the_schedulers() -> None:
    world = serving_on("a", "b", "c", "d", roles=[role("prefill", 1), role("decode", 1)])
    world.patch_spec(engine=image("2")).settle()
    said = "0/16 nodes are available: 4 node(s) had volume node affinity conflict"
    for name in world.of("prefill", world.status.updated_revision):
        world.set_pod(name, node=None, **unscheduled(said))
    world.settle()
    assert gate(world)[0] == "Capacity"
    assert "no room for a new replica of prefill: 4 pods wait for nodes" in gate(world)[1]
    assert said in gate(world)[1]
    assert "onCapacityShortage DrainFirst" in gate(world)[1]


def test_pc29_a_surge_that_nobody_admits_has_no_room_either() -> None:
    world, old, new = rolling(rollout={"onCapacityShortage": "DrainFirst"})
    for name in [*world.of("prefill", new), *world.of("decode", new)]:
        world.set_pod(name, node=None, **gated(stamp(NOW)))
    world.settle()
    # Who admits does so within seconds: nothing is drained for that.
    assert gate(world)[0] == "Readiness"
    assert world.counts()[old] == FLOOR
    assert world.plan().requeue_after == 30
    world.now += timedelta(seconds=30)
    world.settle()
    assert world.counts()[old] == {"prefill": 1, "decode": 1}
    world.vanish().settle()
    assert world.counts()[old] == {"prefill": 1, "decode": 1}
    assert gate(world)[0] == "Capacity"
    assert "until somebody removes spec.schedulingGates" in gate(world)[1]
    world.run()
    assert world.counts() == {new: FLOOR}


def test_pc29_the_reason_for_a_surge_that_kueue_does_not_admit_is_kueues() -> None:
    world, _, new = rolling()
    for name in [*world.of("prefill", new), *world.of("decode", new)]:
        world.set_pod(name, node=None, **gated(stamp(NOW - timedelta(minutes=1))))
        said = {"type": "QuotaReserved", "status": "False", "message": FULL_QUOTA}
        labels = {"kueue.x-k8s.io/job-uid": world.pods[name].metadata.uid}
        raw = {
            "metadata": {"name": f"pod-{name}", "labels": labels},
            "spec": {"queueName": "team"},
            "status": {"conditions": [said]},
        }
        world.workloads[f"pod-{name}"] = msgspec.convert(raw, Workload)
    world.settle()
    assert gate(world)[0] == "Capacity"
    (waits,) = world.of("decode", new)
    assert f"1 pod waits for admission, {waits} for example: LocalQueue team: {FULL_QUOTA}" in gate(world)[1]
    assert world.condition("Blocked") == "True/AwaitingAdmission"


def test_pc29_with_drain_first_one_replica_of_each_role_goes_at_a_time() -> None:
    three = [role("prefill", 3, tpu=ONE_HOST), role("decode", 3, tpu=ONE_HOST)]
    world, old, new = rolling(roles=three, rollout={"onCapacityShortage": "DrainFirst"})
    world.keep_deleted = True
    for _ in range(40):
        # Six slices in all: the first pods that have no node get those that are free.
        free = 6 - sum(bool(pod.spec.node_name) for pod in world.pods.values())
        for name in [n for n, pod in world.pods.items() if not pod.spec.node_name]:
            if free > 0:
                world.set_pod(name, **RUNNING)
                free -= 1
            else:
                world.set_pod(name, node=None, **unscheduled("0/6 nodes are available"))
        world.settle()
        assert all(count >= 2 for count in ready(world).values()), ready(world)
        assert world.condition("Available") == "True/Serving"
        world.vanish()
    assert world.counts() == {new: {"prefill": 3, "decode": 3}}
    assert old not in world.counts()

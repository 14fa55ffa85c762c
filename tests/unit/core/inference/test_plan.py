"""The life of a TPUInference, decision by decision."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.builders import NOW, RUNNING, STARTING, node, node_pool, report, stamp, terminated
from tests.inference import InferenceWorld, image, inference, role
from tpu_operator.api import GroupState
from tpu_operator.core import names
from tpu_operator.core.inference import missing
from tpu_operator.core.quota import Quotas
from tpu_operator.core.snapshot import Quota

if TYPE_CHECKING:
    from tpu_operator.core.plan import Plan

ONE_EACH = [role("prefill", 1), role("decode", 1)]
NO_SURGE = {"maxSurge": 0, "maxUnavailable": 1}
WAITING = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}],
}


def running(**spec: Any) -> InferenceWorld:
    """One that serves."""
    return InferenceWorld(inference(**spec)).run()


def kinds(plan: Plan) -> list[str]:
    return [manifest["kind"] for manifest in plan.creates]


def groups(world: InferenceWorld) -> dict[str, GroupState]:
    return {group.name: group.state for group in world.status.groups}


def fail(world: InferenceWorld, pod: str, at: datetime = NOW, **more: Any) -> None:
    world.set_pod(pod, **terminated(1, report(at=at, **more), at))


# Start.


def test_what_pods_need_is_made_before_them() -> None:
    plan = InferenceWorld().step()
    assert kinds(plan) == ["ControllerRevision", "Service", *["Pod"] * 12]


def test_of_many_replicas_some_are_made_by_one_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing, "AT_ONCE", 5)
    world = InferenceWorld()
    made = [kinds(world.step()).count("Pod") for _ in range(4)]
    assert made[-1] == 0
    assert sum(made) == 12
    assert len([count for count in made if count]) > 1
    assert world.run().status.phase == "Serving"


def test_it_starts_and_serves() -> None:
    world = InferenceWorld().settle()
    assert (world.status.phase, world.status.ready) == ("Pending", "prefill 0/2, decode 0/1")
    world.start().settle()
    assert (world.status.phase, world.condition("Available")) == ("Starting", "False/Starting")
    world.run()
    assert (world.status.phase, world.condition("Available")) == ("Serving", "True/Serving")
    assert (world.status.ready, world.condition("Progressing")) == (
        "prefill 2/2, decode 1/1",
        "False/Complete",
    )
    assert world.status.current_revision == world.status.updated_revision
    assert (world.status.replicas, world.status.revisions[0].servable) == (1, True)


def test_case_61_starting_is_not_rolling() -> None:
    world = InferenceWorld().settle()
    assert world.condition("Progressing") == "True/Starting"
    world.run()
    assert world.condition("Progressing") == "False/Complete"
    world.patch_spec(engine=image("2")).settle()
    assert world.condition("Progressing") == "True/RollingOut"
    assert {c.observed_generation for c in world.status.conditions} == {2}


def test_a_service_names_pods_before_they_are_ready() -> None:
    world = InferenceWorld().settle()
    assert world.services["qwen"].spec.publish_not_ready_addresses
    assert world.services["qwen"].spec.selector == {"tpu-operator.dev/inference": "qwen"}
    del world.services["qwen"]
    world.settle()
    assert "qwen" in world.services


def test_the_service_has_the_port_of_the_engine_and_no_other() -> None:
    world = InferenceWorld().settle().patch_spec(engine=image("1") | {"port": 9000}).settle()
    assert [port.port for port in world.services["qwen"].spec.ports] == [9000]


def test_pods_of_others_are_in_the_way_and_stay() -> None:
    world = InferenceWorld(inference(roles=[role("decode", 2)])).settle()
    name = world.of("decode", host=0)[0]
    taken = world.pods[name]
    world.pods.clear()
    world.inference = inference(roles=[role("decode", 2)])
    world.inference = world.inference.model_copy(
        update={"metadata": world.inference.metadata.model_copy(update={"uid": "other"})}
    )
    world.revisions.clear()
    world.services.clear()
    world.pods[name] = taken
    world.settle()
    assert world.pods[name] is taken
    assert world.condition("Blocked") == "True/WaitingForOldPods"
    assert len(world.pods) == 1 + 4


def test_a_template_that_makes_no_pods_is_told_and_nothing_is_made() -> None:
    template = {"spec": {"hostname": "mine"}}
    world = InferenceWorld(inference(roles=[role("decode", template=template)])).settle()
    assert not world.pods
    assert world.condition("Blocked") == "True/EnvironmentConflict"
    assert world.status.message is not None
    assert world.status.message.startswith("spec.roles[decode].template.spec.hostname")


def test_a_revision_that_makes_no_pods_leaves_the_one_before_as_it_is() -> None:
    world = running()
    before = set(world.pods)
    world.patch_spec(roles=[role("prefill", 2), role("decode", 1, template={"spec": {"hostname": "x"}})])
    world.run()
    assert set(world.pods) == before
    assert (world.status.phase, world.condition("Blocked")) == ("Rolling", "True/EnvironmentConflict")


def quota(hard: int, used: int = 0) -> Quotas:
    status = {"hard": {"pods": str(hard)}, "used": {"pods": str(used)}}
    return Quotas([msgspec.convert({"metadata": {"name": "team"}, "status": status}, Quota)])


def test_no_replica_is_begun_that_a_quota_has_no_room_for() -> None:
    world = InferenceWorld(quotas=quota(10))
    world.step()
    world.quotas = quota(10, used=8)
    assert len(world.settle().pods) == 8
    assert world.condition("Blocked") == "True/QuotaExceeded"
    world.quotas = quota(12, used=8)
    world.run()
    assert (len(world.pods), world.status.phase) == (12, "Serving")


# Failure of replicas.


@pytest.mark.parametrize("failed", [(1,), (0, 1, 2, 3), (3, 1)])
def test_pc13_a_replica_starts_anew_as_a_whole_and_once(failed: tuple[int, ...]) -> None:
    world = running()
    others = {name: pod for name, pod in world.pods.items() if name not in world.of("decode")}
    for host in failed:
        fail(world, world.of("decode", host=host)[0])
    plan = world.step()
    assert (plan.deletes, plan.creates) == ((), ())
    world.run()
    assert (world.status.restarts, world.status.phase) == (1, "Serving")
    assert {world.pods[name].attempt for name in world.of("decode")} == {1}
    assert {name: pod for name, pod in world.pods.items() if name in others} == others


def test_the_earliest_failure_is_the_one_on_record() -> None:
    world = running()
    pods = world.of("decode")
    fail(world, pods[2], at=NOW + timedelta(seconds=2))
    world.step()
    fail(world, pods[1], at=NOW + timedelta(seconds=1), error="the root")
    world.run()
    assert world.status.last_failure is not None
    assert (world.status.last_failure.pod, world.status.last_failure.message) == (pods[1], "the root")
    assert world.status.restarts == 1


def test_while_a_replica_starts_anew_the_service_is_degraded() -> None:
    world = running()
    fail(world, world.of("prefill", host=0)[0])
    world.settle()
    assert (world.status.phase, world.condition("Degraded")) == ("Degraded", "True/ReplicasNotReady")
    assert world.status.message is not None
    assert world.status.message.startswith("ready are 1 of 2 prefill; UserError in pod")
    fail(world, world.of("decode", host=0)[0])
    world.settle()
    assert (world.status.phase, world.condition("Available")) == ("Unavailable", "False/NoServableRevision")


def test_a_replica_that_is_not_ready_any_more_has_not_failed() -> None:
    world = running()
    world.set_pod(world.of("prefill", host=0)[0], **STARTING)
    world.settle()
    assert (world.status.phase, world.status.restarts) == ("Degraded", 0)
    assert GroupState.NOT_READY in groups(world).values()
    world.run()
    assert (world.status.phase, world.status.restarts) == ("Serving", 0)


def test_growing_is_no_fault() -> None:
    world = running()
    world.patch_spec(roles=[role("prefill", 4), role("decode", 1)]).settle()
    assert (world.status.phase, world.condition("Degraded")) == ("Serving", "False/AsExpected")
    assert world.condition("Progressing") == "True/Scaling"


def test_an_engine_that_ends_well_has_failed_too() -> None:
    world = running()
    world.set_pod(world.of("decode", host=0)[0], **terminated(0))
    world.run()
    assert world.status.restarts == 1
    assert world.status.last_failure is not None
    assert world.status.last_failure.message == "the engine has ended by itself"


def test_a_pod_that_somebody_deletes_takes_its_replica_with_it() -> None:
    world = running()
    world.vanish(world.of("decode", host=2)[0]).run()
    assert world.status.restarts == 1
    assert world.status.last_failure is not None
    assert world.status.last_failure.cause == "PodDeleted"


def test_hosts_of_a_broken_replica_get_little_time_and_those_of_one_that_is_taken_away_all() -> None:
    world = running(roles=ONE_EACH)
    world.keep_deleted = True
    fail(world, world.of("decode", host=1)[0])
    world.settle()
    assert {world.pods[n].metadata.deletion_grace_period_seconds for n in world.of("decode", host=0)} == {10}
    world = running(roles=ONE_EACH)
    world.keep_deleted = True
    world.vanish(world.of("decode", host=1)[0]).settle()
    assert {world.pods[n].metadata.deletion_grace_period_seconds for n in world.of("decode", host=0)} == {75}


def test_pods_are_made_again_only_once_all_old_ones_are_gone() -> None:
    world = running(roles=ONE_EACH)
    world.keep_deleted = True
    fail(world, world.of("decode", host=1)[0])
    world.settle()
    assert all(world.pods[name].attempt == 0 for name in world.of("decode"))
    world.vanish().settle()
    assert {world.pods[name].attempt for name in world.of("decode")} == {1}


def test_a_replica_that_fails_again_and_again_waits_longer_each_time() -> None:
    world = InferenceWorld(inference(roles=ONE_EACH)).settle()
    for _ in range(3):
        world.start().settle()
        fail(world, world.of("decode", host=0)[0])
        world.settle()
        world.now += timedelta(seconds=60)
        world.settle()
    (group,) = [group for group in world.status.groups if group.role == "decode"]
    assert (group.attempt, group.restarts_since_ready) == (3, 3)
    world.start().settle()
    fail(world, world.of("decode", host=0)[0])
    assert world.settle().of("decode") == []
    assert world.plan().requeue_after is not None
    world.now += timedelta(seconds=30)
    world.run()
    assert world.status.phase == "Serving"
    assert {group.restarts_since_ready for group in world.status.groups} == {0}


def test_a_replica_comes_back_from_its_own_revision_in_the_midst_of_a_rollout() -> None:
    """Case 59."""
    world = running(roles=ONE_EACH)
    old = world.status.updated_revision
    world.patch_spec(engine=image("2")).settle()
    fail(world, world.of("decode", old, host=1)[0])
    world.settle()
    made = {world.pods[name].attempt for name in world.of("decode", old)}
    assert made == {1}
    (main,) = world.pods[world.of("decode", old)[0]].spec.containers
    assert main.name == "main"
    assert world.status.restarts == 1


def test_pc15_no_replica_has_pods_of_two_revisions() -> None:
    world = running(roles=ONE_EACH)
    fail(world, world.of("decode", host=1)[0])
    world.step()
    world.patch_spec(engine=image("2"))
    for _ in range(30):
        world.settle().vanish().all_pods(**RUNNING)
        by_group: dict[str, set[str]] = {}
        for pod in world.pods.values():
            labels = pod.metadata.labels
            found = by_group.setdefault(pod.name.rsplit("-", 1)[0], set())
            found.add(labels[names.LABEL_REVISION])
        assert all(len(found) == 1 for found in by_group.values())


# Rollout.


def test_pc01_both_roles_move_to_one_new_revision() -> None:
    world = running()
    old = world.status.updated_revision
    world.patch_spec(roles=[role("prefill", 2), role("decode", 1, args=["--seed=1"])]).run()
    new = world.status.updated_revision
    assert new != old
    assert world.counts() == {new: {"prefill": 2, "decode": 1}}
    assert {pod.metadata.labels[names.LABEL_REVISION] for pod in world.pods.values()} == {new}
    assert (world.status.phase, world.status.rollout.state) == ("Serving", "Idle")


def test_pc03_without_surge_pods_never_exceed_the_goal() -> None:
    world = running(roles=[role("prefill", 4), role("decode", 2)], rollout=NO_SURGE)
    world.keep_deleted = True
    world.patch_spec(engine=image("2"))
    for _ in range(40):
        world.settle()
        assert len(world.of("prefill")) <= 16
        assert len(world.of("decode")) <= 8
        world.vanish().all_pods(**RUNNING)
    assert world.status.rollout.state == "Idle"
    assert world.status.current_revision == world.status.updated_revision


def test_pc11_the_old_spec_applied_again_goes_back_to_its_revision_and_replicas() -> None:
    world = running()
    old, spec = world.status.updated_revision, world.inference.spec.engine
    world.patch_spec(engine=image("2")).settle()
    world.vanish().all_pods(**RUNNING).settle()
    kept = {name: world.pods[name].metadata.uid for name in world.of("decode", old)}
    assert len(world.status.revisions) == 2
    world.patch_spec(engine=spec.wire()).run()
    assert world.status.updated_revision == old
    assert world.counts() == {old: {"prefill": 2, "decode": 1}}
    assert {name: world.pods[name].metadata.uid for name in kept} == kept
    numbers = {name.removeprefix("qwen-"): each.revision for name, each in world.revisions.items()}
    assert max(numbers, key=numbers.__getitem__) == old


def test_pc12_a_bad_image_never_takes_the_service_down() -> None:
    world = running()
    world.patch_spec(engine=image("typo"))
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    new = {"phase": "Pending", "containerStatuses": [{"name": "main", **waiting}]}
    for _ in range(5):
        world.settle()
        for name in world.of("prefill", world.status.updated_revision):
            world.set_pod(name, **STARTING | new)
        assert (world.status.roles[0].ready, world.status.roles[1].ready) >= (2, 1)
        world.now += timedelta(seconds=200)
    world.settle()
    assert world.condition("Available") == "True/Serving"
    assert world.condition("Progressing") == "False/ProgressDeadlineExceeded"
    assert world.condition("Blocked") == "True/ImagePullFailed"
    world.patch_spec(engine=image("3")).run()
    assert (world.status.phase, world.condition("Progressing")) == ("Serving", "False/Complete")


def test_pc18_a_pause_stops_everything_but_repair() -> None:
    world = running()
    world.patch_spec(engine=image("2")).settle()
    world.patch_spec(rollout={"paused": True}).run()
    counts = world.counts()
    assert len(counts) == 2
    assert world.condition("Progressing") == "False/Paused"
    assert world.status.rollout.hold is not None
    assert world.status.rollout.hold.gate == "Pause"
    fail(world, world.of("decode", host=0)[0])
    world.run()
    assert (world.counts(), world.status.restarts) == (counts, 1)
    world.patch_spec(rollout={"paused": False}).run()
    assert world.counts() == {world.status.updated_revision: {"prefill": 2, "decode": 1}}


def test_pc19_what_is_scaled_up_in_a_rollout_is_of_the_new_revision() -> None:
    world = running()
    old = world.status.updated_revision
    world.patch_spec(engine=image("2")).settle()
    before = world.counts()[old]["prefill"]
    world.patch_spec(roles=[role("prefill", 4), role("decode", 1)]).settle()
    assert world.counts()[old]["prefill"] <= before
    assert world.counts()[world.status.updated_revision]["prefill"] > 1
    world.run()
    assert world.counts() == {world.status.updated_revision: {"prefill": 4, "decode": 1}}


def test_pc29_what_has_no_room_is_told_and_goes_on_once_there_is() -> None:
    world = running(roles=ONE_EACH)
    world.patch_spec(engine=image("2")).settle()
    new = world.status.updated_revision
    for name in world.of("prefill", new):
        world.set_pod(name, node=None, **WAITING)
    world.now += timedelta(seconds=300)
    world.settle()
    assert world.status.rollout.hold is not None
    assert world.status.rollout.hold.gate == "Capacity"
    assert "prefill" in world.status.rollout.hold.reason
    assert world.status.pending is not None
    assert world.condition("Available") == "True/Serving"
    world.run()
    assert world.status.current_revision == new


def test_pc34_roles_come_go_and_change_their_names_with_the_revision() -> None:
    world = running(roles=ONE_EACH)
    world.patch_spec(roles=[role("fill", 1, "prefill"), role("decode", 1), role("encode", 1)]).run()
    new = world.status.updated_revision
    assert world.counts() == {new: {"fill": 1, "decode": 1, "encode": 1}}
    assert world.of("prefill") == []
    assert [each.name for each in world.status.roles] == ["fill", "decode", "encode"]


def test_a_canary_stays_at_its_step_for_its_time() -> None:
    canary = {"steps": [{"percent": 25, "pauseSeconds": 300}, {"percent": 50}]}
    world = running(roles=[role("prefill", 4), role("decode", 4)], rollout={"canary": canary})
    old = world.status.updated_revision
    world.patch_spec(engine=image("2")).run()
    new = world.status.updated_revision
    assert world.counts() == {new: {"prefill": 1, "decode": 1}, old: {"prefill": 3, "decode": 3}}
    assert world.status.rollout.hold is not None
    assert (world.status.rollout.hold.gate, world.status.rollout.canary_step) == ("Pause", 0)
    assert world.plan().requeue_after == 300
    world.now += timedelta(seconds=300)
    world.run()
    assert world.counts()[new] == {"prefill": 2, "decode": 2}
    world.now += timedelta(days=1)
    world.run()
    assert world.counts()[new] == {"prefill": 2, "decode": 2}
    world.patch_spec(rollout={}).run()
    assert world.counts() == {new: {"prefill": 4, "decode": 4}}


def test_recreate_stops_all_old_replicas_before_the_first_new_one() -> None:
    world = running(rollout={"strategy": "Recreate"})
    old = world.status.updated_revision
    world.keep_deleted = True
    world.patch_spec(engine=image("2")).settle()
    new = world.status.updated_revision
    assert set(world.counts()) == {old, new}
    assert world.of("prefill", new) == []
    assert all(world.pods[name].deleting for name in world.of("prefill", old))
    world.vanish().settle()
    assert len(world.of("prefill", new, host=0)) == 2
    world.run()
    assert (world.status.phase, world.status.current_revision) == ("Serving", new)


def test_a_partition_keeps_whole_copies_at_the_revision_before() -> None:
    world = running(roles=ONE_EACH, replicas=3, rollout={"partition": 2})
    old = world.status.updated_revision
    world.patch_spec(engine=image("2")).run()
    new = world.status.updated_revision
    assert world.counts() == {
        new: {"prefill": 1, "decode": 1},
        old: {"prefill": 2, "decode": 2},
    }
    assert world.status.rollout.hold is not None
    assert world.status.rollout.hold.gate == "Partition"
    world.patch_spec(rollout={"partition": 0}).run()
    assert world.counts() == {new: {"prefill": 3, "decode": 3}}


def test_pc29_without_room_an_old_replica_goes_first_where_that_is_asked_for() -> None:
    two = [role("prefill", 2), role("decode", 2)]
    world = running(roles=two, rollout={"onCapacityShortage": "DrainFirst"})
    old = world.status.updated_revision
    world.patch_spec(engine=image("2")).settle()
    for name in [*world.of("prefill", world.status.updated_revision), *world.of("decode")]:
        if world.pods[name].metadata.labels[names.LABEL_REVISION] != old:
            world.set_pod(name, node=None, **WAITING)
    world.settle()
    assert world.counts()[old] == {"prefill": 1, "decode": 1}
    assert world.condition("Available") == "True/Serving"
    world.run()
    assert world.counts() == {world.status.updated_revision: {"prefill": 2, "decode": 2}}


def test_pc08_single_replicas_without_surge_move_only_where_downtime_is_allowed() -> None:
    world = running(roles=ONE_EACH, rollout=NO_SURGE)
    old = world.status.updated_revision
    world.patch_spec(engine=image("2")).run()
    assert world.counts()[old] == {"prefill": 1, "decode": 1}
    assert world.status.rollout.hold is not None
    assert world.status.rollout.hold.gate == "Surge"
    world.patch_spec(rollout=NO_SURGE | {"allowDowntime": True}).settle()
    assert world.condition("Available") == "False/NoServableRevision"
    world.run()
    assert (world.status.phase, len(world.status.revisions)) == ("Serving", 1)


def test_replicas_count_once_they_were_ready_for_long_enough() -> None:
    ready_at = {"type": "Ready", "status": "True", "lastTransitionTime": stamp(NOW)}
    ready = RUNNING | {"conditions": [RUNNING["conditions"][0], ready_at]}
    world = InferenceWorld(inference(roles=ONE_EACH, rollout={"minReadySeconds": 60}))
    world.settle().all_pods(**ready).settle()
    assert (world.status.roles[0].ready, world.status.roles[0].available) == (1, 0)
    assert world.status.current_revision == ""
    assert world.plan().requeue_after == 60
    world.now += timedelta(seconds=60)
    world.settle()
    assert world.status.roles[0].available == 1
    assert world.status.current_revision == world.status.updated_revision


# What leaves.


def test_pc27_who_goes_is_left_alone_by_routers_first_and_has_time_to_finish() -> None:
    world = running(roles=[role("prefill", 2), role("decode", 1)])
    world.keep_deleted = True
    world.patch_spec(roles=ONE_EACH)
    plan = world.step()
    assert not plan.deletes
    assert list(groups(world).values()).count(GroupState.DRAINING) == 1
    plan = world.step()
    leader = world.of("prefill", host=0)[1]
    assert [manifest["metadata"]["name"] for manifest in plan.applies] == [leader]
    assert world.pods[leader].metadata.labels["llm-d.ai/inference-serving"] == "false"
    assert len(plan.deletes) == 4
    assert {delete.grace_seconds for delete in plan.deletes} == {None}
    world.settle()
    assert GroupState.DRAINING in groups(world).values()
    world.vanish().settle()
    assert GroupState.DRAINING not in groups(world).values()
    assert world.status.roles[0].replicas == 1


def test_pods_on_lost_nodes_go_at_once_and_their_replica_starts_elsewhere() -> None:
    world = InferenceWorld(inference(roles=ONE_EACH))
    world.nodes = {**node_pool("a"), **node_pool("b"), **node_pool("c")}
    world.settle()
    pods = world.of("decode")
    pool = world.pods[pods[0]].spec.node_selector.pool
    for name in world.pods:
        host = world.pods[name].metadata.labels[names.LABEL_HOST]
        world.set_pod(name, node=f"{world.pods[name].spec.node_selector.pool}-{host}", **RUNNING)
    world.settle()
    assert world.status.phase == "Serving"
    world.keep_deleted = True
    world.nodes |= {
        f"{pool}-1": node_pool(pool, ready="Unknown", since=NOW - timedelta(minutes=5))[f"{pool}-1"]
    }
    for _ in range(2):
        plan = world.step()
        assert plan.status or plan.deletes
        assert [seen.name for seen in plan.sightings] == [f"{pool}-1"], "it is looked at once more"
    world.settle()
    assert world.status.last_failure is not None
    assert world.status.last_failure.cause == "NodeLost"
    world.vanish().settle()
    assert {world.pods[name].spec.node_selector.pool for name in world.of("decode")} == {"c"}


def test_a_replica_that_serves_is_not_spread_over_pools_when_a_label_changes() -> None:
    world = InferenceWorld(inference(roles=[role("decode", 1)]))
    world.nodes = dict(node_pool("a"))
    world.settle()
    for name, pod in world.pods.items():
        world.set_pod(name, node=f"a-{pod.metadata.labels[names.LABEL_HOST]}", **RUNNING)
    world.settle()
    world.nodes |= {"a-1": node("a-1", "b")}
    assert world.settle().status.last_failure is None
    assert world.status.phase == "Serving"


def test_what_maintenance_does_to_a_replica_is_put_down_to_it() -> None:
    world = InferenceWorld(inference(roles=ONE_EACH))
    world.nodes = {**node_pool("a"), **node_pool("b")}
    world.settle()
    for name, pod in world.pods.items():
        host = pod.metadata.labels[names.LABEL_HOST]
        world.set_pod(name, node=f"{pod.spec.node_selector.pool}-{host}", **RUNNING)
    world.settle()
    pods = world.of("decode")
    pool = world.pods[pods[0]].spec.node_selector.pool
    world.nodes |= node_pool(pool, labels={"cloud.google.com/active-node-maintenance": "ONGOING"})
    target = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    ended = terminated(143) | {"conditions": [target | {"lastTransitionTime": stamp(NOW)}]}
    world.set_pod(pods[1], node=f"{pool}-1", **ended)
    world.settle()
    assert world.status.last_failure is not None
    assert world.status.last_failure.cause == "Maintenance"


# Scaling.


def test_case_56_scaling_moves_whole_slices() -> None:
    world = running(roles=ONE_EACH)
    world.patch_spec(roles=[role("prefill", 3), role("decode", 1)]).run()
    assert len(world.of("prefill")) == 12
    world.patch_spec(roles=ONE_EACH).run()
    assert {name.split("-")[-2] for name in world.of("prefill")} == {"0"}


def test_copies_are_whole_role_sets() -> None:
    world = running()
    world.patch_spec(replicas=3).run()
    assert world.status.ready == "prefill 6/6, decode 3/3"
    assert world.status.replicas == 3
    assert world.status.selector == "tpu-operator.dev/inference=qwen,tpu-operator.dev/host=0"


@pytest.mark.parametrize(
    "zero", [{"replicas": 0}, {"roles": [role("prefill", 0), role("decode", 0)]}], ids=["copies", "roles"]
)
def test_pc23_all_stop_together_and_come_back(zero: dict[str, Any]) -> None:
    world = running()
    revision = world.status.updated_revision
    world.patch_spec(**zero).run()
    assert not world.pods
    assert (world.status.phase, world.condition("Available")) == ("Stopped", "False/ScaledToZero")
    world.patch_spec(replicas=1, roles=[role("prefill", 2), role("decode", 1)]).run()
    assert (world.status.phase, world.status.updated_revision) == ("Serving", revision)


EXTERNAL = [role("prefill", 2, scaling="External"), role("decode", 1)]


def test_pc22_a_role_that_others_scale_begins_with_what_it_has() -> None:
    world = running(roles=EXTERNAL)
    (scaler,) = world.scalers.values()
    assert (scaler.metadata.name, scaler.spec) == ("qwen-prefill", {"replicas": 2})
    assert scaler.status["replicas"] == scaler.status["ready"] == 2
    assert scaler.status["selector"] == (
        "tpu-operator.dev/inference=qwen,tpu-operator.dev/host=0,tpu-operator.dev/role=prefill"
    )
    world = running(roles=[role("prefill", 3), role("decode", 1)])
    world.patch_spec(roles=[role("prefill", 1, scaling="External"), role("decode", 1)]).run()
    assert world.scalers["qwen-prefill"].spec == {"replicas": 3}
    assert len(world.of("prefill", host=0)) == 3


def test_pc21_the_number_is_that_of_who_scales() -> None:
    world = running(roles=EXTERNAL)
    world.scale("prefill", 6)
    world.run()
    assert len(world.of("prefill", host=0)) == 6
    world.patch_spec(rollout={"maxSurge": 2}).run()
    world.patch_spec(engine=image("2")).run()
    assert len(world.of("prefill", host=0)) == 6
    assert world.scalers["qwen-prefill"].spec == {"replicas": 6}


def test_one_role_alone_does_not_go_to_zero() -> None:
    world = running(roles=EXTERNAL)
    world.scale("prefill", 0)
    world.run()
    assert len(world.of("prefill", host=0)) == 1


def test_a_role_that_is_static_again_loses_its_scaler() -> None:
    world = running(roles=EXTERNAL)
    world.patch_spec(roles=[role("prefill", 2), role("decode", 1)]).run()
    assert not world.scalers


# History.


def test_old_revisions_are_remembered_up_to_a_limit() -> None:
    world = running(roles=ONE_EACH, rollout={"revisionHistoryLimit": 2})
    seen = [world.status.updated_revision]
    for tag in "23456":
        world.patch_spec(engine=image(tag)).run()
        seen.append(world.status.updated_revision)
    assert set(world.revisions) == {f"qwen-{name}" for name in seen[-3:]}


def test_a_deleted_one_is_left_alone() -> None:
    world = running()
    meta = world.inference.metadata.model_copy(update={"deletion_timestamp": NOW})
    world.inference = world.inference.model_copy(update={"metadata": meta})
    plan = world.plan()
    assert (plan.creates, plan.deletes, plan.status) == ((), (), None)


@pytest.mark.parametrize("writes", range(16))
def test_an_operator_that_dies_at_any_write_of_the_first_pass_goes_on(writes: int) -> None:
    world = InferenceWorld(inference(roles=ONE_EACH))
    world.carry_out(world.plan(), writes, status=False)
    world.run()
    assert (world.status.phase, world.status.restarts, len(world.pods)) == ("Serving", 0, 8)
    assert len(world.status.groups) == 2


def test_the_status_is_whole_again_after_it_was_lost() -> None:
    world = running()
    fail(world, world.of("decode", host=0)[0])
    world.run()
    before = dict(world.pods)
    world.inference = world.inference.model_copy(update={"status": type(world.status)()})
    world.run()
    assert dict(world.pods) == before
    assert {group.name: group.attempt for group in world.status.groups if group.attempt}

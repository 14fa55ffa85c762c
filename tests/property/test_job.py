"""A TPUJob in a world in which anything may happen, and an operator that may end between any two writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.builders import RUNNING, STARTING, UID, World, decode_pod, job, report, stamp, terminated
from tests.property.strategies import policies, specs, tpus
from tpu_operator.api import Condition, TPUJobStatus
from tpu_operator.core import restart
from tpu_operator.core.conditions import Conditions, job_phase
from tpu_operator.core.jobview import JobView, observe
from tpu_operator.core.snapshot import Node, Pod

if TYPE_CHECKING:
    from tpu_operator.core.plan import Plan

CONFLICT = "True/EnvironmentConflict"
FINAL = {"Succeeded", "Failed"}
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/9 nodes"}
SPECS = specs(max_hosts=2)
DISRUPTIONS = ["PreemptionByScheduler", "EvictionByEvictionAPI", "DeletionByPodGC"]
LABELS = {"cloud.google.com/gke-nodepool": "pool-1"}


def final(status: TPUJobStatus) -> set[str]:
    return {c.type for c in status.conditions if c.type in FINAL and c.status == "True"}


@dataclass
class Checked(World):
    """A world that holds every decision to what it promises."""

    def view(self) -> JobView:
        return observe(self.snapshot(), self.now)

    def ours(self) -> dict[str, Pod]:
        return {name: pod for name, pod in self.pods.items() if pod.metadata.owner_uid == UID}

    def plan(self) -> Plan:
        plan = super().plan()
        self._check_deletes(plan)
        self._check_creates(plan)
        self._check_status_write(plan)
        assert plan.requeue_after is None or plan.requeue_after > 0
        return plan

    def _check_deletes(self, plan: Plan) -> None:
        for delete in plan.deletes:
            if delete.kind == "TPUJob":
                assert (delete.uid, final(self.job.status) != set()) == (UID, True)
                continue
            pod = self.pods[delete.name]
            assert pod.metadata.uid == delete.uid
            assert pod.metadata.owner_uid == UID, "others' pods are left alone"
            assert not pod.deleting, "once is enough"

    def _check_creates(self, plan: Plan) -> None:
        pods = [m["metadata"] for m in plan.creates if m["kind"] == "Pod"]
        if not pods:
            return
        assert not final(self.job.status), "nothing is created after the end"
        assert not self.job.spec.suspend
        view = self.view()
        members = {m.name: gang for gang in view.gangs for m in gang.members}
        assert all(name in members for name in self.ours()), "pods without a place may hold the chips"
        for metadata in pods:
            name, labels = metadata["name"], metadata["labels"]
            assert name not in self.pods, "one pod of a name"
            gang = members[name]
            attempts = {pod.attempt for pod in gang.pods.values()} | {gang.attempt}
            assert attempts == {int(labels["tpu-operator.dev/attempt"])}, "old pods have to be gone"

    def _check_status_write(self, plan: Plan) -> None:
        assert plan.status is None or plan.status != self.job.status.wire(), "writes change something"

    def set_status(self, status: dict[str, Any]) -> None:
        old, view = self.job.status, self.view()
        super().set_status(status)
        new = self.job.status
        if any(map(view.incident, view.gangs)) and new.restarts.total > old.restarts.total:
            found = new.last_failure
            assert found is not None
            assert found == old.last_failure or found.cause != "PodDeleted", "we took that pod down ourselves"
        assert new.wire() == status, "the status survives the wire"
        assert TPUJobStatus.parse(json.loads(json.dumps(new.wire()))) == new
        self._check_status(new)
        self._check_step(old, new)

    def _check_status(self, status: TPUJobStatus) -> None:
        types = [c.type for c in status.conditions]
        assert len(types) == len(set(types))
        assert len(final(status)) <= 1
        assert status.phase == job_phase(Conditions(status.conditions, 0, self.now))
        restarts = status.restarts
        assert restarts.counted <= self.job.spec.failure_policy.max_restarts
        assert restarts.counted <= restarts.total == sum(restarts.by_cause.values())
        assert status.hosts.ready <= status.hosts.desired
        assert status.ready == f"{status.hosts.ready}/{status.hosts.desired}"
        assert [s.index for s in status.slices] == list(range(self.job.spec.tpu.slices))

    def _check_step(self, old: TPUJobStatus, new: TPUJobStatus) -> None:
        assert final(old) <= final(new), "the end is final"
        if old.slices:
            before = {s.index: s.attempt for s in old.slices}
            assert all(s.attempt >= before.get(s.index, 0) for s in new.slices), "attempts only count up"
            began = any(s.attempt > before.get(s.index, 0) for s in new.slices)
            assert began or new.restarts.total <= old.restarts.total, "a restart is a new attempt"
        for condition in new.conditions:
            self._check_transition(
                next((c for c in old.conditions if c.type == condition.type), None), condition
            )

    def _check_transition(self, old: Condition | None, new: Condition) -> None:
        flipped = old is None or old.status != new.status
        expected = self.now.replace(microsecond=0) if flipped else old.last_transition_time if old else None
        assert new.last_transition_time == expected


class JobMachine(RuleBasedStateMachine):
    """What kubelets, the scheduler, people and clocks do, in any order."""

    world: Checked
    reaction: str
    """What the operator does by itself after everything that happens."""

    @initialize(spec=SPECS, reaction=st.sampled_from(["settles", "passes", ""]), slow=st.booleans())
    def start(self, spec: dict[str, Any], reaction: str, slow: bool) -> None:
        self.world = Checked(job(**spec))
        self.world.nodes["node"] = msgspec.convert({"metadata": {"name": "node", "labels": LABELS}}, Node)
        self.reaction = reaction
        self.start_all()
        self.world.keep_deleted = slow

    @rule(spec=SPECS)
    @precondition(lambda self: bool(final(self.world.job.status)))
    def start_another(self, spec: dict[str, Any]) -> None:
        self.start(spec, self.reaction, self.world.keep_deleted)

    @invariant()
    def react(self) -> None:
        if self.reaction == "settles":
            self.world.settle()
        elif self.reaction == "passes":
            self.world.step()

    def some(self, data: st.DataObject, *names: str) -> str:
        return data.draw(st.sampled_from(sorted(names)))

    def living(self) -> list[str]:
        return [name for name, pod in self.world.pods.items() if not pod.finished]

    def bound(self) -> list[str]:
        return [name for name in self.living() if self.world.pods[name].spec.node_name]

    def victims(self, data: st.DataObject) -> list[str]:
        """One of the pods that something can happen to, if there are any."""
        if not self.bound():
            self.start_all()
        return [self.some(data, *self.bound())] if self.bound() else []

    # --- the operator

    @rule()
    def passes(self) -> None:
        self.world.step()

    @rule(writes=st.integers(0, 14), status=st.booleans())
    def crashes(self, writes: int, status: bool) -> None:
        """Its last writes are never made; since writes run side by side, the status may be."""
        self.world.carry_out(self.world.plan(), writes, status=status)

    @rule()
    def settles(self) -> None:
        world = self.world.settle()
        if not world.alive:
            return
        plan = world.plan()
        assert plan == world.plan(), "decisions are deterministic"
        refused = bool(world.refusal) or any(
            m["kind"] == "Service" and m["metadata"]["name"] in world.services for m in plan.creates
        )
        assert (plan.status, plan.deletes, plan.applies) == (None, (), ())
        assert not plan.creates or refused
        self._check_settled()
        self._check_sleep(plan)

    def _check_settled(self) -> None:
        world, view = self.world, self.world.view()
        ours = [pod for pod in world.ours().values() if not pod.deleting]
        if final(world.job.status):
            assert all(pod.finished for pod in ours)
            return
        if world.job.spec.suspend:
            assert not ours
            return
        if any(map(view.incident, view.gangs)) or world.refusal or view.strangers or view.surplus:
            return
        if restart.pause(world.job.status.restarts, world.now) or world.condition("Blocked") == CONFLICT:
            return
        for gang in view.gangs:
            assert {pod.attempt for pod in gang.pods.values() if not pod.deleting} <= {gang.attempt}
            assert all(s.attempt == gang.attempt for s in world.job.status.slices if s.index in gang.slices)
            assert gang.stale or not gang.absent

    def _check_sleep(self, plan: Plan) -> None:
        """Nothing is to be done before the time that was asked for."""
        world, then = self.world, self.world.now
        world.now += timedelta(seconds=0.99 * plan.requeue_after if plan.requeue_after else 1e6)
        early = world.plan()
        world.now = then
        assert (early.status, early.deletes, early.applies) == (None, (), ())
        assert early.creates == plan.creates

    # --- the scheduler and the kubelets

    def bind(self, most: int) -> None:
        free = [name for name in self.living() if not self.world.pods[name].spec.node_name]
        for name in free[:most]:
            self.world.set_pod(name, **STARTING)

    def become_ready(self, most: int) -> None:
        for name in self.bound()[:most]:
            self.world.set_pod(name, **RUNNING)

    @rule(most=st.integers(1, 6), ready=st.booleans())
    def start_some(self, most: int, ready: bool) -> None:
        self.bind(most)
        if ready:
            self.become_ready(most)

    @rule()
    def start_all(self) -> None:
        self.world.settle()
        self.bind(99)
        self.become_ready(99)
        self.world.settle()

    @rule(
        data=st.data(), code=st.sampled_from([1, 3, 77, 137]), ago=st.integers(0, 20), reported=st.booleans()
    )
    def fail(self, data: st.DataObject, code: int, ago: int, reported: bool) -> None:
        at = self.world.now - timedelta(seconds=ago, milliseconds=ago)
        message = report("UserError", code, at, error="index out of range") if reported else ""
        for name in self.victims(data):
            self.world.set_pod(name, **terminated(code, message, at=at))

    @rule(data=st.data(), together=st.booleans())
    def succeed(self, data: st.DataObject, together: bool) -> None:
        for name in self.bound() if together else self.victims(data):
            self.world.set_pod(name, **terminated(0, at=self.world.now))

    @rule(data=st.data(), reason=st.sampled_from(DISRUPTIONS))
    def disrupt(self, data: st.DataObject, reason: str) -> None:
        target = {"type": "DisruptionTarget", "status": "True", "reason": reason}
        target["lastTransitionTime"] = stamp(self.world.now)
        for name in self.victims(data):
            self.world.set_pod(name, **(RUNNING | {"conditions": [target]}))
            self.world.delete_pod(name)

    @rule(data=st.data())
    @precondition(lambda self: self.world.pods)
    def delete(self, data: st.DataObject) -> None:
        self.world.delete_pod(self.some(data, *self.world.pods))

    @rule(most=st.integers(1, 6), gone=st.booleans())
    def obey(self, most: int, gone: bool) -> None:
        """Pods that are being deleted end; and then are gone."""
        for name in [name for name, pod in self.world.pods.items() if pod.deleting][:most]:
            if gone:
                self.world.vanish(name)
            else:
                told = report(None, 143, self.world.now, terminated=True)
                self.world.set_pod(name, **terminated(143, told, at=self.world.now))

    # --- people

    @rule(data=st.data())
    def meddle(self, data: st.DataObject) -> None:
        """One rule for all of it, as it happens more rarely than the rest."""
        deeds = [
            self.suspend,
            self.change_shape,
            self.change_template,
            self.change_policy,
            self.delete_services,
        ]
        deeds += [
            self.find_no_node,
            self.change_pace,
            self.take_a_name,
            self.give_the_names_back,
            self.change_quota,
            self.lose_status,
        ]
        data.draw(st.sampled_from(deeds))(data)

    def find_no_node(self, data: st.DataObject) -> None:
        for name in self.living():
            if not self.world.pods[name].spec.node_name:
                self.world.set_pod(name, node=None, phase="Pending", conditions=[UNSCHEDULABLE])

    def change_pace(self, data: st.DataObject) -> None:
        self.world.keep_deleted = not self.world.keep_deleted

    def suspend(self, data: st.DataObject) -> None:
        self.world.patch_spec(suspend=not self.world.job.spec.suspend)

    def change_shape(self, data: st.DataObject) -> None:
        """Allowed until the start, and once a suspension was seen; nobody waits for the pods to be gone."""
        suspended = self.world.job.spec.suspend
        self.world.patch_spec(suspend=True)
        self.world.step()
        if self.world.job.status.start_time is None:
            self.world.patch_spec(tpu=data.draw(tpus(max_hosts=2)))
        self.world.patch_spec(suspend=suspended)

    def change_template(self, data: st.DataObject) -> None:
        specs = [{"subdomain": "mesh"}, {"subdomain": "grid"}, {"restartPolicy": "Always"}, {}]
        self.world.patch_spec(template={"spec": data.draw(st.sampled_from(specs))})

    def change_policy(self, data: st.DataObject) -> None:
        """The budget stays: a smaller one than is used up already is another story."""
        budget = self.world.job.spec.failure_policy.max_restarts
        self.world.patch_spec(failurePolicy=data.draw(policies()) | {"maxRestarts": budget})

    def delete_services(self, data: st.DataObject) -> None:
        self.world.services.clear()

    def take_a_name(self, data: st.DataObject) -> None:
        """A pod of somebody else, such as a namesake's that is not gone yet."""
        members = {m.name for gang in self.world.view().gangs for m in gang.members} - self.world.pods.keys()
        if members:
            name = self.some(data, *members)
            self.world.pods[name] = decode_pod({"metadata": {"name": name, "uid": "theirs", "labels": {}}})

    def give_the_names_back(self, data: st.DataObject) -> None:
        for name in [name for name, pod in self.world.pods.items() if pod.metadata.owner_uid != UID]:
            del self.world.pods[name]

    def change_quota(self, data: st.DataObject) -> None:
        self.world.quota = data.draw(st.sampled_from([0, 3, 5, 99]))

    def lose_status(self, data: st.DataObject) -> None:
        World.set_status(self.world, {})

    @rule(seconds=st.sampled_from([0.3, 1, 11, 61]))
    def wait(self, seconds: float) -> None:
        self.world.now += timedelta(seconds=seconds)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.settles()


TestJob = JobMachine.TestCase


@given(spec=specs(max_hosts=16))
def test_a_new_job_gets_its_service_and_all_its_pods_at_once(spec: dict[str, Any]) -> None:
    world = Checked(job(**spec | {"suspend": False}))
    plan = world.plan()
    shape = world.view().spec.shape
    pods = [m for m in plan.creates if m["kind"] == "Pod"]
    assert len(pods) == spec["tpu"]["slices"] * shape.hosts + ("head" in spec)
    assert [m["kind"] for m in plan.creates if m["kind"] != "Pod"] == ["Service"]

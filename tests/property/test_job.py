"""A TPUJob in a world in which anything may happen, and an operator that may end between any two writes."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.builders import (
    RUNNING,
    STARTING,
    UID,
    World,
    decode_pod,
    ended,
    job,
    lives,
    report,
    stamp,
    terminated,
)
from tests.property.promises import Checked, final
from tests.property.strategies import policies, specs, tpus
from tpu_operator.core import restart
from tpu_operator.core.snapshot import Node

if TYPE_CHECKING:
    from tpu_operator.core.plan import Plan

CONFLICT = "True/EnvironmentConflict"
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/9 nodes"}
SPECS = specs(max_hosts=2)
DISRUPTIONS = ["PreemptionByScheduler", "EvictionByEvictionAPI", "DeletionByPodGC"]
LABELS = {"cloud.google.com/gke-nodepool": "pool-1"}
NODES = ["node-0", "node-1", "node-2"]
OUT_OF_SERVICE = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}
CAUSES = ["UserError", "UserError", "OutOfMemory", "Hang", "TPUFault"]


class JobMachine(RuleBasedStateMachine):
    """What kubelets, the scheduler, people and clocks do, in any order."""

    world: Checked
    reaction: str
    """What the operator does by itself after everything that happens."""

    @initialize(spec=SPECS, reaction=st.sampled_from(["settles", "passes", ""]), slow=st.booleans())
    def start(self, spec: dict[str, Any], reaction: str, slow: bool) -> None:
        self.ends: dict[str, list[dict[str, Any]]] = {}
        """By pod, how its container has ended so far."""
        self.world = Checked(job(**spec))
        for name in NODES:
            self.put_node(name)
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

    def put_node(self, name: str, ready: str = "True", *taints: dict[str, str], cordon: bool = False) -> None:
        """A node that has been in that state for a minute."""
        since = stamp(self.world.now - timedelta(seconds=61))
        wire = {
            "metadata": {"name": name, "labels": LABELS},
            "spec": {"taints": taints, "unschedulable": cordon},
            "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}]},
        }
        self.world.nodes[name] = msgspec.convert(wire, Node)

    def tell(self, name: str, **status: Any) -> None:
        """What the kubelet of a pod's node says of it; a pod without a node gets one."""
        node = self.world.pods[name].spec.node_name or NODES[sum(map(ord, name)) % len(NODES)]
        self.world.set_pod(name, node=node, **status)

    def some(self, data: st.DataObject, *names: str) -> str:
        return data.draw(st.sampled_from(sorted(names)))

    def living(self) -> list[str]:
        return [name for name, pod in self.world.pods.items() if not pod.finished]

    def bound(self) -> list[str]:
        return [name for name in self.living() if self.world.pods[name].spec.node_name]

    def victims(self, data: st.DataObject, most: int = 1) -> list[str]:
        """Some of the pods that something can happen to, if there are any."""
        if not self.bound():
            self.start_all()
        if not self.bound():
            return []
        return data.draw(
            st.lists(st.sampled_from(sorted(self.bound())), min_size=1, max_size=most, unique=True)
        )

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
        world.check_known_root()
        ours = [pod for pod in world.ours().values() if not pod.deleting]
        if final(world.job.status):
            assert all(pod.finished for pod in ours)
            return
        if world.job.spec.suspend:
            assert {pod.name for pod in ours} <= {
                name for gang in view.gangs if gang.succeeded for name in gang.pods
            }
            return
        if any(map(view.incident, view.gangs)) or world.refusal or view.strangers or view.surplus:
            return
        if restart.pause(world.job.status.restarts, world.now) or world.condition("Blocked") == CONFLICT:
            return
        for gang in view.gangs:
            assert {pod.attempt for pod in gang.pods.values() if not pod.deleting} <= {gang.attempt}
            assert all(s.attempt == gang.number for s in world.job.status.slices if s.index in gang.slices)
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
            self.tell(name, **STARTING)

    def become_ready(self, most: int) -> None:
        for name in self.bound()[:most]:
            ends = self.ends.get(self.world.pods[name].metadata.uid)
            self.tell(name, **(lives(*ends, ready=True) if ends else RUNNING))

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
        data=st.data(),
        code=st.sampled_from([1, 3, 77, 137]),
        agos=st.lists(st.integers(0, 20), min_size=1, max_size=3),
        cause=st.sampled_from([*CAUSES, ""]),
    )
    def fail(self, data: st.DataObject, code: int, agos: list[int], cause: str) -> None:
        """One host fails, or several do before anybody looks."""
        error = data.draw(st.sampled_from(["index out of range", "not a number"]))
        for name, ago in zip(self.victims(data, len(agos)), agos, strict=False):
            at = self.world.now - timedelta(seconds=ago, milliseconds=ago)
            message = report(cause, code, at, error=error) if cause else ""
            self.tell(name, **terminated(code, message, at=at))

    @rule(
        data=st.data(),
        cause=st.sampled_from([*CAUSES, ""]),
        ago=st.integers(0, 20),
        late=st.integers(0, 1),
        state=st.sampled_from(["terminated", "waiting", "running"]),
    )
    def fail_in_place(self, data: st.DataObject, cause: str, ago: int, late: int, state: str) -> None:
        """A container fails, and its kubelet starts it again, where it does that."""
        at = self.world.now - timedelta(seconds=ago, milliseconds=ago)
        gangs = self.world.view().gangs
        for name in self.victims(data):
            pod = self.world.pods[name]
            if not pod.restartable or pod.succeeded:
                continue
            (number,) = [gang.number for gang in gangs if gang.has_member(name)]
            message = report(cause, 1, at, error="x", attempt=max(0, number - late)) if cause else ""
            ends = self.ends.setdefault(pod.metadata.uid, [])
            ends.append(ended(1, message, at))
            self.tell(name, **lives(*ends, now=state, ready=state == "running"))

    @rule(data=st.data(), together=st.booleans())
    def succeed(self, data: st.DataObject, together: bool) -> None:
        for name in self.bound() if together else self.victims(data):
            self.tell(name, **terminated(0, at=self.world.now))

    @rule(data=st.data(), reason=st.sampled_from(DISRUPTIONS))
    def disrupt(self, data: st.DataObject, reason: str) -> None:
        target = {"type": "DisruptionTarget", "status": "True", "reason": reason}
        target["lastTransitionTime"] = stamp(self.world.now)
        for name in self.victims(data):
            self.tell(name, **(RUNNING | {"conditions": [target]}))
            self.world.delete_pod(name)

    @rule(data=st.data(), ready=st.sampled_from(["True", "False", "Unknown"]), shut=st.booleans())
    def lose_node(self, data: st.DataObject, ready: str, shut: bool) -> None:
        """A node is lost, or comes back, perhaps cordoned."""
        taints = [OUT_OF_SERVICE] if shut and ready != "True" else []
        self.put_node(self.some(data, *NODES), ready, *taints, cordon=shut)

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
                self.tell(name, **terminated(143, told, at=self.world.now))

    # --- people

    @rule(data=st.data())
    def meddle(self, data: st.DataObject) -> None:
        """One rule for all of it, as it happens more rarely than the rest."""
        deeds = [
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

    @rule()
    def suspend(self) -> None:
        self.world.patch_spec(suspend=not self.world.job.spec.suspend)

    def change_shape(self, data: st.DataObject) -> None:
        """Allowed until the start, and once a suspension was seen; nobody waits for the pods to be gone."""
        suspended = self.world.job.spec.suspend
        self.world.patch_spec(suspend=True)
        self.world.step()
        status = self.world.job.status
        if status.start_time is None and not final(status):
            self.world.patch_spec(tpu=data.draw(tpus(max_hosts=2)))
        self.world.patch_spec(suspend=suspended)

    def change_template(self, data: st.DataObject) -> None:
        specs = [{"subdomain": "mesh"}, {"subdomain": "grid"}, {"restartPolicy": "Always"}, {}]
        self.world.patch_spec(template={"spec": data.draw(st.sampled_from(specs))})

    def change_policy(self, data: st.DataObject) -> None:
        """The budget stays: a smaller one than is used up already is another story."""
        budget = self.world.job.spec.failure_policy.max_restarts
        self.world.patch_spec(failurePolicy=data.draw(policies()) | {"maxRestarts": budget})
        self.world.new_rules = True

    def delete_services(self, data: st.DataObject) -> None:
        self.world.services.clear()

    def take_a_name(self, data: st.DataObject) -> None:
        """A pod of somebody else, such as a namesake's that is not gone yet, be it in the place of ours."""
        members = {m.name for gang in self.world.view().gangs for m in gang.members}
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

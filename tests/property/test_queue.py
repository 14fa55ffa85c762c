"""A job in a queue: Kueue, kubelets and people do as they like, and the operator ends between any writes."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.builders import RUNNING, World, terminated
from tests.queues import NAME, TEAM, V5E, Queue

if TYPE_CHECKING:
    from tpu_operator.core.plan import Plan

ENDS = {"Succeeded", "Failed"}
PAUSE = timedelta(hours=1)
"""Longer than any pause between restarts."""
WRITES = 10
"""The most that a plan of these jobs has, but for the status."""


class QueueMachine(RuleBasedStateMachine):
    """Anything that may happen to a job in a queue.

    Attributes:
        failures: of the job's own, each of which may be charged once.
    """

    queue: Queue
    failures: int
    ended: str

    @initialize(slices=st.integers(1, 2), scope=st.sampled_from(["Job", "Slice"]), slow=st.booleans())
    def start(self, slices: int, scope: str, slow: bool) -> None:
        policy = {"maxRestarts": 2, "restartScope": scope, "coalesceSeconds": 0}
        self.queue = Queue(tpu=V5E | {"slices": slices}, failurePolicy=policy)
        self.world.keep_deleted = slow
        self.failures, self.ended = 0, ""

    @property
    def world(self) -> World:
        return self.queue.world

    @property
    def admitted(self) -> bool:
        found = self.world.workloads.get(NAME)
        return found is not None and found.admitted

    def asked(self) -> bool:
        return NAME in self.world.workloads

    def decide(self) -> Plan:
        """What the operator decides: nothing is made unadmitted, and no quota given back too early."""
        plan = self.world.plan()
        made = [m for m in plan.creates if m["kind"] != "Workload"]
        queued = self.world.job.spec.scheduling.queue_name
        assert not made or self.admitted or not queued
        given_back = [patch for patch in plan.patches if "admission" in patch.change.get("status", {})]
        running = [pod for pod in self.world.pods.values() if not pod.finished]
        assert not given_back or not running
        return plan

    @rule(writes=st.integers(0, WRITES + 1), status=st.booleans())
    def passes(self, writes: int, status: bool) -> None:
        """The operator decides, and ends after so many writes."""
        self.world.carry_out(self.decide(), writes, status=status and writes > WRITES)

    @rule()
    def settles(self) -> None:
        for _ in range(8):
            self.world.carry_out(self.decide())
        self.world.settle()

    @rule()
    @precondition(lambda self: self.asked())
    def admits(self) -> None:
        self.queue.admit(settle=False)

    @rule(reason=st.sampled_from(["Preempted", "AdmissionCheck", "ClusterQueueStopped"]))
    @precondition(lambda self: self.admitted)
    def evicts(self, reason: str) -> None:
        self.queue.evict(reason)

    @rule(active=st.booleans())
    @precondition(lambda self: self.asked())
    def people_decide(self, active: bool) -> None:
        self.queue.activate(active)

    @rule()
    @precondition(lambda self: self.asked())
    def people_delete_the_workload(self) -> None:
        del self.world.workloads[NAME]

    @rule(suspend=st.booleans())
    def people_suspend(self, suspend: bool) -> None:
        self.world.patch_spec(suspend=suspend)

    @rule(queue=st.sampled_from([TEAM, {"queueName": "other"}, {}]))
    def people_change_the_queue(self, queue: dict[str, Any]) -> None:
        self.world.patch_spec(scheduling=queue)

    @rule()
    def pods_run(self) -> None:
        for name, pod in self.world.pods.items():
            if not pod.finished and not pod.deleting:
                self.world.set_pod(name, **RUNNING)

    @rule(data=st.data(), exit_code=st.sampled_from([0, 0, 0, 1]))
    def pod_ends(self, data: st.DataObject, exit_code: int) -> None:
        running = sorted(n for n, p in self.world.pods.items() if not p.finished and not p.deleting)
        if running:
            name = data.draw(st.sampled_from(running))
            self.world.set_pod(name, **terminated(exit_code))
            self.failures += exit_code

    @rule()
    def pods_vanish(self) -> None:
        self.world.vanish()

    @invariant()
    def no_charge_without_a_failure(self) -> None:
        if hasattr(self, "queue"):
            assert self.world.job.status.restarts.total <= self.failures

    @invariant()
    def the_end_is_final(self) -> None:
        if hasattr(self, "queue"):
            phase = self.world.job.status.phase
            assert not self.ended or phase == self.ended
            self.ended = phase if phase in ENDS else ""

    def teardown(self) -> None:
        """In the end, with nothing in the way, it runs or has ended."""
        if not hasattr(self, "queue"):
            return
        self.world.patch_spec(suspend=False, scheduling=TEAM)
        for _ in range(6):
            self.world.now += PAUSE
            self.world.settle().vanish().settle()
            if self.asked() and self.world.job.status.phase not in ENDS:
                self.queue.activate(True)
                self.queue.admit()
            self.pods_run()
        assert self.world.settle().job.status.phase in {"Running", *ENDS}


TestQueue = QueueMachine.TestCase

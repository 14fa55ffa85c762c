"""What every decision about a TPUJob has to keep to, whatever happens.

The account of restarts is drawn up here a second time, from the policy as it is documented.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from tests.builders import UID, World
from tpu_operator.api import Condition, Failure, TPUJobStatus
from tpu_operator.core.conditions import Conditions, job_phase
from tpu_operator.core.jobview import JobView, observe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpu_operator.core.plan import Plan
    from tpu_operator.core.slicegroup import Gang
    from tpu_operator.core.snapshot import Pod

FINAL: Final = frozenset({"Succeeded", "Failed"})
OWN_DOING: Final = frozenset({"UserError", "OutOfMemory", "Hang", "StartupTimeout", "LauncherError"})
SEEN: Final = frozenset({"Starting", "Running", "Succeeded"})
"""States of slices whose pods were all on nodes."""


def final(status: TPUJobStatus) -> set[str]:
    return {c.type for c in status.conditions if c.type in FINAL and c.status == "True"}


def action(failure: Failure, world: World) -> str:
    """What the failure policy says of a failure: the first rule all of which holds, or else the default."""
    for rule in world.job.spec.failure_policy.rules:
        causes, codes, text = rule.on_causes, rule.on_exit_codes, rule.on_message
        if causes and failure.cause not in causes:
            continue
        if codes and failure.exit_code not in codes:
            continue
        if text and text not in (failure.message or ""):
            continue
        return rule.action
    return "Restart" if failure.cause in OWN_DOING else "RestartUncounted"


def _told(pod: Pod) -> dict[str, Any]:
    """What the launcher of a pod has told of its failure, if the pod has ended with it."""
    ended, over = pod.terminated, not (pod.succeeded or pod.restartable)
    told: dict[str, Any] = json.loads(ended.message) if ended and ended.message and over else {}
    return told


@dataclass
class Checked(World):
    """A world that holds every decision to what it promises."""

    new_rules: bool = False
    """The policy has changed since the last restart: what that cost can not be told from it any more."""

    @property
    def _heedless(self) -> bool:
        """Whether some failures are ignored: pods that were deleted may just be made again."""
        return any(rule.action == "Ignore" for rule in self.job.spec.failure_policy.rules)

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
            if delete.grace_seconds is None:
                assert not pod.deleting, "once is enough"
            else:
                assert pod.name in self.view().losses, "force is for nodes that are lost"

    def _check_creates(self, plan: Plan) -> None:
        pods = [m["metadata"] for m in plan.creates if m["kind"] == "Pod"]
        if not pods:
            return
        assert not final(self.job.status), "nothing is created after the end"
        assert not self.job.spec.suspend
        view = self.view()
        members = {m.name: gang for gang in (*view.gangs, *view.spares) for m in gang.members}
        assert all(name in members for name in self.ours()), "pods without a place may hold the chips"
        for metadata in pods:
            name, labels = metadata["name"], metadata["labels"]
            assert name not in self.pods, "one pod of a name"
            gang = members[name]
            attempts = {pod.attempt for pod in gang.pods.values()} | {gang.attempt}
            assert attempts == {int(labels["tpu-operator.dev/attempt"])}, "old pods have to be gone"
            states = [s for s in self.job.status.slices if s.index in gang.slices]
            ran = bool(states) and all(s.state in SEEN and s.attempt == gang.number for s in states)
            assert not ran or self._heedless, "what is gone once all had nodes takes its attempt along"

    def _check_status_write(self, plan: Plan) -> None:
        assert plan.status is None or plan.status != self.job.status.wire(), "writes change something"

    def set_status(self, status: dict[str, Any]) -> None:
        old, view = self.job.status, self.view()
        super().set_status(status)
        new = self.job.status
        self._check_account(old, new, view)
        self._check_end(old, new, view)
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
        tpu = self.job.spec.tpu
        assert [s.index for s in status.slices] == list(range(tpu.slices + tpu.spare_slices))

    def _check_step(self, old: TPUJobStatus, new: TPUJobStatus) -> None:
        assert final(old) <= final(new), "the end is final"
        if old.slices:
            before = {s.index: s.attempt for s in old.slices}
            assert all(s.attempt >= before.get(s.index, 0) for s in new.slices), "attempts only count up"
            kept = {s.index: s.restarts_in_place for s in old.slices}
            assert all(s.restarts_in_place >= kept.get(s.index, 0) for s in new.slices)
            assert all(s.restarts_in_place <= s.attempt for s in new.slices)
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

    def _check_account(self, old: TPUJobStatus, new: TPUJobStatus, view: JobView) -> None:
        """A restart is charged once, to the failure that came first, as the policy has it."""
        found, before, after = new.last_failure, old.restarts, new.restarts
        if old.last_failure is not None and (under_way := view.restarted(old.last_failure)):
            self._check_correction(old, new, under_way)
            return
        if after.total == before.total:
            return
        assert found is not None
        assert after.total == before.total + 1, "one restart at a time"
        does = action(found, self)
        assert does in {"Restart", "RestartUncounted"}, found
        assert after.counted == before.counted + (does == "Restart")
        charged = {**before.by_cause, found.cause: before.by_cause.get(found.cause, 0) + 1}
        assert after.by_cause == charged
        (gang,) = [gang for gang in view.gangs if gang.has_member(found.pod)]
        self._check_scope(old, new, view, found)
        assert found.attempt == gang.number, "what an old attempt does is over"
        self._check_root(gang.current, found)
        self._check_cause(found)
        if view.incident(gang):
            assert found == old.last_failure or found.cause != "PodDeleted", "we took that pod down ourselves"
        self.new_rules = False

    def _check_correction(self, old: TPUJobStatus, new: TPUJobStatus, gang: Gang) -> None:
        """An earlier root cause of the restart under way takes the place of the one that was charged."""
        wrong, right = old.last_failure, new.last_failure
        assert wrong is not None
        assert right is not None
        corrected = gang.has_member(right.pod) and right.attempt == wrong.attempt
        if not corrected or right == wrong or self.new_rules:
            return
        assert right.time is not None
        assert wrong.time is not None
        assert right.time <= wrong.time
        by_cause = {**old.restarts.by_cause, wrong.cause: old.restarts.by_cause[wrong.cause] - 1}
        counted = old.restarts.counted - (action(wrong, self) == "Restart")
        if not final(new):
            by_cause[right.cause] = by_cause.get(right.cause, 0) + 1
            counted += action(right, self) == "Restart"
        assert new.restarts.by_cause == {cause: count for cause, count in by_cause.items() if count}
        assert new.restarts.counted == counted

    def check_known_root(self) -> None:
        """Nothing that a host of the attempt given up has told came before what is on record."""
        last = self.job.status.last_failure
        gang = self.view().restarted(last) if last is not None else None
        if last is not None and gang is not None:
            pods = [pod for pod in gang.pods.values() if pod.attempt + gang.in_place == last.attempt]
            self._check_root(pods, last)

    def _check_scope(self, old: TPUJobStatus, new: TPUJobStatus, view: JobView, found: Failure) -> None:
        """A failure restarts its slice or all of them, as the policy has it; that of a head slice 0."""
        alone = self.job.spec.failure_policy.restart_scope == "Slice" and self.job.spec.run.launcher != "ray"
        expected = {found.slice or 0} if alone else {*range(self.job.spec.tpu.slices)}
        # Without a status, each gang's number is read off its pods.
        before = {index: gang.number for gang in view.gangs for index in gang.slices}
        before |= {s.index: s.attempt for s in old.slices}
        began = {s.index for s in new.slices if s.index in before and s.attempt != before[s.index]}
        assert began == expected

    def _check_cause(self, found: Failure) -> None:
        """Who was told to stop has not failed, and no node is lost that is well."""
        pod = self.pods.get(found.pod or "")
        if pod is None:
            return
        if _told(pod).get("terminated"):
            assert found.cause not in OWN_DOING
        if found.cause == "NodeLost" and pod.disruption_target is None:
            node = self.nodes[pod.spec.node_name]
            assert node.ready.status != "True" or node.spec.taints

    def _check_root(self, pods: Iterable[Pod], found: Failure) -> None:
        """No host has told of an earlier failure that matters."""
        assert found.time is not None
        for pod in pods:
            told = _told(pod)
            if not told or told.get("terminated"):
                continue
            failure = Failure(cause=told["cause"], exit_code=told["exitCode"], message=told["error"])
            if action(failure, self) != "Ignore":
                assert found.time.timestamp() <= told["time"] + 1e-3, (found, told)

    def _check_end(self, old: TPUJobStatus, new: TPUJobStatus, view: JobView) -> None:
        """A job ends for a reason."""
        ended = [c for c in new.conditions if c.type in final(new) - final(old)]
        if not ended:
            return
        found = new.last_failure
        spec, reason = self.job.spec, ended[0].reason
        if reason in {"MaxRestartsReached", "FailureRule"} and new.restarts.total == old.restarts.total:
            self._check_patience(found)
        if reason == "Completed":
            self._check_success(view, old)
        elif reason == "MaxRestartsReached":
            assert found is not None
            assert action(found, self) == "Restart"
            assert new.restarts.counted == spec.failure_policy.max_restarts, "there was something left"
        elif reason == "FailureRule":
            assert found is not None
            assert action(found, self) == "FailJob"
        else:
            assert reason == "DeadlineExceeded"
            limit, start = spec.active_deadline_seconds, old.start_time
            assert not spec.suspend
            assert limit is not None
            assert start is not None
            assert self.now >= start + timedelta(seconds=limit)

    def _check_patience(self, found: Failure | None) -> None:
        """The end waits until all hosts have had the time to say whether they failed earlier."""
        if found is None or found.time is None or all(pod.finished for pod in self.ours().values()):
            return
        assert self.now >= found.time + timedelta(seconds=self.job.spec.failure_policy.coalesce_seconds)

    def _check_success(self, view: JobView, old: TPUJobStatus) -> None:
        spec = self.job.spec
        if spec.success_policy == "Leader":
            headed = any(member.slice_index is None for gang in view.gangs for member in gang.members)
            leader = self.pods["train-head" if headed else "train-0-0"]
            assert leader.succeeded or any(leader.name in gang.ignored for gang in view.gangs)
            return
        done = {s.index for s in old.slices if s.state == "Succeeded"}
        for gang in view.gangs:
            for member in gang.members:
                if member.slice_index in done:
                    continue
                pod = self.pods[member.name]
                assert pod.attempt == gang.attempt
                assert pod.succeeded or pod.name in gang.ignored

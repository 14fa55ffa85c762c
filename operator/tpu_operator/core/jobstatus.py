"""The next status of a TPUJob, drafted while the decision about it is made and written once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tpu_operator.api import (
    BlockedReason,
    ConditionType,
    Hosts,
    Pending,
    SliceState,
    SliceStatus,
    TPUJobStatus,
)
from tpu_operator.core import pending, restart
from tpu_operator.core.conditions import Conditions, job_phase
from tpu_operator.core.plan import Event, Observation, Plan
from tpu_operator.core.sizes import clipped
from tpu_operator.core.slicegroup import slice_state, spare_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpu_operator.api import Condition, Failure, Restarts
    from tpu_operator.core.jobview import JobView
    from tpu_operator.core.pending import Hold
    from tpu_operator.core.plan import Delete, Manifest, Patch
    from tpu_operator.core.slicegroup import Gang

WARNINGS: Final = frozenset({ConditionType.FAILED, ConditionType.RESTARTING, ConditionType.BLOCKED})
OVERRIDDEN: Final = "EnvironmentOverridden"
BY_USER: Final = "Suspended"
"""Reason of a suspension that the job's spec asks for."""
MAX_MESSAGE: Final = 256
MAX_REASON: Final = 64
MESSAGES: Final = 128 << 10
"""Bytes that the messages of all slices have together: the API server keeps an object of 1.5 MiB at most, and
everything else of 1,024 slices that have failed takes half of that."""
FLEETING: Final = frozenset({BlockedReason.UNSCHEDULABLE, BlockedReason.CAPACITY_IN_USE})
"""What the scheduler says of a gang is over in a moment where it has only not got to all of its pods."""
NOT_BLOCKED: Final = "NotBlocked"
UNDER_WAY: Final = frozenset(
    {SliceState.PENDING, SliceState.STARTING, SliceState.RUNNING, SliceState.RESTARTING}
)
PASSING: Final = (ConditionType.RESTARTING, ConditionType.BLOCKED, ConditionType.MAINTENANCE_SCHEDULED)
"""Conditions that are over with the pods."""
SUMMED_UP: Final = (ConditionType.FAILED, ConditionType.BLOCKED, ConditionType.RESTARTING)
"""Conditions that `status.reason` and `status.message` speak of, the first that is true."""


class Draft:
    """Collects what is decided about a job; `plan` turns it into a Plan.

    Args:
        view: the job as it is.
    """

    def __init__(self, view: JobView) -> None:
        self._view = view
        meta = view.job.metadata
        self.conditions = Conditions(view.status.conditions, meta.generation, view.now)
        self.restarts: Restarts = view.status.restarts
        self._last_failure = view.status.last_failure
        self._old_slices = {s.index: s for s in view.status.slices}
        self._slices = view.spec.num_slices + len(view.spares)
        self._changes: dict[str, Any] = {}
        self._bumped: dict[int, SliceState] = {}
        self._kept: set[int] = set()
        self._failures: dict[int, Failure | None] = {}
        self._homes: dict[int, str | None] = {}
        self._told: list[Event] = []
        self._final: SliceState | None = None
        self._hold: Hold | None = None
        self._requeue: list[float] = []
        self._asked: tuple[Manifest, ...] = ()
        self._observations: list[Observation] = []

    def requeue(self, seconds: float | None) -> None:
        """Look again after that time at the latest, if one is given."""
        if seconds is not None:
            self._requeue.append(seconds)

    def ask(self, creates: Iterable[Manifest]) -> None:
        """Have these made ahead of all else, whatever is decided."""
        self._asked = tuple(creates)

    def record(self, failure: Failure) -> None:
        """Put the root cause of a gang's failure on record."""
        self._last_failure = failure
        if failure.slice is not None:
            self._failures[failure.slice] = self._short(failure)
        if not self.conditions.is_true(ConditionType.RESTARTING):
            self.conditions.set(ConditionType.READY, False, "HostFailed", describe(failure))

    def take_back(self, failure: Failure) -> None:
        """Forget that the restart under way was charged for that failure."""
        self.restarts = restart.refund(self.restarts, failure, self._view.job.spec.failure_policy)

    def charge(self, failure: Failure) -> None:
        """Put the failure on record as the root cause of the restart under way."""
        self.restarts = restart.charge(
            self.restarts, failure, self._view.job.spec.failure_policy, self._view.now
        )
        self.record(failure)
        self.conditions.set(ConditionType.RESTARTING, True, failure.cause, describe(failure))

    def restart(self, gang: Gang, failure: Failure, *, in_place: bool = False) -> Plan:
        """Give up the gang's attempt and go on to the next, with other pods or in those that it has."""
        self.charge(failure)
        self._bump([gang], SliceState.RESTARTING, in_place=in_place)
        self._await_attempt()
        return self.plan()

    def renew(self, gangs: list[Gang], reason: str, message: str, *, in_place: bool = False) -> Plan:
        """Go on to the gangs' next attempt, for a reason that is no failure; nothing is charged."""
        self._bump(gangs, SliceState.RESTARTING, in_place=in_place)
        self.conditions.set(ConditionType.RESTARTING, True, reason, message)
        self._await_attempt()
        return self.plan()

    def hesitate(self) -> None:
        """Let the attempt that follows wait as restarts do, though nothing is charged."""
        self.restarts = restart.uncharged(self.restarts, self._view.now)

    def hand_over(self, spare: int, index: int, pool: str) -> None:
        """Give up a spare's attempt, and its node pool to another slice."""
        self._bumped[spare] = SliceState.PENDING
        self._homes |= {spare: None} | ({index: pool} if pool else {})
        self._failures[spare] = None
        where = f" of node pool {pool}" if pool else ""
        self._told.append(
            Event(False, "SpareUsed", f"slice {index} takes the place{where} of spare slice {spare}")
        )

    def assign(self, homes: Mapping[int, str]) -> None:
        """Give slices node pools, which their next attempt goes to."""
        self._homes |= homes

    def replace_spare(self, spare: int, failure: Failure | None) -> None:
        """Give up the attempt of a spare that is of no use as it is."""
        self._bumped[spare] = SliceState.PENDING
        self._homes[spare] = None
        self._failures[spare] = self._short(failure) if failure else None

    @property
    def spares_changed(self) -> bool:
        """Whether the attempts of spares were given up."""
        return bool(self._bumped)

    def suspend(self, active: list[Gang]) -> None:
        """Stop, or stay stopped; pods of the gangs that are active become leftovers."""
        self._stop(active, SliceState.SUSPENDED, BY_USER, "spec.suspend is true")
        self._final = SliceState.SUSPENDED
        self.conditions.set(ConditionType.READY, False, "Suspended", "spec.suspend is true")

    def wait_in_queue(self, active: list[Gang], hold: Hold, reason: str) -> None:
        """Stay without pods until the queue admits the job; the pods of active gangs become leftovers."""
        before = self.conditions.get(ConditionType.SUSPENDED)
        if active or self._view.status.start_time is not None:
            self._stop(active, SliceState.PENDING, reason, hold.message)
        elif before is not None and before.reason == BY_USER:
            self.clear(ConditionType.SUSPENDED, "Resumed")
        message = "the queue has not admitted the job"
        self.conditions.set(ConditionType.READY, False, hold.reason, message)
        self._hold = hold
        self.conditions.set(ConditionType.BLOCKED, True, hold.reason, hold.message)

    def succeed(self) -> Plan:
        """End the job well."""
        self._final = SliceState.SUCCEEDED
        self._end(ConditionType.SUCCEEDED, "Completed", "the job has succeeded")
        return self.plan()

    def fail(self, reason: str, message: str) -> Plan:
        """End the job badly."""
        self._final = SliceState.FAILED
        self._end(ConditionType.FAILED, reason, message)
        return self.plan()

    def progress(self, conflicts: list[str], overrides: list[str], hold: Hold | None) -> None:
        """Say how far the present attempt has come, and what holds it up."""
        gangs = self._view.gangs
        if self._view.status.start_time is None:
            self._changes["start_time"] = self._view.now
        self.clear(ConditionType.SUSPENDED, "Resumed")
        if not any(gang.absent or gang.in_place_under_way for gang in gangs):
            self.clear(ConditionType.RESTARTING, "Restarted")
        self._set_ready(gangs)
        if conflicts:
            hold = pending.conflicting(conflicts)
        self._hold = hold
        if hold is not None:
            self.conditions.set(ConditionType.BLOCKED, True, hold.reason, hold.message)
        elif overrides:
            message = f"the job sets {', '.join(overrides)} itself; its values stand"
            self.conditions.set(ConditionType.BLOCKED, False, OVERRIDDEN, message)
        elif self.conditions.is_true(ConditionType.BLOCKED):
            self.conditions.set(ConditionType.BLOCKED, False, NOT_BLOCKED)

    def plan(
        self,
        *,
        applies: Iterable[Manifest] = (),
        deletes: Iterable[Delete] = (),
        creates: Iterable[Manifest] = (),
        patches: Iterable[Patch] = (),
    ) -> Plan:
        """The effects given, and the status with the events that its changes are worth."""
        status = self._status()
        old = self._view.status
        return Plan(
            applies=tuple(applies),
            deletes=tuple(deletes),
            creates=(*self._asked, *creates),
            patches=tuple(patches),
            status=status.wire() if status != old else None,
            progress=f"{status.phase} {status.ready}" if _only_progress(old, status) else "",
            events=(*_events(old.conditions, status.conditions), *self._told),
            observations=tuple(self._observations),
            requeue_after=min(self._requeue, default=None),
        )

    def _stop(self, active: list[Gang], state: SliceState, reason: str, message: str) -> None:
        """Give the attempts of active gangs up, and let no time count that the job does not run."""
        self._bump(active, state)
        self._changes |= {"start_time": None}
        self.conditions.set(ConditionType.SUSPENDED, True, reason, message)
        for kind in PASSING:
            self.clear(kind, reason)

    def _bump(self, gangs: Iterable[Gang], state: SliceState, *, in_place: bool = False) -> None:
        indexes = [index for gang in gangs for index in gang.slices]
        self._bumped |= dict.fromkeys(indexes, state)
        if in_place:
            self._kept.update(indexes)
            return
        blocked = self.conditions.get(ConditionType.BLOCKED)
        if blocked is not None and blocked.reason == OVERRIDDEN:
            # Said of the pods that are given up now; of the next ones it may not be true.
            self.conditions.set(ConditionType.BLOCKED, False, NOT_BLOCKED)

    def _await_attempt(self) -> None:
        self.conditions.set(ConditionType.READY, False, "Restarting", "the next attempt has not started yet")

    def clear(self, kind: ConditionType, reason: str) -> None:
        """Make a condition false, if it is true."""
        if self.conditions.is_true(kind):
            self.conditions.set(kind, False, reason)

    def _end(self, kind: ConditionType, reason: str, message: str) -> None:
        self._changes["completion_time"] = self._view.now
        for other in PASSING:
            self.clear(other, reason)
        self.conditions.set(ConditionType.READY, False, reason, message)
        self.conditions.set(kind, True, reason, message)

    def _set_ready(self, gangs: tuple[Gang, ...]) -> None:
        if all(gang.ready for gang in gangs):
            self.conditions.set(ConditionType.READY, True, "AllHostsReady", "all hosts are ready")
            self._observe_start()
            self.restarts = self.restarts.model_copy(update={"since_ready": 0})
        elif self.conditions.is_true(ConditionType.RESTARTING):
            self._await_attempt()
        elif all(gang.scheduled for gang in gangs):
            self.conditions.set(
                ConditionType.READY, False, "Starting", "all hosts have nodes, not all are ready"
            )
        else:
            self.conditions.set(ConditionType.READY, False, "Pending", "not all hosts have nodes yet")

    def _observe_start(self) -> None:
        """Measure how long it took until all hosts were ready, when they have just become so."""
        status, now = self._view.status, self._view.now
        old = next((c for c in status.conditions if c.type == ConditionType.READY), None)
        if old is not None and old.status == "True":
            return
        restarted = self.restarts.last_time
        if restarted is not None and self.restarts.since_ready > 0 and self._last_failure is not None:
            seconds = (now - restarted).total_seconds()
            self._observations.append(
                Observation("gang_restart_seconds", seconds, (self._last_failure.cause,))
            )
        elif self.restarts.total == 0 and not self._was_ready(old):
            made = [time for pod in self._view.current if (time := pod.metadata.creation_timestamp)]
            seconds = (now - min(made, default=status.start_time or now)).total_seconds()
            self._observations.append(Observation("gang_start_seconds", seconds))

    def _was_ready(self, old: Condition | None) -> bool:
        """Whether hosts have only become ready again: they were not unready ever since the job began."""
        began, since = self._view.status.start_time, old.last_transition_time if old else None
        return began is not None and since is not None and since > began

    def _status(self) -> TPUJobStatus:
        gangs, count = (*self._view.gangs, *self._view.spares), self._view.spec.num_slices
        slices = [self._slice(gang, index) for gang in gangs for index in gang.slices]
        slices.sort(key=lambda s: s.index)
        desired = count * self._view.spec.shape.hosts
        ready = sum(int(s.ready.split("/")[0]) for s in slices if s.index < count)
        told = next((c for kind in SUMMED_UP if (c := self._true(kind))), None)
        return self._view.status.model_copy(
            update={
                "observed_generation": self._view.job.metadata.generation,
                "phase": job_phase(self.conditions),
                "reason": told.reason if told else None,
                "message": told.message if told else None,
                "conditions": self.conditions.all(),
                "ready": f"{ready}/{desired}",
                "hosts": Hosts(desired=desired, ready=ready),
                "slices": slices,
                "restarts": self.restarts,
                "last_failure": self._last_failure,
                "pending": self._pending(),
                **self._changes,
            }
        )

    def _true(self, kind: ConditionType) -> Condition | None:
        return self.conditions.get(kind) if self.conditions.is_true(kind) else None

    def _slice(self, gang: Gang, index: int) -> SliceStatus:
        hosts = self._view.spec.shape.hosts
        old = self._old_slices.get(index, SliceStatus(index=index))
        failure = self._failures.get(index, old.last_failure)
        home = self._homes.get(index, old.node_pool)
        if index in self._bumped:
            state = self._bumped[index]
            return SliceStatus(
                index=index,
                attempt=gang.number + 1,
                restarts_in_place=gang.in_place + (index in self._kept),
                in_place_since=self._view.now if index in self._kept else None,
                state=state,
                ready=f"0/{hosts}",
                node_pool=home,
                last_failure=failure,
            )
        pods = gang.by_slice[index]
        ready = hosts if index in gang.done else sum(pod.ready or gang.is_done(pod) for pod in pods)
        if gang.in_place_under_way:
            ready = 0  # kubelets are slow to see that processes have stopped
        restarting = self.conditions.is_true(ConditionType.RESTARTING) and bool(gang.absent)
        restarting = restarting or gang.in_place_under_way
        if index < self._view.spec.num_slices:
            state = slice_state(gang, index, hosts, restarting=restarting)
        else:
            state = spare_state(gang)
        # What is done alone stays so, however the others are stopped.
        kept = self._final == SliceState.SUSPENDED and state == SliceState.SUCCEEDED
        return SliceStatus(
            index=index,
            attempt=gang.number,
            restarts_in_place=gang.in_place,
            in_place_since=None if self._final or not gang.in_place_under_way else gang.in_place_since,
            state=state if kept else self._final or state,
            ready=f"{ready}/{hosts}",
            node_pool=pending.node_pool(pods, self._view.snapshot.nodes.by_name) or home,
            last_failure=failure,
        )

    def _short(self, failure: Failure) -> Failure:
        """A failure as each slice keeps it: a thousand of them have to fit into one object."""
        room = min(MAX_MESSAGE, MESSAGES // max(1, self._slices))
        message, reason = clipped(failure.message or "", room), (failure.reason or "")[:MAX_REASON]
        return failure.model_copy(update={"message": message or None, "reason": reason or None})

    def _pending(self) -> Pending | None:
        if self._hold is None:
            return None
        old = self._view.status.pending
        since = old.since if old is not None and old.reason == self._hold.reason else self._view.now
        return Pending(reason=self._hold.reason, message=self._hold.message, since=since)


def acknowledged(status: TPUJobStatus, generation: int) -> Mapping[str, Any] | None:
    """A status that says no more than before, but of this generation of the spec; None if it does already."""
    if status.observed_generation == generation:
        return None
    return status.model_copy(update={"observed_generation": generation}).wire()


def describe(failure: Failure) -> str:
    """A failure in one line for people."""
    code = f", exit code {failure.exit_code}" if failure.exit_code is not None else ""
    text = f": {failure.message}" if failure.message else ""
    return f"{failure.cause} in pod {failure.pod}{code}{text}"


def _only_progress(old: TPUJobStatus, new: TPUJobStatus) -> bool:
    """Whether a status tells of nothing but pods that have been made, bound, started and become ready."""
    known = {(c.type, c.reason, c.message) for c in old.conditions}
    restarting = {
        (c.type, c.reason, c.message)
        for c in new.conditions
        if c.type == ConditionType.RESTARTING and c.status == "True"
    }
    return restarting <= known and _milestones(old) == _milestones(new)


def _milestones(status: TPUJobStatus) -> tuple[Any, ...]:
    """What people and programs wait for in a status; that a restart is over they see by what follows it."""
    told = [
        c
        for c in status.conditions
        # What a job overrides is only seen in the pass that makes its pods.
        if (c.status == "True" and c.type not in {ConditionType.BLOCKED, ConditionType.RESTARTING})
        or (c.type == ConditionType.BLOCKED and c.reason not in {NOT_BLOCKED, *FLEETING})
    ]
    held = None if status.pending and status.pending.reason in FLEETING else status.pending
    return (
        {(c.type, c.status, c.reason, c.message) for c in told},
        (status.restarts, status.last_failure, held, status.completion_time),
        {
            (s.index, s.attempt, s.last_failure, None if s.state in UNDER_WAY else s.state)
            for s in status.slices
            if s.attempt or s.last_failure or s.state not in UNDER_WAY
        },
    )


def _events(old: Iterable[Condition], new: Iterable[Condition]) -> Iterable[Event]:
    """An event for each condition that has become true, or is true for another reason now."""
    before = {condition.type: condition for condition in old}
    for condition in new:
        last = before.get(condition.type)
        was = last is not None and last.status == "True" and last.reason == condition.reason
        if condition.status == "True" and not was:
            yield Event(
                condition.type in WARNINGS, condition.reason, f"{condition.type}: {condition.message}"
            )

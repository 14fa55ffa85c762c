"""What is decided about a TPUInference in one pass, until it becomes a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpu_operator.api import GroupState, GroupStatus
from tpu_operator.core.jobstatus import MAX_MESSAGE, describe
from tpu_operator.core.plan import Event

if TYPE_CHECKING:
    from tpu_operator.api import Failure, Rejection
    from tpu_operator.core.inference.groups import Group, GroupKey
    from tpu_operator.core.inference.rollout import Step
    from tpu_operator.core.inference.view import InferenceView
    from tpu_operator.core.inquiry import Inquiry
    from tpu_operator.core.pending import Hold


class Draft:
    """Collects decisions.

    Attributes:
        view: the object as it is.
        restarts: replicas that were restarted, in all.
        last_failure: root of the last failure.
        step: what the planner has said; None if it was not asked.
        hold: what keeps a replica from being there.
        events: what people want to read.
        inquiry: what to ask a metrics server.
        rejected: the revision of the spec, if an analysis has given it up.

    Args:
        view: the object as it is.
    """

    def __init__(self, view: InferenceView) -> None:
        self.view = view
        self.restarts = view.status.restarts
        self.last_failure = view.status.last_failure
        self.step: Step | None = None
        self.hold: Hold | None = None
        self.events: list[Event] = []
        self.inquiry: Inquiry | None = None
        self.rejected = view.rejected
        self._requeue: list[float] = []
        self._records: dict[GroupKey, GroupStatus | None] = {}

    @property
    def changed(self) -> bool:
        """Whether something was decided about a replica."""
        return bool(self._records)

    @property
    def requeue_after(self) -> float | None:
        """Seconds until time alone changes a decision."""
        return min(self._requeue, default=None)

    def requeue(self, seconds: float | None) -> None:
        """Look again after that time at the latest, if one is given."""
        if seconds is not None:
            self._requeue.append(max(0.0, seconds))

    def tell(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Have people read something."""
        self.events.append(Event(warning, reason, message))

    def reject(self, rejected: Rejection, before: str) -> None:
        """Give up the revision that the spec asks for, and go back to the one before."""
        self.rejected = rejected
        text = f"revision {rejected.revision} is rejected, back to {before}: {rejected.reason}"
        self.tell("RevisionRejected", text, warning=True)

    def restart(self, group: Group, failure: Failure) -> None:
        """Give up the attempt of a replica that has failed."""
        self.restarts += 1
        self.last_failure = failure
        since_ready = (group.record.restarts_since_ready if group.record else 0) + 1
        self._renew(group, failure.cause, restarts_since_ready=since_ready, last_failure=_short(failure))
        self.tell("ReplicaRestarted", f"replica {group.key.name}: {describe(failure)}", warning=True)

    def renew(self, group: Group, reason: str, message: str) -> None:
        """Give up the attempt of a replica for a reason that is no failure."""
        self._renew(group, reason)
        self.tell(reason, f"replica {group.key.name}: {message}")

    def refine(self, group: Group, failure: Failure) -> None:
        """Correct the root of the failure for which a replica is being restarted."""
        record = self.record(group)
        self._records[group.key] = record.model_copy(
            update={"reason": failure.cause, "last_failure": _short(failure)}
        )
        self.last_failure = failure

    def drain(self, group: Group) -> None:
        """Tell a replica to go."""
        update = {"state": GroupState.DRAINING, "since": self.view.now}
        self._records[group.key] = self.record(group).model_copy(update=update)

    def add(self, key: GroupKey) -> None:
        """Have one more replica."""
        self._records[key] = GroupStatus(name=key.name, role=key.role, revision=key.revision, index=key.index)

    def forget(self, group: Group) -> None:
        """A replica that was told to go is gone."""
        self._records[group.key] = None

    def decided(self, key: GroupKey) -> bool:
        """Whether something was decided about a replica."""
        return key in self._records

    @property
    def records(self) -> list[tuple[GroupKey, Group | None, GroupStatus]]:
        """Replicas as the status is to have them: those there are, unless forgotten, and those to come."""
        groups = {group.key: group for group in self.view.groups}
        found: list[tuple[GroupKey, Group | None, GroupStatus]] = []
        for key in sorted({*groups, *self._records}):
            group = groups.get(key)
            record = self._records.get(key)
            if group is not None and key not in self._records:
                record = self.record(group)
            if record is not None:
                found.append((key, group, record))
        return found

    def record(self, group: Group) -> GroupStatus:
        """What is on record of a replica, with what was decided."""
        known = self._records.get(group.key) or group.record
        if known is not None:
            return known
        key = group.key
        return GroupStatus(
            name=key.name, role=key.role, revision=key.revision, index=key.index, attempt=group.gang.attempt
        )

    def _renew(self, group: Group, reason: str, **changes: Any) -> None:
        update = {
            "attempt": group.gang.attempt + 1,
            "state": GroupState.RESTARTING,
            "reason": reason,
            "since": None,
            "last_restart": self.view.now,
            **changes,
        }
        self._records[group.key] = self.record(group).model_copy(update=update)


def _short(failure: Failure) -> Failure:
    """A failure as each replica keeps it: hundreds of them have to fit into one object."""
    return failure.model_copy(update={"message": failure.message[:MAX_MESSAGE] if failure.message else None})

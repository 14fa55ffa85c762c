"""Conditions: set, compared, and summed up in a phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpu_operator.api import BlockedReason, Condition, ConditionStatus, ConditionType, Phase
from tpu_operator.core.plan import Event, Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from tpu_operator.api import InferencePhase, TPUInferenceStatus, TPUJobStatus


class Conditions:
    """The conditions of one object while a decision is made about it.

    `lastTransitionTime` moves only when `status` flips, as the API conventions ask.
    """

    def __init__(self, current: Iterable[Condition], generation: int, now: datetime) -> None:
        self._before = {condition.type: condition for condition in current}
        self._by_type = dict(self._before)
        self._generation = generation
        self._now = now.replace(microsecond=0)

    def set(self, kind: str, value: bool, reason: str, message: str = "") -> None:
        """Make a condition true or false."""
        status = ConditionStatus.TRUE if value else ConditionStatus.FALSE
        old = self._before.get(kind)
        self._by_type[kind] = Condition(
            type=kind,
            status=status,
            reason=reason,
            message=message,
            observed_generation=self._generation,
            last_transition_time=old.last_transition_time if old and old.status == status else self._now,
        )

    def is_true(self, kind: str) -> bool:
        """Whether the condition is there and true."""
        condition = self._by_type.get(kind)
        return condition is not None and condition.status == "True"

    def get(self, kind: str) -> Condition | None:
        """The condition, or None."""
        return self._by_type.get(kind)

    def all(self) -> list[Condition]:
        """All of them, in the order in which they were first set."""
        return list(self._by_type.values())


def job_phase(conditions: Conditions) -> Phase:
    """One word for a TPUJob's conditions, from them alone."""
    for kind, phase in (
        (ConditionType.FAILED, Phase.FAILED),
        (ConditionType.SUCCEEDED, Phase.SUCCEEDED),
        (ConditionType.SUSPENDED, Phase.SUSPENDED),
        (ConditionType.RESTARTING, Phase.RESTARTING),
        (ConditionType.READY, Phase.RUNNING),
    ):
        if conditions.is_true(kind):
            return phase
    ready = conditions.get(ConditionType.READY)
    return Phase.STARTING if ready is not None and ready.reason == "Starting" else Phase.PENDING


def refused(
    status: TPUJobStatus | TPUInferenceStatus,
    generation: int,
    now: datetime,
    message: str,
    phase: Callable[[Conditions], Phase | InferencePhase],
) -> Plan:
    """The plan for a spec that cannot be carried out and that admission should have refused.

    Args:
        status: the status that was last written, of either kind.
        generation: the generation of the spec.
        now: the time of the decision.
        message: what is wrong, and with which field.
        phase: sums up conditions of that kind.
    """
    found = Conditions(status.conditions, generation, now)
    old = found.get(ConditionType.BLOCKED)
    found.set(ConditionType.BLOCKED, True, BlockedReason.CREATE_REFUSED, message)
    update = {
        "observed_generation": generation,
        "phase": phase(found),
        "reason": BlockedReason.CREATE_REFUSED,
        "message": message,
        "conditions": found.all(),
    }
    new = status.model_copy(update=update)
    known = old is not None and (old.status, old.reason) == ("True", BlockedReason.CREATE_REFUSED)
    news = () if known else (Event(True, BlockedReason.CREATE_REFUSED, f"Blocked: {message}"),)
    return Plan(status=new.wire() if new != status else None, events=news)

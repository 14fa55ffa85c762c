"""Conditions of a TPUInference, from its status, and the phase that sums them up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpu_operator.api import BlockedReason, GroupState, HoldGate, InferencePhase, RolloutState
from tpu_operator.api import InferenceConditionType as Type
from tpu_operator.core.conditions import Conditions
from tpu_operator.core.jobstatus import describe
from tpu_operator.core.plan import Event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpu_operator.api import Condition, GroupStatus, Rejection, RoleStatus, TPUInferenceStatus
    from tpu_operator.core.inference.view import InferenceView

STOPPED: Final = "ScaledToZero"
STARTING: Final = "Starting"
PENDING: Final = "Pending"
ROLLING: Final = "RollingOut"
SCALING: Final = "Scaling"
COMPLETE: Final = "Complete"
NO_REVISION: Final = "NoServableRevision"
ROLLED_BACK: Final = "RolledBack"
ANOTHER_TRY: Final = "another revision, or another spec.rollout.canary, is another try"
STANDING: Final = {HoldGate.PAUSE: "Paused", HoldGate.DEADLINE: "ProgressDeadlineExceeded"}
"""Holds at which a rollout does not progress, as reasons of the condition Progressing."""


def summed_up(status: TPUInferenceStatus, view: InferenceView) -> TPUInferenceStatus:
    """A status with the conditions that follow from it."""
    found = Conditions(view.status.conditions, view.inference.metadata.generation, view.now)
    _available(status, found)
    _progressing(status, found)
    _degraded(status, found, view)
    _blocked(status, found)
    reason, message = _explained(status, found)
    return status.model_copy(
        update={
            "conditions": found.all(),
            "phase": phase(found),
            "reason": reason,
            "message": message,
        }
    )


def phase(conditions: Conditions) -> InferencePhase:
    """One word for a TPUInference's conditions, from them alone."""
    available = conditions.get(Type.AVAILABLE)
    why = available.reason if available else PENDING
    if why in _UNAVAILABLE:
        return _UNAVAILABLE[why]
    if conditions.is_true(Type.DEGRADED):
        return InferencePhase.DEGRADED
    progressing = conditions.get(Type.PROGRESSING)
    rolling = progressing is not None and progressing.reason in {ROLLING, *STANDING.values()}
    return InferencePhase.ROLLING if rolling else InferencePhase.SERVING


_UNAVAILABLE: Final = {
    STOPPED: InferencePhase.STOPPED,
    STARTING: InferencePhase.STARTING,
    PENDING: InferencePhase.PENDING,
    NO_REVISION: InferencePhase.UNAVAILABLE,
}


def events(old: Iterable[Condition], new: Iterable[Condition]) -> Iterable[Event]:
    """An event for each condition that says something else, apart from details."""
    before = {condition.type: (condition.status, condition.reason) for condition in old}
    for condition in new:
        news = condition.status == "True" or condition.type in before
        if news and before.get(condition.type) != (condition.status, condition.reason):
            bad = condition.type in {Type.DEGRADED, Type.BLOCKED} and condition.status == "True"
            lost = condition.reason in {NO_REVISION, STANDING[HoldGate.DEADLINE]}
            yield Event(
                bad or lost, condition.reason, f"{condition.type} is {condition.status}: {condition.message}"
            )


def _available(status: TPUInferenceStatus, found: Conditions) -> None:
    serving = [revision.name for revision in status.revisions if revision.servable]
    if serving:
        found.set(Type.AVAILABLE, True, "Serving", f"revision {serving[0]} has a ready replica of every role")
    elif not any(role.desired for role in status.roles):
        found.set(Type.AVAILABLE, False, STOPPED, "all roles are scaled to zero")
    elif status.current_revision and _was(found, Type.AVAILABLE, "Serving", NO_REVISION):
        found.set(Type.AVAILABLE, False, NO_REVISION, _missing(status))
    else:
        seen = all(group.state not in {"Pending", "Restarting"} for group in status.groups) and status.groups
        found.set(Type.AVAILABLE, False, STARTING if seen else PENDING, _missing(status))


def _was(found: Conditions, kind: str, *reasons: str) -> bool:
    condition = found.get(kind)
    return condition is not None and condition.reason in reasons


def _missing(status: TPUInferenceStatus) -> str:
    """What the newest revision lacks to serve."""
    newest = status.revisions[0] if status.revisions else None
    lacking = [role.name for role in newest.roles if not role.ready] if newest else []
    return f"no revision has a ready replica of every role; the newest lacks {', '.join(lacking) or 'all'}"


def _progressing(status: TPUInferenceStatus, found: Conditions) -> None:
    rollout = status.rollout
    hold = rollout.hold
    if len({group.revision for group in status.groups}) > 1 or rollout.state is not RolloutState.IDLE:
        if hold is not None and hold.gate in STANDING:
            found.set(Type.PROGRESSING, False, STANDING[hold.gate], hold.reason)
        else:
            text = f"; {hold.gate}: {hold.reason}" if hold else ""
            back = f"; back from {rejected(rollout.rejected)}" if rollout.rejected else ""
            found.set(Type.PROGRESSING, True, ROLLING, f"ready are {rollout.step}{text}{back}")
    elif status.current_revision == status.updated_revision and _in_number(status):
        text = f"all replicas are of revision {status.updated_revision}"
        if rollout.rejected is None:
            found.set(Type.PROGRESSING, False, COMPLETE, text)
        else:
            text = f"{text}, as {rejected(rollout.rejected)}; {ANOTHER_TRY}"
            found.set(Type.PROGRESSING, False, ROLLED_BACK, text)
    else:
        reason = SCALING if status.current_revision else STARTING
        found.set(Type.PROGRESSING, True, reason, f"ready are {rollout.step}")


def rejected(found: Rejection) -> str:
    """Which revision an analysis has given up, and why."""
    return f"revision {found.revision} was rejected: {found.reason}"


def _in_number(status: TPUInferenceStatus) -> bool:
    """Whether there are as many replicas as there should be, none of which starts for the first time."""
    first = any(
        group.state in {GroupState.PENDING, GroupState.STARTING} and not group.attempt
        for group in status.groups
    )
    return not first and all(role.replicas == role.desired for role in status.roles)


def _degraded(status: TPUInferenceStatus, found: Conditions, view: InferenceView) -> None:
    """Replicas that were lost, and more of them than a rollout may take away; and routes that are missing."""
    lost = [group for group in status.groups if _is_lost(group)]
    common = view.inference.spec.rollout.max_unavailable
    budgets = {role.name: role.rollout.max_unavailable for role in view.inference.spec.roles}
    short = [
        role
        for role in status.roles
        if any(group.role == role.name for group in lost)
        and role.ready < min(role.desired, role.replicas) - _or(budgets.get(role.name), common)
    ]
    if short and status.current_revision:
        told = [group.last_failure for group in lost if group.last_failure]
        failure = f"; {describe(told[-1])}" if told else ""
        found.set(Type.DEGRADED, True, "ReplicasNotReady", f"ready are {_in_words(short)}{failure}")
    elif unrouted := (*view.routing.missing, *view.routing.clashes):
        found.set(Type.DEGRADED, True, "RoutingIncomplete", "; ".join(unrouted))
    else:
        found.set(Type.DEGRADED, False, "AsExpected")


def _is_lost(group: GroupStatus) -> bool:
    """Whether a replica that is to stay was ready once, or has failed, and is not ready now."""
    if group.state in {GroupState.RESTARTING, GroupState.NOT_READY}:
        return True
    return bool(group.attempt) and group.state in {GroupState.PENDING, GroupState.STARTING}


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _in_words(roles: Iterable[RoleStatus]) -> str:
    return ", ".join(f"{role.ready} of {role.desired} {role.name}" for role in roles)


def _blocked(status: TPUInferenceStatus, found: Conditions) -> None:
    if status.pending is not None:
        found.set(Type.BLOCKED, True, status.pending.reason, status.pending.message)
    elif found.is_true(Type.BLOCKED):
        found.set(Type.BLOCKED, False, "NotBlocked")


def _explained(status: TPUInferenceStatus, found: Conditions) -> tuple[str | None, str | None]:
    """What keeps it from its goal, in one word and in more."""
    if found.is_true(Type.BLOCKED) and status.pending is not None:
        return BlockedReason(status.pending.reason), status.pending.message
    degraded = found.get(Type.DEGRADED)
    if degraded is not None and degraded.status == "True":
        return degraded.reason, degraded.message
    if status.rollout.hold is not None:
        return status.rollout.hold.gate, status.rollout.hold.reason
    progressing = found.get(Type.PROGRESSING)
    if progressing is not None and progressing.reason == ROLLED_BACK:
        return progressing.reason, progressing.message
    return None, None

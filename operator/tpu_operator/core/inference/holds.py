"""Why a rollout has nothing to do and is not done: the gate that has to open first, and words for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpu_operator.api import CapacityShortage, HoldGate
from tpu_operator.core.inference.goal import Hold

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpu_operator.core.inference.board import Board
    from tpu_operator.core.inference.goal import Goal


def has_share(laid: Board) -> bool:
    """Whether the newest revision has the part that it is to have for now, all of it ready."""
    limits, newest = laid.limits, laid.newest
    return (
        laid.shared
        and laid.rolling
        and not any(laid.leaving)
        and newest.ready == newest.kept
        and all(kept >= share for kept, share in zip(newest.kept, limits.share, strict=True))
    )


def hold(goal: Goal, laid: Board, *, settled: bool) -> Hold:
    """Say what is waited for.

    Args:
        goal: what is wanted.
        laid: what there is; no step can be made from it.
        settled: whether the newest revision has its part.
    """
    if goal.paused:
        return Hold(HoldGate.PAUSE, "spec.rollout.paused is true")
    if settled:
        return _part(goal)
    found = next(_waits(goal, laid))
    if goal.stalled_seconds < goal.progress_deadline_seconds:
        return found
    waited = f"no replica has become ready for more than {goal.progress_deadline_seconds:.0f} s"
    return Hold(HoldGate.DEADLINE, f"{waited}; {found.gate}: {found.reason}")


def _part(goal: Goal) -> Hold:
    if goal.canary is not None and goal.partition < goal.copies:
        return goal.canary.hold
    kept = min(goal.partition, goal.copies)
    return Hold(
        HoldGate.PARTITION, f"spec.rollout.partition keeps {kept} of {goal.copies} copies at revisions before"
    )


def _waits(goal: Goal, laid: Board) -> Iterator[Hold]:
    yield from _capacity(goal)
    going = [f"{n} of {role}" for role, n in zip(laid.roles, laid.leaving, strict=True) if n]
    if going:
        yield Hold(HoldGate.DRAIN, f"replicas have to be gone first: {', '.join(going)}")
    yield from _readiness(laid)
    yield from _room(laid)
    yield Hold(HoldGate.PAIRING, "the roles of the revisions before can only go together")


def _capacity(goal: Goal) -> Iterator[Hold]:
    short = [f"{role.name}: {role.shortage}" for role in goal.roles if role.shortage]
    if not short:
        return
    advice = (
        "no old replica can be stopped first without going below what has to stay ready"
        if goal.on_capacity_shortage is CapacityShortage.DRAIN_FIRST
        else "with spec.rollout.onCapacityShortage DrainFirst an old replica would be stopped first"
    )
    yield Hold(HoldGate.CAPACITY, f"no room for a new replica of {'; '.join(short)}; {advice}")


def _readiness(laid: Board) -> Iterator[Hold]:
    for name, replicas in zip(laid.names, laid.rows, strict=True):
        waits = [
            f"{role} {ready}/{kept}"
            for role, ready, kept in zip(laid.roles, replicas.ready, replicas.kept, strict=True)
            if ready < kept
        ]
        if waits:
            yield Hold(HoldGate.READINESS, f"ready replicas of revision {name}: {', '.join(waits)}")


def _room(laid: Board) -> Iterator[Hold]:
    """Roles that have no room, or that have to wait for those."""
    limits = laid.limits
    total = [sum(column) for column in zip(laid.leaving, *(row.kept for row in laid.rows), strict=True)]
    lacking = [r for r, kept in enumerate(laid.newest.kept) if kept < limits.share[r]]
    for role in lacking:
        if total[role] >= limits.top[role]:
            yield Hold(HoldGate.SURGE, _no_room(laid, role))
    for role in lacking:
        yield Hold(HoldGate.RATIO, f"{laid.roles[role]} waits for the other roles")


def _no_room(laid: Board, role: int) -> str:
    name = laid.roles[role]
    if laid.limits.floor[role] == laid.limits.target[role]:
        return f"maxSurge and maxUnavailable of {name} are 0: set one of them to 1 or more"
    return (
        f"maxSurge of {name} is 0, and without the replica that could make room no revision would serve: set "
        "maxSurge to 1, spec.replicas to 2 or more, or spec.rollout.allowDowntime to true"
    )

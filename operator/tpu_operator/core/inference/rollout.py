"""The rollout planner: how many replicas of every role every revision should have now.

`plan` is called on every pass and remembers nothing. What it is given is what there is, and what it returns
can be carried out in full, in part, or not at all: the promises hold in every state on the way, and the next
pass goes on from there (docs/rollout.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpu_operator.api import RolloutState, RolloutStrategy
from tpu_operator.core.inference import budgets, holds
from tpu_operator.core.inference.board import board, paused_before
from tpu_operator.core.inference.goal import (
    Count,
    Goal,
    Hold,
    Move,
    Revision,
    RoleGoal,
    Share,
    Step,
)
from tpu_operator.core.inference.ratio import in_ratio

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tpu_operator.core.inference.board import Board
    from tpu_operator.core.inference.budgets import Row

__all__ = ["Count", "Goal", "Hold", "Move", "Revision", "RoleGoal", "Share", "Step", "plan"]


def plan(goal: Goal, revisions: Iterable[Revision]) -> Step:
    """Say how many replicas to keep of every role and revision.

    Args:
        goal: what is wanted.
        revisions: all that have replicas, leaving ones too, in any order; the newest may be missing.

    Returns:
        The step from here; it is empty when nothing may be done now.
    """
    given = tuple(revisions)
    laid = board(goal, given)
    rows = _rows(goal, laid)
    moves = tuple(_moves(laid, rows))
    waits = paused_before(goal, given) is not None
    full = not moves and not any(laid.leaving) and not laid.rolling
    done = full and not waits and laid.newest.ready == laid.limits.target
    settled = not moves and not goal.paused and holds.has_share(laid)
    hold = None if moves or done else holds.hold(goal, laid, settled=settled)
    return Step(
        wanted={
            (name, role): row[index]
            for name, row, replicas in zip(laid.names, rows, laid.rows, strict=True)
            for index, role in enumerate(laid.roles)
            if replicas.has[index]
        },
        moves=moves,
        hold=hold,
        state=_state(laid, hold, waits=waits),
        done=done,
        settled=settled,
    )


def _rows(goal: Goal, laid: Board) -> tuple[Row, ...]:
    if goal.strategy is RolloutStrategy.RECREATE and not goal.paused:
        wanted = budgets.recreate(laid.limits, laid.newest, laid.old, laid.leaving)
    else:
        wanted = budgets.decide(laid.limits, laid.newest, laid.old, laid.leaving)
    return (wanted.newest, *wanted.old)


def _state(laid: Board, hold: Hold | None, *, waits: bool) -> RolloutState:
    if not laid.rolling and not waits:
        return RolloutState.IDLE
    return RolloutState.HELD if hold else RolloutState.ROLLING


def _moves(laid: Board, rows: tuple[Row, ...]) -> Iterator[Move]:
    """Single moves: first what goes, each time of the role that is furthest from its end."""
    for index in (*range(1, len(rows)), 0):
        kept = laid.rows[index].kept
        for role in in_ratio(kept, tuple(map(min, kept, rows[index])), laid.limits.target):
            yield Move(laid.names[index], laid.roles[role], create=False)
    kept = laid.newest.kept
    for role in in_ratio(kept, tuple(map(max, kept, rows[0])), laid.limits.target):
        yield Move(laid.names[0], laid.roles[role], create=True)

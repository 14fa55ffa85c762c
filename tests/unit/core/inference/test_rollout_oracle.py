"""The oracle notices what planners get wrong: every seeded mistake is caught, by the promise it breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.core.inference.rollout_oracle import Promises, Seen
from tests.unit.core.inference.rollout_space import Judge, Role, mixes, teams
from tpu_operator.core.inference.budgets import Limits, Replicas, Wanted, decide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.unit.core.inference.rollout_oracle import Row
    from tests.unit.core.inference.rollout_space import Decide

TEAMS = list(teams([Role(1, 1, 0), Role(1, 0, 1), Role(2, 1, 0), Role(2, 0, 1)], 2))
BOTH = (True, True)


def surge_off_by_one(limits: Limits, newest: Replicas, old: Sequence[Replicas], leaving: Row) -> Wanted:
    return decide(limits._replace(top=tuple(n + 1 for n in limits.top)), newest, old, leaving)


def leaving_holds_no_chips(
    limits: Limits, newest: Replicas, old: Sequence[Replicas], _leaving: Row
) -> Wanted:
    return decide(limits, newest, old, (0,) * len(limits.target))


def up_before_down(limits: Limits, newest: Replicas, old: Sequence[Replicas], leaving: Row) -> Wanted:
    """Makes new replicas in place of those that are only about to go."""
    wanted = decide(limits, newest, old, leaving)
    left = [replicas._replace(kept=row) for replicas, row in zip(old, wanted.old, strict=True)]
    return Wanted(decide(limits, newest, left, leaving).newest, wanted.old)


def unready_counts_as_ready(
    limits: Limits, newest: Replicas, old: Sequence[Replicas], leaving: Row
) -> Wanted:
    return decide(limits, newest._replace(ready=newest.kept), old, leaving)


def floor_off_by_one(limits: Limits, newest: Replicas, old: Sequence[Replicas], leaving: Row) -> Wanted:
    lower = [tuple(n - 1 for n in row) for row in (limits.floor, limits.keep)]
    return decide(limits._replace(floor=lower[0], keep=lower[1]), newest, old, leaving)


def each_role_for_itself(limits: Limits, newest: Replicas, old: Sequence[Replicas], leaving: Row) -> Wanted:
    """One rollout for each role, as with a Deployment for each."""
    none = (0,) * len(limits.target)
    grown, shrunk = list(none), [list(none) for _ in old]
    for role, target in enumerate(limits.target):

        def only(row: Row, role: int = role) -> Row:
            return (row[role],)

        alone = Limits(
            only(limits.target),
            only(limits.top),
            only(limits.floor),
            only(limits.keep),
            only(limits.share),
            only(limits.held),
            smallest=target,
        )
        rows = [Replicas((True,), only(r.kept), only(r.ready)) for r in (newest, *old)]
        wanted = decide(alone, rows[0], rows[1:], only(leaving))
        grown[role] = wanted.newest[0]
        for row, (n,) in zip(shrunk, wanted.old, strict=True):
            row[role] = n
    return Wanted(tuple(grown), tuple(map(tuple, shrunk)))


def no_thought_of_who_serves(
    limits: Limits, newest: Replicas, old: Sequence[Replicas], leaving: Row
) -> Wanted:
    return decide(limits._replace(downtime=True), newest, old, leaving)


def new_first_then_old(limits: Limits, newest: Replicas, old: Sequence[Replicas], leaving: Row) -> Wanted:
    """A second whole set of replicas, as blue-green does it."""
    return Wanted(limits.target, tuple(replicas.kept for replicas in old))


def old_grows_again(limits: Limits, newest: Replicas, old: Sequence[Replicas], leaving: Row) -> Wanted:
    wanted = decide(limits, newest, old, leaving)
    return Wanted(newest.kept, (limits.target, *wanted.old[1:]))


def never_starts(limits: Limits, newest: Replicas, old: Sequence[Replicas], leaving: Row) -> Wanted:
    return Wanted(newest.kept, tuple(replicas.kept for replicas in old))


def waits_for_pairs_for_ever(
    limits: Limits, newest: Replicas, old: Sequence[Replicas], leaving: Row
) -> Wanted:
    """Never counts ready replicas of a new revision that cannot serve yet."""
    counted = newest if newest.servable else newest._replace(ready=(0,) * len(limits.target))
    return decide(limits, counted, old, leaving)


MISTAKES: list[tuple[Decide, str]] = [
    (surge_off_by_one, "surge"),
    (leaving_holds_no_chips, "surge"),
    (up_before_down, "surge"),
    (new_first_then_old, "surge"),
    (unready_counts_as_ready, "floor"),
    (floor_off_by_one, "floor"),
    (no_thought_of_who_serves, "serving"),
    (each_role_for_itself, "orphan"),
    (each_role_for_itself, "ratio"),
    (old_grows_again, "direction"),
    (never_starts, "stuck"),
]


def caught(planner: Decide, team: Sequence[Role], revisions: int = 2) -> set[str]:
    """Promises that a planner breaks in some mix of replicas."""
    judge = Judge(team, planner)
    return {name for state in mixes(team, revisions) for name in judge.step(state)[1]}


@pytest.mark.parametrize(
    ("mistake", "promise"), MISTAKES, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_seeded_mistake_is_caught(mistake: Decide, promise: str) -> None:
    assert any(promise in caught(mistake, team) for team in TEAMS)


def test_to_wait_for_pairs_for_ever_is_caught_where_two_old_revisions_hold_one_each() -> None:
    assert caught(waits_for_pairs_for_ever, [Role(2, 1, 0), Role(2, 0, 1)], revisions=3) == {"stuck"}


def test_without_a_mistake_nothing_is_caught() -> None:
    assert not any(caught(decide, team) for team in TEAMS)


def test_a_floor_below_zero_and_a_step_that_only_adds_are_fine() -> None:
    promises = Promises((2, 1), (1, 1), (3, 0))
    now = [Seen((0, 0), (0, 0), BOTH), Seen((2, 1), (2, 1), BOTH)]
    assert promises.broken(now, (0, 0), [(1, 1), (2, 1)]) == []


def test_a_revision_is_judged_by_its_own_roles() -> None:
    promises = Promises((2, 2), (1, 1), (0, 0))
    renamed = Seen((2, 0), (2, 0), (True, False))
    newest = Seen((0, 0), (0, 0), BOTH)
    assert renamed.serves
    assert promises.broken([newest, renamed], (0, 0), [(0, 0), (0, 0)]) == ["floor", "serving"]


@pytest.mark.parametrize(
    ("before", "after", "broken"),
    [
        ((2, 1), (0, 1), ["floor", "serving", "orphan"]),
        ((0, 1), (0, 0), ["floor"]),
        ((2, 1), (1, 1), ["floor"]),
    ],
)
def test_what_is_said_of_one_old_revision(before: Row, after: Row, broken: list[str]) -> None:
    promises = Promises((2, 1), (1, 1), (0, 0))
    now = [Seen((0, 0), (0, 0), BOTH), Seen(before, before, BOTH)]
    assert promises.broken(now, (0, 0), [(0, 0), after]) == broken

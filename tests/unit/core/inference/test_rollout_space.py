"""Every state of every rollout, up to a size: no step breaks a promise, and every rollout ends.

Nothing is sampled: each space below is gone through from end to end, and the number of its states is printed.
`ROLLOUT_SPACE=all` goes through the large ones, which take hours; `ROLLOUT_SPACE=2/8` through the second of
eight parts of these.
"""

from __future__ import annotations

import os
import sys
from itertools import islice, permutations
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.unit.core.inference.rollout_space import (
    Judge,
    Role,
    State,
    budgets,
    mixes,
    rests,
    roles,
    rollouts,
    teams,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ASKED = os.environ.get("ROLLOUT_SPACE", "")
WHOLE = "all"


class Space(NamedTuple):
    """States of all sets of so many roles, of some sizes and budgets.

    Attributes:
        of: which states of a set of roles.
        roles: roles of a set.
        largest: largest target of a role.
        budgets: `maxSurge` and `maxUnavailable` of a role.
        downtime: whether there may be no revision that serves.
        lacking: whether a replica finds no room, with `DrainFirst`; it then may have to wait.
    """

    of: Callable[[Judge], Iterator[tuple[State, list[str]]]]
    roles: int
    largest: int
    budgets: list[tuple[int, int]]
    downtime: bool = False
    lacking: bool = False

    def judges(self) -> Iterator[Judge]:
        for team in teams(roles(range(1, self.largest + 1), self.budgets), self.roles):
            yield Judge(team, downtime=self.downtime, lacking=self.lacking)

    def __str__(self) -> str:
        named = f"{self.of.__name__}: {self.roles} roles of 1 to {self.largest}, {len(self.budgets)} budgets"
        return named + ", downtime" * self.downtime + ", no room" * self.lacking


def mixes_of_2(judge: Judge) -> Iterator[tuple[State, list[str]]]:
    """Every mix of two revisions: kept, ready and leaving, whether there is a way to it or not."""
    return ((state, judge.step(state)[1]) for state in mixes(judge.team, 2))


def mixes_of_3(judge: Judge) -> Iterator[tuple[State, list[str]]]:
    """The same of three."""
    return ((state, judge.step(state)[1]) for state in mixes(judge.team, 3))


def rests_of_3(judge: Judge) -> Iterator[tuple[State, list[str]]]:
    """Every mix of three revisions in which all is ready and nothing leaves."""
    return ((state, judge.step(state)[1]) for state in rests(judge.team, 3))


EITHER = [(1, 0), (0, 1)]

DAILY = [
    Space(mixes_of_3, 1, 6, budgets(3)),
    Space(mixes_of_3, 2, 2, budgets(1)),
    Space(mixes_of_2, 2, 2, budgets(1), downtime=True),
    Space(mixes_of_2, 2, 2, budgets(1), lacking=True),
    Space(mixes_of_2, 3, 1, budgets(1)),
    Space(rests_of_3, 2, 3, budgets(2)),
    Space(rests_of_3, 3, 2, budgets(1)),
    Space(rollouts, 2, 6, EITHER),
    Space(rollouts, 3, 2, EITHER),
]
LARGE = [
    Space(rests_of_3, 2, 6, budgets(3)),
    Space(rests_of_3, 3, 3, budgets(1)),
    Space(rollouts, 2, 6, budgets(3)),
    Space(rollouts, 3, 3, budgets(1)),
    Space(mixes_of_3, 2, 3, budgets(2)),
    Space(mixes_of_3, 3, 2, budgets(1)),
]


def part(judges: Iterator[Judge]) -> Iterator[Judge]:
    """The share of this process."""
    if ASKED in {"", WHOLE}:
        return judges
    index, _, count = ASKED.partition("/")
    return islice(judges, int(index) - 1, None, int(count))


@pytest.mark.timeout(0)
@pytest.mark.parametrize("space", LARGE if ASKED else DAILY, ids=str)
def test_no_state_breaks_a_promise_and_every_rollout_ends(
    space: Space, capsys: pytest.CaptureFixture[str]
) -> None:
    states = sets = 0
    for judge in part(space.judges()):
        sets += 1
        for state, broken in space.of(judge):
            states += 1
            assert not broken, (judge.team, state, broken)
    with capsys.disabled():
        sys.stdout.write(f"\n{space}: {states:,} states of {sets:,} sets of roles\n")


@pytest.mark.parametrize("team", [*teams([Role(1, 1, 0), Role(2, 0, 1), Role(3, 1, 1)], 2)], ids=repr)
def test_the_order_of_roles_means_nothing(team: tuple[Role, ...]) -> None:
    for order in permutations(range(len(team))):
        judge, turned = Judge(team), Judge([team[role] for role in order])
        for state in list(mixes(team, 2))[::17]:
            rows, _ = judge.step(state)
            seen, _ = turned.step(
                State(
                    tuple(tuple(row[role] for role in order) for row in state.kept),
                    tuple(tuple(row[role] for role in order) for row in state.ready),
                    tuple(state.leaving[role] for role in order),
                )
            )
            assert seen == tuple(tuple(row[role] for role in order) for row in rows)

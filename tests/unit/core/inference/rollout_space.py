"""Every state that a rollout can be in, of given sizes: what the exhaustive tests go through."""

from __future__ import annotations

from itertools import combinations_with_replacement, product
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tests.unit.core.inference.rollout_oracle import Promises, Row, Seen
from tpu_operator.core.inference.budgets import Limits, Replicas, decide

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tpu_operator.core.inference.budgets import Wanted


class Decide(Protocol):
    """A planner, right or wrong."""

    def __call__(
        self, limits: Limits, newest: Replicas, old: Sequence[Replicas], leaving: Row, /
    ) -> Wanted: ...


class Role(NamedTuple):
    """Size and budgets of a role."""

    target: int
    surge: int
    unavailable: int


class State(NamedTuple):
    """Replicas by revision, the newest first, and those that are leaving."""

    kept: tuple[Row, ...]
    ready: tuple[Row, ...]
    leaving: Row


def budgets(most: int) -> list[tuple[int, int]]:
    """All `maxSurge` and `maxUnavailable` that are not both 0."""
    return [pair for pair in product(range(most + 1), range(most + 1)) if any(pair)]


def roles(sizes: Iterable[int], pairs: Iterable[tuple[int, int]]) -> list[Role]:
    """All roles of some sizes and budgets."""
    return [Role(size, *pair) for size, pair in product(sizes, pairs)]


def teams(kinds: Sequence[Role], count: int) -> Iterator[tuple[Role, ...]]:
    """All sets of so many roles. Their order means nothing to the planner (a test says so)."""
    return combinations_with_replacement(kinds, count)


class Column(NamedTuple):
    """One role's part of a state."""

    kept: Row
    ready: Row
    leaving: int


def there(role: Role, revisions: int) -> list[Row]:
    """All that budgets allow of one role, by revision."""
    most = role.target + role.surge
    every = product(range(most + 1), repeat=revisions)
    return [kept for kept in every if sum(kept) <= most and kept[0] <= role.target]


def columns(role: Role, revisions: int) -> list[Column]:
    """Every mix of one role's replicas that budgets allow: kept and ready of each revision, and leaving."""
    return [
        Column(kept, ready, leaving)
        for kept in there(role, revisions)
        for ready in _readiness(kept)
        for leaving in range(role.target + role.surge - sum(kept) + 1)
    ]


def mixes(team: Sequence[Role], revisions: int) -> Iterator[State]:
    """Every mix of the replicas of some roles, whether there is a way to it or not."""
    for cells in product(*(columns(role, revisions) for role in team)):
        kept, ready, leaving = zip(*cells, strict=True)
        yield State(tuple(zip(*kept, strict=True)), tuple(zip(*ready, strict=True)), leaving)


def rests(team: Sequence[Role], revisions: int) -> Iterator[State]:
    """Every mix in which all is ready and nothing leaves: here a rollout would stay if it got stuck."""
    none = (0,) * len(team)
    for rows in product(*(there(role, revisions) for role in team)):
        kept = tuple(zip(*rows, strict=True))
        yield State(kept, kept, none)


class Judge:
    """Asks the planner for a step and the oracle for its opinion."""

    def __init__(
        self,
        team: Sequence[Role],
        decide: Decide = decide,
        *,
        downtime: bool = False,
        lacking: bool = False,
    ) -> None:
        if lacking:
            # As `DrainFirst` has it.
            team = [role._replace(unavailable=max(1, role.unavailable)) for role in team]
        targets, surges, unavailable = (tuple(row) for row in zip(*team, strict=True))
        floor = tuple(max(0, role.target - role.unavailable) for role in team)
        self.promises = Promises(targets, surges, unavailable, downtime=downtime, lacking=lacking)
        top = tuple(role.target + role.surge for role in team)
        full = tuple(role.target - lacking for role in team)
        self.limits = Limits(
            target=targets,
            top=targets if lacking else top,
            floor=floor,
            keep=tuple(most if role.surge else n for role, n, most in zip(team, floor, full, strict=True)),
            share=targets,
            held=(0,) * len(team),
            smallest=min(targets),
            downtime=downtime,
            most=top,
            lacking=lacking,
        )
        self.team = team
        self.has = (True,) * len(team)
        self.decide = decide

    def step(self, state: State) -> tuple[tuple[Row, ...], list[str]]:
        """What the planner wants, by revision, and which promises that breaks."""
        seen = [Seen(*counts, self.has) for counts in zip(state.kept, state.ready, strict=True)]
        newest, *old = [Replicas(self.has, kept, ready) for kept, ready, _ in seen]
        # The oldest comes first there, the newest here.
        wanted = self.decide(self.limits, newest, old[::-1], state.leaving)
        rows = (wanted.newest, *wanted.old[::-1])
        found = self.promises.broken(seen, state.leaving, rows)
        waits = self.limits.lacking or self.promises.hopeless(seen)
        if not waits and self.promises.stuck(seen, state.leaving, rows):
            found.append("stuck")
        return rows, found


Ground = tuple[Row, Row, Row]
"""Replicas of the newest and the old revision, and leaving ones: a state but for readiness."""


def rollouts(judge: Judge) -> Iterator[tuple[State, list[str]]]:
    """All states of rollouts from A to B and back, wherever they turn, and which promises the step breaks.

    From every state, the step may be carried out in any part; whatever is leaving may go; any replica may
    become ready or stop being so; and the user may go back to the other revision.
    """
    targets = judge.promises.targets
    none = (0,) * len(targets)
    start: Ground = (none, targets, none)
    seen, queue = {start}, [start]
    while queue:
        ground = queue.pop()
        following = {(ground[1], ground[0], ground[2]), *_departures(ground)}
        steps = set()
        for ready in product(*map(_readiness, ground[:2])):
            state = State(ground[:2], ready, ground[2])
            rows, found = judge.step(state)
            yield state, found
            steps.add(rows)
        for rows in steps:
            following.update(_parts(ground, rows))
        queue.extend(following - seen)
        seen |= following


def _readiness(kept: Row) -> Iterator[Row]:
    """All ways to be ready."""
    return product(*(range(n + 1) for n in kept))


def _departures(ground: Ground) -> Iterator[Ground]:
    """One leaving replica has gone."""
    newest, old, leaving = ground
    for role, n in enumerate(leaving):
        if n:
            yield newest, old, (*leaving[:role], n - 1, *leaving[role + 1 :])


def _parts(ground: Ground, rows: Sequence[Row]) -> Iterator[Ground]:
    """Where a step leads that is carried out in any part."""
    newest, old, leaving = ground
    for cells in product(*map(_between, newest + old, rows[0] + rows[1])):
        made, left = cells[: len(newest)], cells[len(newest) :]
        gone = (max(0, a - b) + c - d for a, b, c, d in zip(newest, made, old, left, strict=True))
        yield made, left, tuple(map(sum, zip(leaving, gone, strict=True)))


def _between(start: int, end: int) -> range:
    return range(min(start, end), max(start, end) + 1)

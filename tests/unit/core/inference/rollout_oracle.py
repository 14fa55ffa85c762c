"""What a rollout promises, said a second time: from the contract, without a line of the planner's.

A step is judged by what the cluster may look like while it is carried out. Any part of it may have been done
when the operator stops, in any order, so that what is made counts without what is taken down, and what is
taken down without what is made.
"""

from __future__ import annotations

from functools import cached_property
from math import lcm
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Row = tuple[int, ...]


class Seen(NamedTuple):
    """One revision as an observer sees it: by role, replicas that are not leaving, and ready ones of these.

    A role that the revision does not have is None in `roles`.
    """

    kept: Row
    ready: Row
    roles: tuple[bool, ...]

    @property
    def serves(self) -> bool:
        return all(n > 0 for n, has in zip(self.ready, self.roles, strict=True) if has)


class Promises:
    """The promises for given targets and budgets. Revisions are given newest first.

    Args:
        targets: replicas of each role.
        surges: `maxSurge` of each.
        unavailable: `maxUnavailable` of each.
        downtime: whether there may be no revision that serves.
        lacking: whether replicas are to go first for one that finds no room.
    """

    def __init__(
        self, targets: Row, surges: Row, unavailable: Row, *, downtime: bool = False, lacking: bool = False
    ) -> None:
        self.targets = targets
        self.surges = surges
        self.unavailable = unavailable
        self.downtime = downtime
        self.lacking = lacking

    @cached_property
    def unit(self) -> int:
        return lcm(*(target for target in self.targets if target))

    def broken(self, revisions: Sequence[Seen], leaving: Row, wanted: Sequence[Row]) -> list[str]:
        """The promises that a step breaks: each as what it is about."""
        if tuple(wanted) == tuple(seen.kept for seen in revisions):
            return []
        found = self._broken(revisions, leaving, wanted)
        if (
            found == ["ratio"]
            and self._at_rest(revisions, leaving)
            and not any(self._kept_by_single_moves(revisions, leaving))
        ):
            return []
        return found

    def _broken(self, revisions: Sequence[Seen], leaving: Row, wanted: Sequence[Row]) -> list[str]:
        found: list[str] = []
        if self._surge(revisions, leaving, wanted):
            found.append("surge")
        if self._floor(revisions, wanted):
            found.append("floor")
        if self._serving(revisions, wanted):
            found.append("serving")
        if any(self._orphan(seen, row) for seen, row in zip(revisions, wanted, strict=True)):
            found.append("orphan")
        if any(self._drifts(seen, row) for seen, row in zip(revisions, wanted, strict=True)):
            found.append("ratio")
        if self._direction(revisions, wanted):
            found.append("direction")
        return found

    def _kept_by_single_moves(self, revisions: Sequence[Seen], leaving: Row) -> Iterator[bool]:
        """Whether promises are kept, for each single thing to do: no larger step keeps what none does."""
        there = [seen.kept for seen in revisions]
        for index, kept in enumerate(there):
            moved = [
                (*kept[:role], n + (1 if index == 0 else -1), *kept[role + 1 :])
                for role, n in enumerate(kept)
                if index == 0 or n
            ]
            for row in [*moved, *([(0,) * len(kept)] if index and any(kept) else [])]:
                yield not self._broken(revisions, leaving, [*there[:index], row, *there[index + 1 :]])

    def _at_rest(self, revisions: Sequence[Seen], leaving: Row) -> bool:
        """Whether nothing changes by itself any more."""
        return not any(leaving) and all(seen.kept == seen.ready for seen in revisions)

    def stuck(self, revisions: Sequence[Seen], leaving: Row, wanted: Sequence[Row]) -> bool:
        """Whether nothing is done although all is ready and the end is not reached.

        Together with `direction` this is all that can keep a rollout from ending: each step brings the
        newest revision nearer to its targets or the others nearer to nothing.
        """
        at_rest = not any(leaving) and all(seen.kept == seen.ready for seen in revisions)
        return (
            at_rest
            and not self.ended(revisions)
            and all(seen.kept == row for seen, row in zip(revisions, wanted, strict=True))
        )

    def ended(self, revisions: Sequence[Seen]) -> bool:
        newest, *old = revisions
        return newest.kept == newest.ready == self.targets and not any(any(seen.kept) for seen in old)

    def hopeless(self, revisions: Sequence[Seen]) -> bool:
        """Whether the contract itself allows no step: a role cannot surge, and its last replica serves."""
        return not self.downtime and any(
            surge == 0 and seen.serves and seen.kept[role] == 1
            for role, (target, surge) in enumerate(zip(self.targets, self.surges, strict=True))
            for seen in revisions[1:]
            if target == 1
        )

    def _surge(self, revisions: Sequence[Seen], leaving: Row, wanted: Sequence[Row]) -> bool:
        """1: pods of old and new together never exceed target + maxSurge."""
        for role, target in enumerate(self.targets):
            there = sum(seen.kept[role] for seen in revisions) + leaving[role]
            made = sum(
                max(0, row[role] - seen.kept[role]) for seen, row in zip(revisions, wanted, strict=True)
            )
            if made and there + made > target + self.surges[role]:
                return True
        return False

    def _floor(self, revisions: Sequence[Seen], wanted: Sequence[Row]) -> bool:
        """2: before anything ready is removed, ready - removed >= target - maxUnavailable."""
        for role, target in enumerate(self.targets):
            ready = sum(seen.ready[role] for seen in revisions)
            left = sum(min(seen.ready[role], row[role]) for seen, row in zip(revisions, wanted, strict=True))
            if left < ready and left < target - self.unavailable[role]:
                return True
        return False

    def _serving(self, revisions: Sequence[Seen], wanted: Sequence[Row]) -> bool:
        """3: at least one revision has a ready replica of every role."""
        if self.downtime or not any(self.targets) or not any(seen.serves for seen in revisions):
            return False
        return not any(
            seen._replace(ready=tuple(map(min, seen.ready, row))).serves
            for seen, row in zip(revisions, wanted, strict=True)
        )

    def _orphan(self, seen: Seen, row: Row) -> bool:
        """4: the roles of a revision reach zero together."""
        emptied = any(kept and not n for kept, n in zip(seen.kept, row, strict=True))
        return emptied and any(row)

    def _drifts(self, seen: Seen, row: Row) -> bool:
        """4: the ratio of roles drifts by no more than 1 / the smallest role, or not further than it has."""
        drift = self._drift(seen.roles, row)
        if not any(row) or drift * min(n for n in self.targets if n) <= self.unit:
            return False
        return drift > self._drift(seen.roles, seen.kept)

    def _drift(self, has: tuple[bool, ...], row: Row) -> int:
        parts = [
            n * (self.unit // target)
            for n, target, there in zip(row, self.targets, has, strict=True)
            if there and target
        ]
        return max(parts) - min(parts) if parts else 0

    def _direction(self, revisions: Sequence[Seen], wanted: Sequence[Row]) -> bool:
        """5: growth goes to the newest revision and never beyond its target, and it shrinks no further.

        But for what is not ready, and more than 1 allows, as it may be after a scale-down; and for whatever
        is beyond the targets where replicas are to go first.
        """
        newest, *old = zip(revisions, wanted, strict=True)
        if any(n > kept for seen, row in old for n, kept in zip(row, seen.kept, strict=True)):
            return True
        return any(
            n > max(kept, target) or n < self._least(revisions, role)
            for role, (n, kept, target) in enumerate(
                zip(newest[1], newest[0].kept, self.targets, strict=True)
            )
        ) or any(n > target for n, target in zip(newest[1], self.targets, strict=True))

    def _least(self, revisions: Sequence[Seen], role: int) -> int:
        """Fewest replicas that the newest revision may keep of a role."""
        newest, *old = revisions
        stay = min(newest.kept[role], self.targets[role])
        surplus = stay + sum(seen.kept[role] for seen in old) - self.targets[role]
        if self.lacking:
            return stay - max(0, surplus)
        return max(min(stay, newest.ready[role]), stay - max(0, surplus - self.surges[role]))

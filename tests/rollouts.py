"""A small world for rollouts: replicas that start, fail and leave, a planner that is asked, and an oracle."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.unit.core.inference.rollout_oracle import Promises, Seen
from tpu_operator.api import CapacityShortage
from tpu_operator.core.inference.rollout import Count, Goal, Revision, RoleGoal, Step, plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tpu_operator.core.inference.rollout import Move

Numbers = int | tuple[int, ...]


def count(numbers: Numbers) -> Count:
    """Replicas that are all ready, or (kept, ready), or (kept, ready, leaving)."""
    return Count(numbers, numbers) if isinstance(numbers, int) else Count(*numbers)


def revision(name: str, roles: Mapping[str, Numbers], *, broken: bool = False) -> Revision:
    """A revision whose place in the history is its letter's."""
    return Revision(name, ord(name), {role: count(n) for role, n in roles.items()}, broken)


def pair(name: str, prefill: Numbers, decode: Numbers, *, broken: bool = False) -> Revision:
    """A revision of the two usual roles."""
    return revision(name, {"prefill": prefill, "decode": decode}, broken=broken)


def roles(prefill: int, decode: int, surge: int = 1, unavailable: int = 0) -> tuple[RoleGoal, ...]:
    """Goals of the two usual roles, with the same budgets."""
    return (RoleGoal("prefill", prefill, surge, unavailable), RoleGoal("decode", decode, surge, unavailable))


def wanted(step: Step, name: str, *names: str) -> tuple[int, ...]:
    """What a step wants of a revision, by role; of prefill and decode without others."""
    return tuple(step.wanted[name, role] for role in names or ("prefill", "decode"))


@dataclass
class World:
    """What there is of a TPUInference, and what happens to it.

    Attributes:
        goal: what the user asks for.
        revisions: what there is, by name.
        checked: whether every step is shown to the oracle.
    """

    goal: Goal
    revisions: dict[str, Revision] = field(default_factory=dict)
    checked: bool = True

    @classmethod
    def serving(cls, goal: Goal, *there: Revision) -> World:
        """A world with some revisions."""
        return cls(goal, {revision.name: revision for revision in there})

    def step(self) -> Step:
        """Ask the planner, and show what it says to the oracle."""
        step = plan(self.goal, self.revisions.values())
        assert step == plan(self.goal, reversed(list(self.revisions.values())))
        if self.checked and not self.goal.paused:
            broken = self.broken(step)
            assert not broken, (broken, self.goal, self.revisions, step)
        return step

    def broken(self, step: Step) -> list[str]:
        """Promises that a step breaks."""
        names = [role.name for role in self.goal.roles]
        names += sorted({role for r in self.revisions.values() for role in r.roles} - {*names})
        goals = {role.name: role for role in self.goal.roles}
        asked = [goals.get(name, RoleGoal(name, 0, 0)) for name in names]
        some = any(role.target for role in asked)
        promises = Promises(
            tuple(max(int(some and role.name in goals), role.target) for role in asked),
            tuple(role.max_surge for role in asked),
            tuple(self._unavailable(role) for role in asked),
            downtime=self.goal.allow_downtime,
            lacking=self._drains and any(role.shortage for role in self.goal.roles),
        )
        order = [self.goal.newest, *(name for name in self.revisions if name != self.goal.newest)]
        newest = Revision(self.goal.newest, 0, dict.fromkeys(goals, Count()))
        there = [self.revisions.get(name, newest) for name in order]
        seen = [_seen(revision, names) for revision in there]
        leaving = tuple(sum(r.roles[n].leaving for r in there if n in r.roles) for n in names)
        rows = [tuple(step.wanted.get((name, role), 0) for role in names) for name in order]
        return promises.broken(seen, leaving, rows)

    def _unavailable(self, role: RoleGoal) -> int:
        downtime = self.goal.allow_downtime and not role.max_surge
        return max(role.max_unavailable, int(self._drains or downtime))

    @property
    def _drains(self) -> bool:
        return self.goal.on_capacity_shortage is CapacityShortage.DRAIN_FIRST

    def do(self, moves: Iterable[Move]) -> None:
        """Make and take down replicas; of those to go, the ones that are not ready are taken."""
        for move in moves:
            found = self.revisions.get(move.revision) or self._begun(move.revision)
            now = found.roles[move.role]
            later = (
                replace(now, kept=now.kept + 1)
                if move.create
                else Count(now.kept - 1, min(now.ready, now.kept - 1), now.leaving + 1)
            )
            self._set(move.revision, move.role, later)

    def _begun(self, name: str) -> Revision:
        number = max((r.number for r in self.revisions.values()), default=0) + 1
        roles = {role.name: Count() for role in self.goal.roles}
        return self.revisions.setdefault(name, Revision(name, number, roles))

    def _set(self, name: str, role: str, later: Count) -> None:
        found = self.revisions[name]
        self.revisions[name] = replace(found, roles={**found.roles, role: later})

    def set(self, name: str, role: str, **fields: int) -> None:
        """Change the replicas of a role from outside."""
        self._set(name, role, replace(self.revisions[name].roles[role], **fields))

    def all_gone(self) -> None:
        """What is leaving goes; revisions without replicas are forgotten."""
        for found in list(self.revisions.values()):
            for role in found.roles:
                self.set(found.name, role, leaving=0)
            if self.revisions[found.name].gone:
                del self.revisions[found.name]

    def all_ready(self) -> None:
        """All that starts becomes ready."""
        for found in list(self.revisions.values()):
            for role, now in found.roles.items():
                self.set(found.name, role, ready=now.kept)

    def finish(self, limit: int = 2_000) -> list[Step]:
        """Let everything go well until nothing is left to do."""
        steps = []
        for _ in range(limit):
            step, changed = self._advance()
            steps.append(step)
            if not changed:
                return steps
        raise AssertionError(f"no end after {limit} steps: {self.goal} {self.revisions}")

    def states(self, *names: str) -> list[tuple[int, ...]]:
        """Replicas of prefill and decode by revision, from the start to the end, each state once."""
        seen = [self._counts(names)]
        while True:
            _, changed = self._advance()
            if not changed:
                return seen
            if self._counts(names) != seen[-1]:
                seen.append(self._counts(names))

    def _advance(self) -> tuple[Step, bool]:
        """One step, or where there is none all that goes well; and whether anything has changed."""
        step = self.step()
        before = dict(self.revisions)
        self.do(step.moves)
        if not step.moves:
            self.all_gone()
            self.all_ready()
        return step, bool(step.moves) or self.revisions != before

    def _counts(self, names: Sequence[str]) -> tuple[int, ...]:
        none: dict[str, Count] = {}
        found = [self.revisions[name].roles if name in self.revisions else none for name in names]
        return tuple(row.get(role, Count()).kept for row in found for role in ("prefill", "decode"))


def _seen(found: Revision, names: Sequence[str]) -> Seen:
    counts = [found.roles.get(name) for name in names]
    return Seen(
        tuple(c.kept if c else 0 for c in counts),
        tuple(c.ready if c else 0 for c in counts),
        tuple(c is not None for c in counts),
    )

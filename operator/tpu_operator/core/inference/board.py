"""What the rollout planner is given, laid out as rows of numbers: one number a role, one row a revision."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpu_operator.api import CapacityShortage
from tpu_operator.core.inference.budgets import Limits, Replicas, Row
from tpu_operator.core.inference.goal import Count, Revision, RoleGoal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpu_operator.core.inference.goal import Goal


@dataclass(frozen=True, slots=True)
class Board:
    """The numbers that a step is decided on.

    Attributes:
        roles: names of all roles of any revision; those that have a goal first.
        limits: targets and budgets.
        names: the revision that grows, and then the others, oldest first.
        newest: replicas of the one that grows.
        old: replicas of the others.
        leaving: replicas that are going, of all revisions.
    """

    roles: tuple[str, ...]
    limits: Limits
    names: tuple[str, ...]
    newest: Replicas
    old: tuple[Replicas, ...]
    leaving: Row

    @property
    def rows(self) -> tuple[Replicas, ...]:
        """Replicas of all revisions, in the order of their names."""
        return (self.newest, *self.old)

    @property
    def rolling(self) -> bool:
        """Whether there are replicas of another revision than the one that grows."""
        return any(any(replicas.kept) for replicas in self.old)

    @property
    def shared(self) -> bool:
        """Whether the newest revision is to have a part only."""
        return any(self.limits.held)


def board(goal: Goal, revisions: Sequence[Revision]) -> Board:
    """Lay out a goal and the revisions that there are."""
    growing = _growing(goal, revisions)
    asked = _asked(goal, growing)
    names = [role.name for role in asked]
    roles = (*names, *sorted({name for revision in revisions for name in revision.roles} - {*names}))
    old = sorted((r for r in revisions if r.name != growing.name), key=lambda revision: revision.number)
    newest = _replicas(growing, roles)
    counts = [revision.roles for revision in (growing, *old)]
    return Board(
        roles=roles,
        limits=_limits(goal, asked, newest, extra=len(roles) - len(names)),
        names=(growing.name, *(revision.name for revision in old)),
        newest=newest,
        old=tuple(_replicas(revision, roles)._replace(broken=_worthless(goal, revision)) for revision in old),
        leaving=tuple(sum(row[role].leaving for row in counts if role in row) for role in roles),
    )


def paused_before(goal: Goal, revisions: Sequence[Revision]) -> Revision | None:
    """The revision that stays where a rollout is paused before its first replica."""
    begun = [r for r in revisions if any(count.kept for count in r.roles.values())]
    if not goal.paused or not begun or any(r.name == goal.newest for r in begun):
        return None
    return max(begun, key=lambda revision: revision.number)


def _growing(goal: Goal, revisions: Sequence[Revision]) -> Revision:
    before = paused_before(goal, revisions)
    if before is not None:
        return before
    found = next((r for r in revisions if r.name == goal.newest), Revision(goal.newest, 0, {}))
    return replace(found, roles={role.name: Count() for role in goal.roles} | dict(found.roles))


def _asked(goal: Goal, growing: Revision) -> tuple[RoleGoal, ...]:
    """Goals by role. None is zero alone, and where an older revision stays it stays with its own roles."""
    some = any(role.target for role in goal.roles)
    asked = {role.name: replace(role, target=max(1, role.target) if some else 0) for role in goal.roles}
    return tuple(asked.get(name) or RoleGoal(name, count.kept) for name, count in growing.roles.items())


def _worthless(goal: Goal, revision: Revision) -> bool:
    """Whether replicas of an old revision that are not ready may go at once.

    One that has never been complete and has nothing ready was a mistake, or is not needed any more.
    """
    begun = revision.name == goal.current or any(count.ready for count in revision.roles.values())
    return revision.broken or not begun


def _replicas(revision: Revision, roles: Sequence[str]) -> Replicas:
    counts = [revision.roles.get(role) for role in roles]
    return Replicas(
        has=tuple(count is not None for count in counts),
        kept=tuple(count.kept if count else 0 for count in counts),
        ready=tuple(min(count.ready, count.kept) if count else 0 for count in counts),
        broken=revision.broken,
    )


def _limits(goal: Goal, asked: Sequence[RoleGoal], newest: Replicas, *, extra: int) -> Limits:
    none = (0,) * extra
    unavailable = [_unavailable(goal, role) for role in asked]
    floor = tuple(max(0, role.target - n) for role, n in zip(asked, unavailable, strict=True))
    share = tuple(_share(goal, role, n) for role, n in zip(asked, newest.kept, strict=False))
    return Limits(
        target=(*(role.target for role in asked), *none),
        top=(*(_top(goal, role) for role in asked), *none),
        floor=(*floor, *none),
        keep=(*(_keep(goal, role, n) for role, n in zip(asked, floor, strict=True)), *none),
        share=(*share, *none),
        held=(*(_held(goal, role.target, n) for role, n in zip(asked, share, strict=True)), *none),
        smallest=min((role.target for role in asked if role.target), default=1),
        downtime=goal.allow_downtime,
        frozen=goal.paused,
        most=(*(role.target + role.max_surge for role in asked), *none),
        lacking=_drains(goal) and not goal.paused,
    )


def _short(goal: Goal) -> bool:
    """Whether a new replica of any role finds no room: roles compete for nodes and quota."""
    return any(role.shortage for role in goal.roles)


def _drains(goal: Goal) -> bool:
    """Whether replicas go first for one that finds no room."""
    return _short(goal) and goal.on_capacity_shortage is CapacityShortage.DRAIN_FIRST


def _top(goal: Goal, role: RoleGoal) -> int:
    """Most replicas; no more surge is asked for while one finds no room, or it would take what is freed."""
    return role.target if _short(goal) else role.target + role.max_surge


def _unavailable(goal: Goal, role: RoleGoal) -> int:
    """With the leave to go below, one replica may: budgets of 0 and 0 would leave no way."""
    drains = goal.on_capacity_shortage is CapacityShortage.DRAIN_FIRST
    if drains or (goal.allow_downtime and not role.max_surge):
        return max(1, role.max_unavailable)
    return role.max_unavailable


def _keep(goal: Goal, role: RoleGoal, floor: int) -> int:
    """Replicas to keep while new ones start: all where there is surge, and room for it.

    Whichever replica the scheduler gives what is freed to, each role gives one up, so that all find room.
    """
    if not role.max_surge:
        return floor
    return max(0, role.target - 1) if _drains(goal) else role.target


def _share(goal: Goal, role: RoleGoal, kept: int) -> int:
    """Replicas of the newest revision while another has the rest."""
    if goal.paused:
        return min(kept, role.target)
    if goal.newest == goal.current:
        return role.target
    copies = max(1, goal.copies)
    most = _part(role.target, copies - min(goal.partition, copies), copies)
    if goal.canary is not None:
        most = min(most, _step(role.target, goal.canary.copies, goal.canary.percent, copies))
    return most


def _held(goal: Goal, target: int, share: int) -> int:
    """Replicas that stay of the revisions before; with a canary of one that is one, beside it."""
    shared = goal.newest != goal.current and (goal.partition > 0 or goal.canary is not None)
    return max(target - share, int(shared and target > 0))


def _step(target: int, share_copies: int | None, percent: int | None, copies: int) -> int:
    if share_copies is not None:
        return _part(target, min(share_copies, copies), copies)
    return _part(target, percent if percent is not None else 100, 100)


def _part(target: int, numerator: int, denominator: int) -> int:
    """A part of a target, rounded up."""
    return -(-target * numerator // denominator)

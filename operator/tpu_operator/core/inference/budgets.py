"""The arithmetic of a rollout step, on whole numbers alone: roles are positions, revisions are rows.

Why these rules and no others, and what goes wrong with simpler ones: docs/rollout.md. Everything here is
monotone: the newest revision only grows towards its targets and the others only shrink, so a rollout that
always has something to do ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Row = tuple[int, ...]
"""One number for each role."""


class Limits(NamedTuple):
    """What holds for each role. All rows are of equal length.

    Attributes:
        target: replicas; 0 also for roles that the newest revision does not have.
        top: most replicas of all revisions, leaving ones counted.
        floor: fewest ready replicas that may be left when a ready one is taken down.
        keep: fewest replicas, those that may yet become ready counted among old ones, that may be left when
            any is taken down. It is above `floor` where surge makes room, so that nothing dips without need.
        share: most that the newest revision may have while the old ones make up the rest.
        held: fewest replicas that the old ones have to keep, of whatever state.
        smallest: the smallest target that is not 0; 1 without any.
        downtime: whether there may be no revision that can serve.
        frozen: nothing old goes but what is above `top`.
        most: `top` where there is room for surge; empty if nobody needs to go for want of that.
        lacking: whether a new replica finds no room, for which others go first: in the end also those of the
            newest revision that are beyond their target and have the room that another role made.
    """

    target: Row
    top: Row
    floor: Row
    keep: Row
    share: Row
    held: Row
    smallest: int
    downtime: bool = False
    frozen: bool = False
    most: Row = ()
    lacking: bool = False


class Replicas(NamedTuple):
    """Replicas of one revision, by role.

    Attributes:
        has: whether the revision has the role at all.
        kept: those that exist and are not leaving.
        ready: those of them that are ready.
        broken: whether those that are not ready never will be.
    """

    has: tuple[bool, ...]
    kept: Row
    ready: Row
    broken: bool = False

    @property
    def servable(self) -> bool:
        """Whether there is a ready replica of every role that it has."""
        return 0 not in self.ready or all(n for n, has in zip(self.ready, self.has, strict=True) if has)


class Wanted(NamedTuple):
    """Replicas to keep: of the newest revision, and of the old ones in the order in which they were given."""

    newest: Row
    old: tuple[Row, ...]


def decide(limits: Limits, newest: Replicas, old: Sequence[Replicas], leaving: Row) -> Wanted:
    """Say how many replicas to keep.

    Args:
        limits: targets and budgets.
        newest: the revision that grows.
        old: the others, oldest first.
        leaving: replicas on their way out, of all revisions.

    Returns:
        Numbers of which any part may be carried out. Where replicas are taken down, those that are not ready
        have to go first.
    """
    before = tuple(map(sum, zip(*(replicas.kept for replicas in old), strict=True))) or (0,) * len(leaving)
    there = Wanted(newest.kept, tuple(replicas.kept for replicas in old))
    wanted = Wanted(_grow(limits, newest.kept, before, leaving), there.old)
    if not any(before):
        return wanted
    serves = newest.servable
    wanted = wanted._replace(old=_shrink(limits, newest, old, _budget(limits, newest, old, before, serves)))
    wanted = wanted._replace(newest=_without_surplus(limits, newest, wanted))
    if limits.lacking and wanted == there and not any(leaving):
        return there._replace(newest=_given_back(limits, newest, old, before))
    if wanted == there and newest.ready == newest.kept and not any(leaving):
        return _unlock(limits, newest, old, before)
    return wanted


def _unlock(limits: Limits, newest: Replicas, old: Sequence[Replicas], before: Row) -> Wanted:
    """Find a way on where nothing changes by itself any more.

    Several old revisions hold one replica each of a role that the newest needs, as happens when a third
    revision comes before the second is done. Then let ready replicas count that serve nobody yet, and use
    `maxUnavailable` though there is surge: for a whole revision at best, or else for single replicas. If that
    is no help and all is ready, have one more of the newest out of ratio.
    """
    there = Wanted(newest.kept, tuple(replicas.kept for replicas in old))
    holders = [replicas for replicas in old if any(replicas.kept)]
    if len(holders) == 1 and holders[0].servable and not newest.servable and not limits.downtime:
        return there
    limits = limits._replace(keep=limits.floor)
    for whole in (True, False):
        budget = _budget(limits, newest, old, before, unpaired=True)
        wanted = there._replace(old=_shrink(limits, newest, old, budget, whole=whole))
        if wanted != there:
            return wanted
    if any(replicas.ready != replicas.kept for replicas in old):
        return there
    reach = _reach(limits, newest.kept, before, leaving=(0,) * len(before))
    return there._replace(newest=tuple(map(max, newest.kept, reach)))


def recreate(limits: Limits, newest: Replicas, old: Sequence[Replicas], leaving: Row) -> Wanted:
    """Say how many replicas to keep where all old ones go before the first new one starts."""
    none = tuple(0 for _ in limits.target)
    blocked = any(any(replicas.kept) for replicas in old) or any(leaving)
    full = tuple(map(min, newest.kept, limits.target)) if blocked else limits.target
    return Wanted(full, tuple(none for _ in old))


def _grow(limits: Limits, kept: Row, before: Row, leaving: Row) -> Row:
    """What the newest revision should have: as much as there is room for, in ratio."""
    reach = _reach(limits, kept, before, leaving)
    wanted = list(map(min, kept, limits.target))
    roles = [role for role, target in enumerate(limits.target) if target]
    # The role that reaches least, as a part of its target, and one replica of the smallest role more.
    least, of = _part(min, reach, limits.target, roles)
    for role in roles:
        ahead = limits.target[role] * (least * limits.smallest + of) // (of * limits.smallest)
        wanted[role] = max(wanted[role], min(reach[role], ahead))
    return tuple(wanted)


def _without_surplus(limits: Limits, newest: Replicas, wanted: Wanted) -> Row:
    """What the newest revision should have, without those beyond target and surge that are not ready.

    There are such after a scale-down in the midst of a rollout, where old replicas serve and have to stay.
    """
    left = [sum(column) for column in zip(*wanted.old, strict=True)]
    return _without(limits, wanted.newest, _over(limits.most, limits, wanted.newest, left), newest.ready)


def _given_back(limits: Limits, newest: Replicas, old: Sequence[Replicas], before: Row) -> Row:
    """What the newest revision should have where one role has the room that another one lacks.

    That is so where old and ready new ones are more than the target. Else what starts will be ready, and lets
    old ones go. What is beyond targets goes then, down to the floor.
    """
    if not any(_over(limits.target, limits, newest.ready, before)):
        return newest.kept
    over = _over(limits.target, limits, newest.kept, before)
    others = map(sum, zip(*(replicas.ready for replicas in old), strict=True))
    stay = [floor - n for floor, n in zip(limits.floor, others, strict=True)]
    return _without(limits, newest.kept, over, stay)


def _without(limits: Limits, kept: Row, over: Sequence[int], stay: Sequence[int]) -> Row:
    """Replicas of the newest revision without surplus, in ratio.

    Args:
        limits: targets and budgets.
        kept: what there is of each role.
        over: how many are too many.
        stay: how many are not to go.
    """
    row = list(kept)
    roles = [role for role, target in enumerate(limits.target) if target and row[role]]
    most, of = _part(max, row, limits.target, roles)
    for role, n in enumerate(over):
        if n:
            fewest = max(1, stay[role], _behind(limits, role, most, of))
            row[role] = min(row[role], max(fewest, row[role] - n))
    return tuple(row)


def _over(most: Row, limits: Limits, newest: Sequence[int], old: Sequence[int]) -> list[int]:
    """Replicas beyond a number, by role; none of roles that have no target."""
    if not most:
        return [0] * len(limits.target)
    return [
        max(0, now + kept - n) if target else 0
        for now, kept, n, target in zip(newest, old, most, limits.target, strict=True)
    ]


def _behind(limits: Limits, role: int, most: int, of: int) -> int:
    """Fewest replicas of a role: no further behind the one that has most than by one of the smallest role.

    Args:
        limits: targets and budgets.
        role: the role.
        most: replicas of the role that has most, as a part of its target.
        of: that target.
    """
    return -(-limits.target[role] * (most * limits.smallest - of) // (of * limits.smallest))


def _reach(limits: Limits, kept: Row, before: Row, leaving: Row) -> list[int]:
    """What the newest revision could have of each role.

    What old revisions lack of the rest is made up for by the newest: they never grow.
    """
    reach = []
    for target, share, top, now, others, going in zip(
        limits.target, limits.share, limits.top, kept, before, leaving, strict=True
    ):
        most = min(target, max(share, target - others))
        reach.append(min(most, now + max(0, top - now - others - going)))
    return reach


def _shrink(
    limits: Limits, newest: Replicas, old: Sequence[Replicas], budget: _Budget, *, whole: bool = False
) -> tuple[Row, ...]:
    """What the old revisions should keep.

    Args:
        limits: targets and budgets.
        newest: the revision that grows.
        old: the others, oldest first.
        budget: what may go; what goes is taken off it.
        whole: whether only all replicas of a revision may go.
    """
    serve = [replicas.servable for replicas in old]
    serving = sum(serve) + newest.servable
    lasts = not limits.downtime and any(limits.target)
    wanted = [replicas.kept for replicas in old]
    fail = [index for index, replicas in enumerate(old) if replicas.broken or not serve[index]]
    # The newest of those that do not serve, and then the oldest of the others.
    for index in (*reversed(fail), *(index for index in range(len(old)) if index not in fail)):
        replicas = old[index]
        row = _smaller(limits, replicas, budget, only=lasts and serving == 1 and serve[index])
        if row != replicas.kept and not (whole and any(row)):
            wanted[index] = row
            budget.spend(replicas, row)
            serving -= serve[index] and not any(row)
    return tuple(wanted)


class _Budget:
    """How many old replicas may still go, by role."""

    __slots__ = ("any", "full", "over", "ready")

    def __init__(self, spare: list[int], ready: list[int], over: list[int], *, full: bool) -> None:
        self.any = spare
        """Of whatever state."""
        self.over = over
        """Of those that are not ready, as there are more than target and surge."""
        self.ready = ready
        """Of those that are ready."""
        self.full = full
        """Whether the newest revision alone has what may not be gone below."""

    def allows(self, replicas: Replicas) -> Row:
        """How many of a revision's replicas may go, by role."""
        most = []
        for kept, ready, spare, over, loose in zip(
            replicas.kept, replicas.ready, self.any, self.over, self.ready, strict=True
        ):
            # Those that are not ready go first, and cost nothing of what is ready.
            idle = kept - ready
            allowed = min(kept, spare, idle + max(0, loose))
            most.append(max(0, allowed, min(idle, over), idle if replicas.broken else 0))
        return tuple(most)

    def spend(self, replicas: Replicas, wanted: Row) -> None:
        """Take what goes of a revision off the budget."""
        for role, left in enumerate(wanted):
            self.any[role] -= replicas.kept[role] - left
            self.over[role] -= replicas.kept[role] - left
            self.ready[role] -= max(0, replicas.ready[role] - left)


def _budget(
    limits: Limits, newest: Replicas, old: Sequence[Replicas], before: Row, unpaired: bool
) -> _Budget:
    """What may go.

    Args:
        limits: targets and budgets.
        newest: the revision that grows.
        old: the others.
        before: replicas of the others, kept by role.
        unpaired: whether ready replicas of the newest revision count. They serve nobody until there is one
            of every role.
    """
    serving = tuple(map(min, newest.ready, limits.target)) if unpaired else (0,) * len(before)
    ready = map(sum, zip(serving, *(replicas.ready for replicas in old), strict=True))
    spare = [
        min(kept + counts - keep, kept - held)
        for kept, counts, keep, held in zip(before, serving, limits.keep, limits.held, strict=True)
    ]
    if limits.frozen:
        above = (kept + now - top for kept, now, top in zip(before, newest.kept, limits.top, strict=True))
        spare = list(map(min, spare, above))
    loose = [n - floor for n, floor in zip(ready, limits.floor, strict=True)]
    stays = map(min, newest.kept, limits.target)
    over = [
        min(n, kept - held)
        for n, kept, held in zip(
            _over(limits.most, limits, list(stays), before), before, limits.held, strict=True
        )
    ]
    return _Budget(
        spare, loose, over, full=all(n >= floor for n, floor in zip(serving, limits.floor, strict=True))
    )


def _smaller(limits: Limits, replicas: Replicas, budget: _Budget, *, only: bool) -> Row:
    """What one old revision should keep: all of its roles come to zero together, or none does.

    Args:
        limits: targets and budgets.
        replicas: the revision.
        budget: what may go.
        only: whether it is the only one that can serve, and so has to keep a ready replica of every role.
    """
    kept = replicas.kept
    gone = budget.allows(replicas)
    if not any(gone):
        return kept
    roles = [role for role, target in enumerate(limits.target) if target and kept[role]]
    replaced = bool(roles) or budget.full
    if replaced and not only and gone == kept:
        return (0,) * len(kept)
    if not roles:
        return kept
    least = [min(k, max(1, k - n)) for k, n in zip(kept, gone, strict=True)]
    most, of = _part(max, least, limits.target, roles)
    wanted = list(kept)
    for role in roles:
        wanted[role] = min(kept[role], max(least[role], _behind(limits, role, most, of)))
    return tuple(wanted)


def _part(
    choose: Callable[..., int], counts: Sequence[int], targets: Row, roles: Sequence[int]
) -> tuple[int, int]:
    """The least or greatest of counts as parts of their targets."""
    if not roles:
        return 0, 1
    role = choose(roles, key=lambda role: counts[role] / targets[role])
    return counts[role], targets[role]

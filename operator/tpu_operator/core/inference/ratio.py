"""The order in which replicas are made or taken down, so that roles keep their ratio on the way."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tpu_operator.core.inference.groups import Group


def in_ratio(now: Sequence[int], later: Sequence[int], targets: Sequence[int]) -> list[int]:
    """Say which role is next, up from the emptiest of them and down from the fullest.

    Args:
        now: replicas of each role.
        later: replicas that it is to have; of all roles more, or of all fewer, or as many.
        targets: replicas of which these are parts.

    Returns:
        Positions of roles, each as often as one of its replicas is made or taken down.
    """
    steps = []
    for role, (before, after, target) in enumerate(zip(now, later, targets, strict=True)):
        sign = 1 if after > before else -1
        steps += [(sign * n / max(1, target), role) for n in range(before, after, sign)]
    return [role for _, role in sorted(steps)]


def one_by_one(
    groups: Iterable[Group], there: Iterable[Group], targets: Mapping[str, int], *, down: bool = False
) -> list[Group]:
    """Put replicas in the order in which to make them, or to take them down.

    Args:
        groups: the replicas; of one role and revision they keep their order.
        there: those that stay, or are there before.
        targets: replicas that each role is to have.
        down: whether they are taken down.
    """
    kinds: defaultdict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in groups:
        kinds[group.key.revision, group.key.role].append(group)
    few = Counter((group.key.revision, group.key.role) for group in there)
    less = [few[kind] for kind in kinds]
    more = [few[kind] + len(each) for kind, each in kinds.items()]
    now, later = (more, less) if down else (less, more)
    queues = [iter(each) for each in kinds.values()]
    return [next(queues[kind]) for kind in in_ratio(now, later, [targets.get(role, 0) for _, role in kinds])]

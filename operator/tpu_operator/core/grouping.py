"""The PodGroups that one object has, of whatever kind: which it lacks, and which nobody needs any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpu_operator.core.plan import Delete

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from tpu_operator.core.snapshot import Pod, PodGroup


@dataclass(frozen=True, slots=True)
class Grouping:
    """PodGroups of one object, and what they are for.

    Attributes:
        there: those with its label, by name, whoever owns them; None where the cluster serves no PodGroups.
        owner: UID of the object.
        pods: its pods of present attempts.
        idle: names of the PodGroups of slices that have no pod of a present attempt yet.
    """

    there: Mapping[str, PodGroup] | None
    owner: str
    pods: Collection[Pod]
    idle: Collection[str]

    @property
    def mine(self) -> list[PodGroup]:
        """Those that belong to the object."""
        return [group for group in (self.there or {}).values() if self._is_mine(group)]

    @property
    def in_use(self) -> set[str]:
        """Names of those that unfinished pods of present attempts are in."""
        pods = (pod for pod in self.pods if not pod.finished)
        return {name for pod in pods if (name := pod.spec.scheduling_group.pod_group_name)}

    def absent(self, joined: Iterable[str]) -> list[str]:
        """Names of those to make: pods of a present attempt are in them, or are about to be.

        Args:
            joined: those that new pods are to be in.
        """
        if self.there is None:
            return []
        return sorted(name for name in {*joined, *self.in_use} if not self._is_mine(self.there.get(name)))

    def leftovers(self, fits: Callable[[PodGroup], bool]) -> list[PodGroup]:
        """Those of the object that no pod of a present attempt is in, and that none could join as they are.

        Args:
            fits: whether a PodGroup is as it would be made now.
        """
        used = self.in_use
        return [
            group
            for group in self.mine
            if (name := group.metadata.name) not in used
            and (name not in self.idle or is_going(group) or not fits(group))
        ]

    def in_the_way(self, groups: Iterable[PodGroup]) -> set[str]:
        """Names of these that pods which are to be made may need."""
        return {name for group in groups if (name := group.metadata.name) in self.idle}

    def _is_mine(self, group: PodGroup | None) -> bool:
        return group is not None and group.metadata.owner_uid == self.owner


def is_going(group: PodGroup) -> bool:
    """Whether it has been asked to go."""
    return group.metadata.deletion_timestamp is not None


def deletes(groups: Iterable[PodGroup]) -> tuple[Delete, ...]:
    """Deletions of those that have not been asked to go yet."""
    found = (group.metadata for group in groups if not is_going(group))
    return tuple(Delete("PodGroup", meta.namespace, meta.name, meta.uid) for meta in found)

"""Replicas of roles: each is one gang, the hosts of one slice, of one revision for all its life."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpu_operator.api import Cause, GroupState
from tpu_operator.core import failures, names
from tpu_operator.core.numbers import whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from tpu_operator.api import Failure, GroupStatus
    from tpu_operator.core.slicegroup import Gang
    from tpu_operator.core.snapshot import Pod

ENDED = "the engine has ended by itself"


@dataclass(frozen=True, order=True, slots=True)
class GroupKey:
    """Which replica it is."""

    role: str
    revision: str
    index: int

    @property
    def name(self) -> str:
        """Its name, unique in its TPUInference."""
        return names.group_name(self.role, self.revision, self.index)


def key_of(pod: Pod) -> GroupKey | None:
    """The replica that a pod says it belongs to."""
    labels = pod.metadata.labels
    role, revision = labels.get(names.LABEL_ROLE), labels.get(names.LABEL_REVISION)
    index = whole(labels.get(names.LABEL_REPLICA))
    return GroupKey(role, revision, index) if role and revision and index is not None else None


@dataclass(frozen=True)
class Group:
    """One replica as it is.

    Attributes:
        key: which it is.
        gang: its hosts.
        record: what the status says of it; None if it was not recorded.
    """

    key: GroupKey
    gang: Gang
    record: GroupStatus | None = None

    @property
    def leaving(self) -> bool:
        """Whether it has been told to go."""
        return self.record is not None and self.record.state is GroupState.DRAINING

    @property
    def hosts(self) -> int:
        """Hosts that it should have."""
        return len(self.gang.members)

    @property
    def hosts_ready(self) -> int:
        """Hosts that are ready."""
        return sum(map(_serves, self.gang.current))

    @property
    def ready(self) -> bool:
        """Whether all its hosts are ready, and it may be asked to serve."""
        return not self.leaving and not self.gang.absent and all(map(_serves, self.gang.current))

    @property
    def ready_since(self) -> datetime | None:
        """Since when all its hosts are ready; None while they are not."""
        if not self.ready:
            return None
        conditions = [pod.condition("Ready") for pod in self.gang.current]
        times = [c.last_transition_time for c in conditions if c and c.last_transition_time]
        return max(times, default=None)

    def until_available(self, min_ready: int, now: datetime) -> float | None:
        """Seconds until it has been ready for long enough, 0 or less if it has; None if it is not ready."""
        if not self.ready:
            return None
        since = self.ready_since
        return min_ready - (now - since).total_seconds() if since and min_ready else 0.0

    @property
    def gone(self) -> bool:
        """Whether no pod of it is left."""
        return not self.gang.pods

    @property
    def leader(self) -> Pod | None:
        """The pod of host 0, of whatever attempt."""
        return self.gang.pods.get(self.gang.members[0].name)

    @property
    def routed(self) -> bool:
        """Whether routers may send requests to it, once it is ready."""
        leader = self.leader
        if leader is None or leader.deleting:
            return False
        return leader.metadata.labels.get(names.LABEL_LLMD_SERVING) == names.SERVING

    def failures(self, now: datetime) -> list[Failure]:
        """What has gone wrong in its present attempt; a server that ends is as bad as one that fails."""
        ended = [
            failures.outside(pod, Cause.USER_ERROR, ENDED, _end(pod) or now)
            for pod in self.gang.current
            if pod.succeeded and not pod.deleting
        ]
        return [*self.gang.failures(now), *ended]


def _serves(pod: Pod) -> bool:
    return pod.ready and not pod.deleting and not pod.finished


def _end(pod: Pod) -> datetime | None:
    return pod.terminated.finished_at if pod.terminated else None


def victims(groups: Iterable[Group], count: int, available: Callable[[Group], bool]) -> list[Group]:
    """The replicas of a role and revision that go first.

    Those that are not ready, then those that are not `available` yet, on which budgets do not count, and then
    those added last.
    """
    return sorted(groups, key=lambda group: (available(group), group.ready, -group.key.index))[:count]


def free_indexes(taken: Iterable[int], count: int) -> list[int]:
    """The lowest indexes that no replica of a role and revision has."""
    used, found, index = set(taken), list[int](), 0
    while len(found) < count:
        if index not in used:
            found.append(index)
        index += 1
    return found

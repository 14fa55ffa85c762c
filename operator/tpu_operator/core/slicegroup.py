"""One gang of pods: the slices that start, fail and restart together.

The attempt number is the whole protocol. A decision to restart is only ever the status saying `attempt + 1`;
pods that carry another attempt are then leftovers, deleted on sight, and no pod of the new attempt is made
while one of them is there, since it may still hold the chips. A crash of the operator at any point leaves
something from which the next pass goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from tpu_operator.api import Cause, SliceState
from tpu_operator.core import failures, names, notices
from tpu_operator.core.plan import Delete

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping
    from datetime import datetime

    from tpu_operator.api import Failure
    from tpu_operator.core.notices import Notice
    from tpu_operator.core.snapshot import Pod


@dataclass(frozen=True, slots=True)
class Member:
    """A pod that the gang should have.

    Attributes:
        name: name of the pod.
        slice_index: its slice; None for the head.
        host: its host in the slice; None for the head.
    """

    name: str
    slice_index: int | None = None
    host: int | None = None


def workers(job: str, slices: Iterable[int], hosts: int) -> tuple[Member, ...]:
    """The hosts of some slices, in order."""
    return tuple(Member(names.worker_name(job, s, h), s, h) for s in slices for h in range(hosts))


@dataclass(frozen=True)
class Gang:
    """A gang as it is.

    Attributes:
        members: the pods that it should have.
        attempt: the attempt that its pods should carry.
        pods: its pods of any attempt, by name.
        started: whether all of its pods of this attempt have been seen on nodes; from then on a pod that is
            gone was taken away, before that it only has not been made.
        done: slices of which it is on record that all hosts have succeeded; their pods may go.
        ignored: names of failed pods that the failure policy leaves alone.
        faults: by pod, failures that show in its node alone.
        in_place: how many of its restarts so far have kept the pods.
        in_place_since: since when such a restart is under way, None if none is.
        last: the last failure on record that has led to another attempt.
        notices: by pod, the maintenance that is announced for its node.
        gone: by name, pods that are gone, as they were last seen.
    """

    members: tuple[Member, ...]
    attempt: int
    pods: Mapping[str, Pod]
    started: bool
    done: frozenset[int] = frozenset()
    ignored: frozenset[str] = frozenset()
    faults: Mapping[str, Failure] = field(default_factory=dict)
    notices: Mapping[str, Notice] = field(default_factory=dict)
    gone: Mapping[str, Pod] = field(default_factory=dict)
    in_place: int = 0
    in_place_since: datetime | None = None
    last: Failure | None = None

    @property
    def number(self) -> int:
        """The attempt of its slices, restarts of both kinds counted."""
        return self.attempt + self.in_place

    @cached_property
    def slices(self) -> tuple[int, ...]:
        """Indexes of its slices, ascending."""
        return tuple(sorted({m.slice_index for m in self.members if m.slice_index is not None}))

    @cached_property
    def stale(self) -> list[Pod]:
        """Leftovers of other attempts."""
        return [pod for name, pod in self.pods.items() if name not in self._present]

    @cached_property
    def current(self) -> list[Pod]:
        """Pods of this attempt."""
        return [self.pods[name] for name in self._present]

    @cached_property
    def absent(self) -> list[Member]:
        """Members without a pod of this attempt."""
        return [m for m in self.members if m.slice_index not in self.done and not self._has(m)]

    @cached_property
    def by_slice(self) -> Mapping[int, list[Pod]]:
        """Pods of this attempt, by the slice that their name puts them in."""
        found: dict[int, list[Pod]] = {index: [] for index in self.slices}
        for member in self.members:
            if member.slice_index is not None and self._has(member):
                found[member.slice_index].append(self.pods[member.name])
        return found

    @property
    def succeeded(self) -> bool:
        """Whether every member ended well, or in a way that does not matter."""
        return not self.absent and all(self.is_done(pod) for pod in self.current)

    @property
    def ready(self) -> bool:
        """Whether every member is ready, or done already."""
        return not self.absent and all(pod.ready or self.is_done(pod) for pod in self.current)

    @property
    def in_place_under_way(self) -> bool:
        """Whether its pods were to start again and are not all ready yet."""
        return self.in_place_since is not None and not self.ready

    @property
    def scheduled(self) -> bool:
        """Whether every member has a node."""
        return not self.absent and all(pod.spec.node_name for pod in self.current)

    @property
    def head_scheduled(self) -> bool:
        """Whether the head, if the gang has one, has a node."""
        heads = [m.name for m in self.members if m.slice_index is None]
        return all(any(pod.name == name and pod.spec.node_name for pod in self.current) for name in heads)

    def is_done(self, pod: Pod) -> bool:
        """Whether nothing more is expected of a pod."""
        return pod.succeeded or pod.name in self.ignored

    def outdated(self, revision: str) -> bool:
        """Whether pods of this attempt were made from something else."""
        return any(pod.metadata.labels.get(names.LABEL_REVISION) != revision for pod in self.current)

    def has_member(self, name: str | None) -> bool:
        """Whether a pod of that name belongs to the gang."""
        return any(member.name == name for member in self.members)

    def _has(self, member: Member) -> bool:
        return member.name in self._present

    @cached_property
    def _present(self) -> Mapping[str, None]:
        """Names of the pods of this attempt, in the order of all."""
        return {name: None for name, pod in self.pods.items() if pod.attempt == self.attempt}

    def failures(self, now: datetime) -> list[Failure]:
        """All failures of this attempt that can be seen."""
        seen = [self.explained(found, now) for pod in self.current if (found := self._failure(pod, now))]
        if not self.started:
            return seen
        return seen + [self._taken(member, now) for member in self.absent]

    def reported(self, attempt: int, now: datetime) -> list[Failure]:
        """Failures of an attempt for which something else than a plain deletion is to blame."""
        known = (*self.pods.values(), *self.gone.values())
        pods = [pod for pod in known if pod.attempt + self.in_place == attempt]
        found = [failure for pod in pods if (failure := self._failure(pod, now))]
        # Deletions are ours, also where maintenance is under way.
        return [self.explained(failure, now) for failure in found if failure.cause != Cause.POD_DELETED]

    def _taken(self, member: Member, now: datetime) -> Failure:
        """The failure of a member whose pod is gone: what was last seen of it, or that it was deleted."""
        pod = self.gone.get(member.name)
        told = self._failure(pod, now) if pod and pod.attempt == self.attempt else None
        if told:
            return self.explained(told, now)
        return failures.missing(member.name, member.slice_index, member.host, self.number, now)

    def _failure(self, pod: Pod, now: datetime) -> Failure | None:
        """What the pod says itself goes before what its node says, unless it was only taken away."""
        told = failures.failure_of(pod, now)
        fault = self.faults.get(pod.name)
        found = fault if fault and (told is None or told.cause == Cause.POD_DELETED) else told
        return self.numbered(found) if found else None

    def explained(self, failure: Failure, now: datetime) -> Failure:
        """A failure, put down to maintenance where that is what has happened to its node."""
        return notices.attributed(failure, self.notices.get(failure.pod or ""), now)

    def numbered(self, failure: Failure) -> Failure:
        """A failure that bears the attempt of its pod, with that of its slice."""
        if not self.in_place:
            return failure
        return failure.model_copy(update={"attempt": failure.attempt + self.in_place})


def deletes(pods: Iterable[Pod], unreachable: Container[str] = ()) -> tuple[Delete, ...]:
    """Deletions of those pods that have not been asked to go yet.

    Args:
        pods: the pods.
        unreachable: names of pods on nodes that are lost: nobody there can confirm that they have ended, so
            their objects go at once.
    """
    return tuple(
        Delete(
            "Pod", pod.metadata.namespace, pod.name, pod.metadata.uid, 0 if pod.name in unreachable else None
        )
        for pod in pods
        if not pod.deleting or (pod.name in unreachable and pod.metadata.deletion_grace_period_seconds)
    )


def slice_state(gang: Gang, index: int, hosts: int, *, restarting: bool) -> SliceState:
    """One word for a slice of a gang.

    Args:
        gang: the gang.
        index: the slice.
        hosts: how many it should have.
        restarting: its gang waits for the pods of the present attempt to be made.
    """
    pods = gang.by_slice[index]
    if index in gang.done:
        return SliceState.SUCCEEDED
    if restarting:
        return SliceState.RESTARTING
    if not gang.head_scheduled or len(pods) < hosts or not all(pod.spec.node_name for pod in pods):
        return SliceState.PENDING
    if all(pod.succeeded for pod in pods):
        return SliceState.SUCCEEDED
    if all(pod.ready or gang.is_done(pod) for pod in pods):
        return SliceState.RUNNING
    return SliceState.STARTING


def spare_state(gang: Gang) -> SliceState:
    """One word for a spare slice."""
    if gang.ready:
        return SliceState.SPARE
    return SliceState.STARTING if gang.scheduled else SliceState.PENDING

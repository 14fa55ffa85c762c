"""What `kubectl tpu` shows of a TPUInference: a tree of revisions, roles, replicas and hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tpu_operator.api import GroupState
from tpu_operator.cli.hosts import Host, host
from tpu_operator.cli.tree import Fault, Wait, fault
from tpu_operator.core import names
from tpu_operator.core.numbers import whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from tpu_operator.api import GroupStatus, RevisionStatus, TPUInference
    from tpu_operator.cli.follow import Served
    from tpu_operator.core.snapshot import Pod


class Replica(msgspec.Struct, frozen=True, rename="camel"):
    """A replica of a role, which is one slice.

    Attributes:
        name: its name, without that of the TPUInference.
        index: its number among those of its role and revision.
        state: as in the API.
        ready: hosts that are ready of those that it has.
        restarts: restarts so far.
        since: since when it is ready, or leaves.
        node_pool: where it is, empty if nowhere.
        reason: why it was last made anew, empty if it never was.
        hosts: its hosts, in order.
    """

    name: str
    index: int
    state: str
    ready: str
    restarts: int
    since: datetime | None
    node_pool: str
    reason: str
    hosts: tuple[Host, ...]


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """What a revision has of a role.

    Attributes:
        role: the role.
        kept: replicas that are to stay for now.
        ready: how many of these are ready.
        leaving: replicas that have been told to go.
        replicas: all of them, in order.
    """

    role: str
    kept: int
    ready: int
    leaving: int
    replicas: tuple[Replica, ...]


class Revision(msgspec.Struct, frozen=True, rename="camel"):
    """A revision that has replicas.

    Attributes:
        name: its name.
        kv_compat: equal for those that can hand KV caches to each other.
        servable: whether it has a ready replica of every role.
        newest: whether it is the one that grows.
        current: whether it is the last one that all replicas were of.
        parts: what it has of each role.
    """

    name: str
    kv_compat: str
    servable: bool
    newest: bool
    current: bool
    parts: tuple[Part, ...]


class Held(msgspec.Struct, frozen=True, rename="camel"):
    """What a rollout waits for."""

    gate: str
    reason: str
    since: datetime | None


class Rollout(msgspec.Struct, frozen=True, rename="camel"):
    """How far a rollout is.

    Attributes:
        state: Idle, Rolling or Held.
        step: replicas of the newest revision that are ready, in words.
        canary_step: steps of the canary that are done.
        canary_steps: steps that it has, 0 without one.
        hold: what it waits for.
        overdue: whether nothing has become ready for longer than its deadline.
        complete: whether all replicas are of the newest revision, ready and in number.
        rejected: why an analysis has given up the revision that the spec asks for; empty if none has.
    """

    state: str
    step: str
    canary_step: int
    canary_steps: int
    hold: Held | None
    overdue: bool
    complete: bool
    rejected: str


class RoleTree(msgspec.Struct, frozen=True, rename="camel"):
    """All that `status` shows of a TPUInference.

    Attributes:
        targets: replicas that each role should have.
        revisions: those that have replicas, the newest first.
    """

    name: str
    namespace: str
    phase: str
    ready: str
    reason: str
    message: str
    model: str
    engine: str
    created: datetime | None
    restarts: int
    current_revision: str
    updated_revision: str
    targets: dict[str, int]
    rollout: Rollout
    pending: Wait | None
    last_failure: Fault | None
    up_to_date: bool
    revisions: tuple[Revision, ...]


def role_tree(seen: Served, now: datetime) -> RoleTree:
    """What there is to show of a TPUInference."""
    inference, status = seen.inference, seen.inference.status
    meta, waits = inference.metadata, status.pending
    return RoleTree(
        name=meta.name,
        namespace=meta.namespace,
        phase=str(status.phase) if status.observed_generation is not None else "Unknown",
        ready=status.ready,
        reason=status.reason or "",
        message=status.message or "",
        model=inference.spec.model.name,
        engine=str(inference.spec.engine.type),
        created=meta.creation_timestamp,
        restarts=status.restarts,
        current_revision=status.current_revision,
        updated_revision=status.updated_revision,
        targets={role.name: role.desired for role in status.roles},
        rollout=rollout_of(inference),
        pending=Wait(str(waits.reason), waits.message, waits.since) if waits else None,
        last_failure=fault(status.last_failure),
        up_to_date=status.observed_generation == meta.generation,
        revisions=tuple(_revision(seen, revision, now) for revision in status.revisions),
    )


def rollout_of(inference: TPUInference) -> Rollout:
    """How far the rollout of a TPUInference is."""
    status, canary = inference.status, inference.spec.rollout.canary
    state, hold = status.rollout, status.rollout.hold
    progressing = next((c for c in status.conditions if c.type == "Progressing"), None)
    reason = progressing.reason if progressing else ""
    return Rollout(
        state=str(state.state),
        step=state.step,
        canary_step=state.canary_step,
        canary_steps=len(canary.steps) if canary else 0,
        hold=Held(str(hold.gate), hold.reason, hold.since) if hold else None,
        overdue=reason == "ProgressDeadlineExceeded",
        complete=reason == "Complete" and status.observed_generation == inference.metadata.generation,
        rejected=f"{state.rejected.revision}: {state.rejected.reason}" if state.rejected else "",
    )


def _revision(seen: Served, revision: RevisionStatus, now: datetime) -> Revision:
    status = seen.inference.status
    order = [role.name for role in status.roles]
    has = [role.name for role in revision.roles]
    roles = sorted(has, key=lambda name: order.index(name) if name in order else len(order))
    return Revision(
        name=revision.name,
        kv_compat=revision.kv_compat,
        servable=revision.servable,
        newest=revision.name == status.updated_revision,
        current=revision.name == status.current_revision,
        parts=tuple(_part(seen, revision.name, role, now) for role in roles),
    )


def _part(seen: Served, revision: str, role: str, now: datetime) -> Part:
    groups = [g for g in seen.inference.status.groups if (g.revision, g.role) == (revision, role)]
    leaving = sum(group.state is GroupState.DRAINING for group in groups)
    return Part(
        role=role,
        kept=len(groups) - leaving,
        ready=sum(group.state is GroupState.READY for group in groups),
        leaving=leaving,
        replicas=tuple(_replica(seen, group, now) for group in sorted(groups, key=lambda g: g.index)),
    )


def _replica(seen: Served, group: GroupStatus, now: datetime) -> Replica:
    return Replica(
        name=group.name,
        index=group.index,
        state=str(group.state),
        ready=group.ready,
        restarts=group.attempt,
        since=group.since,
        node_pool=group.node_pool or "",
        reason=group.reason or "",
        hosts=_hosts(seen, group, now),
    )


def _hosts(seen: Served, group: GroupStatus, now: datetime) -> tuple[Host, ...]:
    """The hosts of a replica in order, with those that have no pod where there should be one."""
    found = {one.host: one for one in (host(pod, now) for pod in pods_of(seen.pods, group))}
    leaving = group.state is GroupState.DRAINING
    wanted = range(whole(group.ready.partition("/")[2]) or 0) if found and not leaving else ()
    base = names.role_name(seen.inference.metadata.name, group.role, group.revision)
    missing = {
        number: Host(names.worker_name(base, group.index, number), group.index, number) for number in wanted
    }
    known: Mapping[int, Host] = missing | {number: one for number, one in found.items() if number is not None}
    return tuple(known[number] for number in sorted(known))


def pods_of(pods: Sequence[Pod], group: GroupStatus) -> list[Pod]:
    """The pods of a replica, of any attempt."""
    mine = {
        names.LABEL_ROLE: group.role,
        names.LABEL_REVISION: group.revision,
        names.LABEL_REPLICA: str(group.index),
    }
    return [pod for pod in pods if mine.items() <= pod.metadata.labels.items()]

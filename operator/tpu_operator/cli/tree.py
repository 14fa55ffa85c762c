"""`kubectl tpu status`: the model, a tree of slices and hosts."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from tpu_operator.catalog import CatalogError, SliceShape, resolve
from tpu_operator.cli.hosts import Host, brief, host, place
from tpu_operator.core import names
from tpu_operator.core.pending import counted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tpu_operator.api import Condition, Failure, TPUJob
    from tpu_operator.cli.follow import Seen

ENDED = frozenset({"Succeeded", "Failed"})


class Fault(msgspec.Struct, frozen=True, rename="camel"):
    """A failure, as far as it is shown.

    Attributes:
        cause: as in the API.
        attempt: of the slice that failed.
        where: host and slice, in words.
        message: exit code and message.
        time: when it was.
    """

    cause: str
    attempt: int
    where: str
    message: str
    time: datetime | None


class Wait(msgspec.Struct, frozen=True, rename="camel"):
    """What a job waits for."""

    reason: str
    message: str
    since: datetime | None


class Slice(msgspec.Struct, frozen=True, rename="camel"):
    """A slice and its hosts.

    Attributes:
        index: its number.
        state: as in the API.
        ready: hosts that are ready of those that it has.
        attempt: restarts of the slice so far.
        node_pool: where it is, empty if nowhere.
        hosts: its hosts in order; none where no pods are to be.
        last_failure: the root of its last failure.
    """

    index: int
    state: str
    ready: str
    attempt: int
    node_pool: str
    hosts: tuple[Host, ...]
    last_failure: Fault | None


class Restarts(msgspec.Struct, frozen=True, rename="camel"):
    """Restarts so far; `limit` is the number of counted ones that there may be."""

    total: int
    counted: int
    limit: int
    by_cause: dict[str, int]


class Tree(msgspec.Struct, frozen=True, rename="camel"):
    """All that `status` shows of a job."""

    name: str
    namespace: str
    phase: str
    ready: str
    reason: str
    message: str
    accelerator: str
    topology: str
    shape: str
    created: datetime | None
    started: datetime | None
    completed: datetime | None
    restarts: Restarts
    pending: Wait | None
    last_failure: Fault | None
    maintenance: str
    up_to_date: bool
    head: Host | None
    slices: tuple[Slice, ...]


def tree(seen: Seen, now: datetime) -> Tree:
    """What there is to show of a job."""
    job, status = seen.job, seen.job.status
    waits, restarts = status.pending, status.restarts
    return Tree(
        name=job.metadata.name,
        namespace=job.metadata.namespace,
        phase=str(status.phase) if status.observed_generation is not None else "Unknown",
        ready=status.ready,
        reason=status.reason or "",
        message=status.message or "",
        accelerator=job.spec.tpu.accelerator,
        topology=job.spec.tpu.topology,
        shape=describe_shape(job),
        created=job.metadata.creation_timestamp,
        started=status.start_time,
        completed=status.completion_time,
        restarts=Restarts(
            restarts.total,
            restarts.counted,
            job.spec.failure_policy.max_restarts,
            {str(cause): count for cause, count in restarts.by_cause.items()},
        ),
        pending=Wait(str(waits.reason), waits.message, waits.since) if waits else None,
        last_failure=fault(status.last_failure),
        maintenance=maintenance(job),
        up_to_date=status.observed_generation == job.metadata.generation,
        head=_head(seen, now),
        slices=_slices(seen, now),
    )


def fault(failure: Failure | None) -> Fault | None:
    """A failure as it is shown."""
    if failure is None:
        return None
    return Fault(str(failure.cause), failure.attempt, place(failure), brief(failure), failure.time)


def shape_of(job: TPUJob) -> SliceShape | None:
    """The shape of a job's slices; None where there is no such shape."""
    tpu = job.spec.tpu
    try:
        return resolve(tpu.accelerator, tpu.topology, tpu.chips_per_host)
    except CatalogError:
        return None


def describe_shape(job: TPUJob) -> str:
    """Slices, hosts and chips of a job, in words; empty where there is no such shape."""
    shape = shape_of(job)
    if shape is None:
        return ""
    slices = counted(job.spec.tpu.slices, "slice", "slices")
    spares = f" and {job.spec.tpu.spare_slices} spare" if job.spec.tpu.spare_slices else ""
    hosts = counted(shape.hosts, "host", "hosts")
    return f"{slices}{spares} of {hosts} with {counted(shape.chips_per_host, 'chip', 'chips')}"


def condition(job: TPUJob, kind: str) -> Condition | None:
    """A condition of a job that is true."""
    return next((c for c in job.status.conditions if c.type == kind and c.status == "True"), None)


def maintenance(job: TPUJob) -> str:
    """What is known of coming maintenance of a job's nodes; empty if nothing."""
    found = condition(job, "MaintenanceScheduled")
    return found.message if found else ""


def _head(seen: Seen, now: datetime) -> Host | None:
    if seen.job.spec.head is None:
        return None
    name = names.head_name(seen.job.metadata.name)
    pod = next((pod for pod in seen.pods if pod.name == name), None)
    return host(pod, now) if pod else Host(name)


def _slices(seen: Seen, now: datetime) -> tuple[Slice, ...]:
    by_slice: defaultdict[int, dict[int, Host]] = defaultdict(dict)
    for pod in seen.pods:
        one = host(pod, now)
        if one.slice is not None and one.host is not None:
            by_slice[one.slice][one.host] = one
    return tuple(
        Slice(
            index=status.index,
            state=str(status.state),
            ready=status.ready,
            attempt=status.attempt,
            node_pool=status.node_pool or "",
            hosts=_members(seen.job, status.index, str(status.state), by_slice[status.index]),
            last_failure=fault(status.last_failure),
        )
        for status in seen.job.status.slices
    )


def _members(job: TPUJob, index: int, state: str, found: Mapping[int, Host]) -> tuple[Host, ...]:
    """The hosts of a slice in order, with those that have no pod where there should be one."""
    shape = shape_of(job)
    wanted = range(shape.hosts) if shape and state not in {*ENDED, "Suspended"} and found else found
    return tuple(
        found.get(number) or Host(names.worker_name(job.metadata.name, index, number), index, number)
        for number in sorted({*wanted, *found})
    )

"""Why the scheduler finds no nodes for a job: in one sentence, from the nodes and who is on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpu_operator.api import BlockedReason
from tpu_operator.core import names
from tpu_operator.core.pending import QUOTE, Hold, counted, some, unscheduled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpu_operator.core.nodes import Nodes
    from tpu_operator.core.placement import Demand, Pools, Tenant
    from tpu_operator.core.snapshot import Node, Pod, PodCondition

REASONS: Final = frozenset(
    {BlockedReason.CAPACITY_IN_USE, BlockedReason.UNSCHEDULABLE, BlockedReason.QUOTA_EXCEEDED}
)
LOOK_AGAIN: Final = 30.0
"""Seconds after which what is said of other jobs is said anew: nothing tells of it when they come and go."""


def unschedulable(pods: Iterable[Pod], nodes: Nodes, pools: Pools, demand: Demand) -> Hold | None:
    """Pods for which the scheduler finds no node, and the nearest reason in the cluster's nodes."""
    waiting = [(pod, condition) for pod in pods if (condition := unscheduled(pod))]
    if not waiting:
        return None
    slices = {pod.metadata.labels.get(names.LABEL_SLICE_ID, "") for pod, _ in waiting}
    return (
        _no_nodes(nodes.by_name.values(), demand)
        or _in_use(pools, demand, slices)
        or _too_few(pools, demand)
        or _scheduler_says(waiting)
    )


def _no_nodes(nodes: Iterable[Node], demand: Demand) -> Hold | None:
    """The first label by which the cluster has no nodes of the kind, and what it has instead."""
    left = [node.metadata.labels for node in nodes]
    asked: list[str] = []
    for key, value in demand.selector.items():
        have = sorted({labels[key] for labels in left if key in labels})
        left = [labels for labels in left if labels.get(key) == value]
        if not left:
            among = f" with {', '.join(asked)}" if asked else ""
            instead = f"; there are nodes with {some(have)}" if have else ""
            return Hold(BlockedReason.NO_MATCHING_NODES, f"no node{among} has {key}={value}{instead}")
        asked.append(f"{key.rpartition('/')[2]}={value}")
    return None


def _in_use(pools: Pools, demand: Demand, slices: set[str]) -> Hold | None:
    """Who holds the hosts that would fit, and what is wrong with others; None where there is room."""
    kind = list(pools.of(demand.selector))
    if any(_has_room(pools, pool, demand, slices) for pool in kind):
        return None
    if not (held := _held(pools, kind, slices)):
        return None
    hosts = [node for pool in kind for node in pools.nodes(pool) if demand.wants(node)]
    free = [
        node
        for node in hosts
        if not pools.fault(node, demand) and not _others(pools.tenants_on(node.metadata.name), slices)
    ]
    faults = _faults(pools, hosts, demand)
    return Hold(
        BlockedReason.CAPACITY_IN_USE,
        f"{len(free)} of {len(hosts)} hosts of the kind are free, {_need(demand, len(slices))}; "
        f"held are {some(held, '; ')}{f'; {some(faults)}' if faults else ''}",
    )


def _has_room(pools: Pools, pool: str, demand: Demand, slices: set[str]) -> bool:
    """Whether one of the slices that wait could be in a node pool, as far as can be seen from here."""
    inside = {tenant.slice_id for tenant in pools.tenants(pool)}
    return len(inside) <= 1 and inside <= slices and len(pools.usable(pool, demand)) >= demand.hosts


def _too_few(pools: Pools, demand: Demand) -> Hold | None:
    """The node pool that comes nearest to having enough hosts, and what is wrong with the others."""
    if demand.shared:
        return None
    fit = {pool: len(pools.usable(pool, demand)) for pool in pools.of(demand.selector)}
    if not fit or (most := max(fit.values())) >= demand.hosts:
        return None
    pool = next(name for name, count in fit.items() if count == most)
    faults = _faults(pools, pools.nodes(pool), demand)
    need = counted(demand.hosts, "host", "hosts")
    return Hold(
        BlockedReason.UNSCHEDULABLE,
        f"a slice needs {need} of one node pool at the same time, and {pool}, the one with the "
        f"most of them, has {most} that pods may use{f': {some(faults)}' if faults else ''}",
    )


def _faults(pools: Pools, hosts: Iterable[Node], demand: Demand) -> list[str]:
    """Hosts to which no pod can go, and why."""
    return [f"{node.metadata.name} {fault}" for node in hosts if (fault := pools.fault(node, demand))]


def _held(pools: Pools, kind: Iterable[str], slices: set[str]) -> list[str]:
    """Node pools with the jobs that are in them."""
    jobs = {pool: _others(pools.tenants(pool), slices) for pool in kind}
    return [f"{pool} by {some(found)}" for pool, found in jobs.items() if found]


def _others(tenants: Iterable[Tenant], slices: set[str]) -> list[str]:
    """Jobs that hold chips for other slices than those that wait, be they of the same job."""
    return sorted({tenant.job for tenant in tenants if tenant.slice_id and tenant.slice_id not in slices})


def _need(demand: Demand, slices: int) -> str:
    """The hosts that have to be free, in words."""
    if demand.hosts == 1 or demand.shared:
        return f"{counted(demand.hosts * slices, 'is', 'are')} needed"
    where = "one node pool" if slices == 1 else f"each of {slices} node pools"
    return f"{demand.hosts} in {where} are needed"


def _scheduler_says(waiting: Sequence[tuple[Pod, PodCondition]]) -> Hold:
    pod, condition = waiting[0]
    wait = counted(len(waiting), "pod waits for a node", "pods wait for nodes")
    text = f"{wait}; the scheduler says of {pod.name}: {condition.message[:QUOTE]}"
    return Hold(BlockedReason.UNSCHEDULABLE, text)

"""Why a gang does not run yet: the first reason that a person can do something about."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from tpu_operator.api import BlockedReason, Placement
from tpu_operator.core import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from tpu_operator.core.placement import Demand
    from tpu_operator.core.snapshot import JobSnapshot, Node, Pod, PodCondition

PULL_ERRORS: Final = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
)
START_ERRORS: Final = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
)
KUBELET_ERRORS: Final = dict.fromkeys(PULL_ERRORS, BlockedReason.IMAGE_PULL_FAILED) | dict.fromkeys(
    START_ERRORS, BlockedReason.CREATE_REFUSED
)
"""Why a kubelet has a container wait, where waiting alone will not help."""
STUCK_AFTER: Final = timedelta(seconds=30)
"""How long past its grace period a pod may take to go before it is called stuck."""
LATE_AFTER: Final = timedelta(seconds=60)
"""How long scheduler and kubelet may take to begin with a pod before somebody is told."""
PATIENCE: Final = timedelta(seconds=15)
"""How long the scheduler may look for room in the node pool that was chosen for a pod."""
SHOWN: Final = 3
"""Things of a kind that a message names."""
QUOTE: Final = 1024
"""Characters of what others say that are passed on: some registries answer with whole web pages."""


@dataclass(frozen=True, slots=True)
class Hold:
    """What holds a job up."""

    reason: BlockedReason
    message: str


def refused(message: str) -> Hold | None:
    """A child that the API server would not create."""
    if not message:
        return None
    quota = "exceeded quota" in message
    return Hold(BlockedReason.QUOTA_EXCEEDED if quota else BlockedReason.CREATE_REFUSED, message[:QUOTE])


def conflicting(conflicts: Iterable[str]) -> Hold:
    """Templates from which no pods can be made."""
    return Hold(BlockedReason.ENVIRONMENT_CONFLICT, "; ".join(conflicts)[:QUOTE])


def waiting_for_old(stale: Iterable[Pod], now: datetime) -> Hold | None:
    """Leftovers of an old attempt that do not go away."""
    stuck = [pod for pod in stale if (left := _until_stuck(pod, now)) is not None and left <= 0]
    if not stuck:
        return None
    nodes = ", ".join(f"{pod.name} on node {pod.spec.node_name or '(none)'}" for pod in stuck[:3])
    return Hold(
        BlockedReason.WAITING_FOR_OLD_PODS,
        f"{len(stuck)} pods of an earlier attempt do not terminate: {nodes}; "
        "look at their finalizers and nodes",
    )


def stuck_in(stale: Iterable[Pod], now: datetime) -> float | None:
    """Seconds until the next of the leftovers counts as one that does not go away; None if none will."""
    left = [seconds for pod in stale if (seconds := _until_stuck(pod, now)) is not None and seconds > 0]
    return min(left, default=None)


def _until_stuck(pod: Pod, now: datetime) -> float | None:
    deadline = pod.metadata.deletion_timestamp
    return (deadline + STUCK_AFTER - now).total_seconds() if deadline else None


def not_started(pods: Iterable[Pod]) -> Hold | None:
    """Containers that their kubelets cannot start: no image, no ConfigMap, a sidecar that crashes."""
    for pod in pods:
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
            waiting = status.state.waiting
            if waiting and (reason := KUBELET_ERRORS.get(waiting.reason)):
                where = f"container {status.name} of pod {pod.name}"
                return Hold(reason, f"{where}: {waiting.reason}: {waiting.message[:QUOTE]}")
    return None


def gated(pods: Iterable[Pod]) -> Hold | None:
    """Pods that the scheduler may not look at yet."""
    found = [pod.name for pod in pods if _scheduling(pod) == "SchedulingGated"]
    if not found:
        return None
    text = f"{len(found)} pods wait until somebody removes their spec.schedulingGates, {found[0]} among them"
    return Hold(BlockedReason.AWAITING_ADMISSION, text)


def neglected(pods: Iterable[Pod], now: datetime) -> Hold | None:
    """Pods that a scheduler or a kubelet should have begun with long ago, and that nothing is said about."""
    late = [pod for pod in pods if (left := _until_late(pod, now)) is not None and left <= 0]
    if not late:
        return None
    unseen = [pod.name for pod in late if not pod.spec.node_name]
    if unseen:
        text = (
            f"no scheduler has looked at pod {unseen[0]}: does the one run that its spec.schedulerName names?"
        )
        return Hold(BlockedReason.UNSCHEDULABLE, text)
    where = f"pod {late[0].name} on node {late[0].spec.node_name}"
    text = f"{where} waits for its volumes or its network; the events in kubectl describe pod say for what"
    return Hold(BlockedReason.CREATE_REFUSED, text)


def late_in(pods: Iterable[Pod], now: datetime) -> float | None:
    """Seconds until the next pod counts as neglected; None if none will."""
    left = [seconds for pod in pods if (seconds := _until_late(pod, now)) is not None and seconds > 0]
    return min(left, default=None)


def _until_late(pod: Pod, now: datetime) -> float | None:
    if pod.status.phase != "Pending" or pod.deleting:
        return None
    since = None
    if not pod.spec.node_name:
        since = pod.metadata.creation_timestamp if _scheduling(pod) is None else None
    elif (sandbox := pod.condition("PodReadyToStartContainers")) and sandbox.status == "False":
        since = sandbox.last_transition_time
    return (since + LATE_AFTER - now).total_seconds() if since else None


def _scheduling(pod: Pod) -> str | None:
    """Why the scheduler has found no node; None before it has looked."""
    condition = pod.condition("PodScheduled")
    return condition.reason if condition else None


def pinned_in_vain(pods: Iterable[Pod], now: datetime) -> bool:
    """Whether the scheduler has found no room for a pod in the node pool that was chosen for it."""
    return any(left <= 0 for left in _patience(pods, now))


def patience(pods: Iterable[Pod], now: datetime) -> float | None:
    """Seconds until the next pod will have waited too long for its node pool; None if none does."""
    return min((left for left in _patience(pods, now) if left > 0), default=None)


def _patience(pods: Iterable[Pod], now: datetime) -> Iterable[float]:
    for pod in pods:
        if pod.spec.node_selector.pool and (condition := _unscheduled(pod)):
            since = condition.last_transition_time or now
            yield (since + PATIENCE - now).total_seconds()


def _unscheduled(pod: Pod) -> PodCondition | None:
    """What the scheduler says of a pod that it finds no node for."""
    condition = pod.condition("PodScheduled")
    if condition is None or (condition.status, condition.reason) != ("False", "Unschedulable"):
        return None
    return condition


def unschedulable(pods: Iterable[Pod], snapshot: JobSnapshot, demand: Demand) -> Hold | None:
    """Pods for which the scheduler finds no node, and the nearest reason in the cluster's nodes."""
    waiting = [(pod, condition) for pod in pods if (condition := _unscheduled(pod))]
    if not waiting:
        return None
    nodes = snapshot.nodes.by_name.values()
    return (
        _no_nodes(nodes, demand)
        or _in_use(snapshot, demand)
        or _too_few(snapshot, demand)
        or _unexplained(waiting)
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
            instead = f"; there are nodes with {', '.join(have[:SHOWN])}" if have else ""
            return Hold(BlockedReason.NO_MATCHING_NODES, f"no node{among} has {key}={value}{instead}")
        asked.append(f"{key.rpartition('/')[2]}={value}")
    return None


def _in_use(snapshot: JobSnapshot, demand: Demand) -> Hold | None:
    """The slices that hold the node pools that would fit."""
    pools, mine = snapshot.pools, f"{snapshot.job.metadata.namespace}/{snapshot.job.metadata.name}"
    fitting = [pool for pool in pools.of(demand.selector) if any(map(demand.suits, pools.nodes(pool)))]
    held = {pool: sorted({tenant.job for tenant in pools.tenants(pool)} - {mine}) for pool in fitting}
    if not any(held.values()):
        return None
    suiting = [node for pool in fitting for node in pools.nodes(pool) if demand.suits(node)]
    free = sum(not pools.tenants_on(node.metadata.name) for node in suiting)
    shown = [f"{pool} by {', '.join(jobs)}" for pool, jobs in held.items() if jobs]
    more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    return Hold(
        BlockedReason.CAPACITY_IN_USE,
        f"{free} of {len(suiting)} hosts of the kind are free, {demand.hosts} in one node pool are needed; "
        f"held are {'; '.join(shown[:SHOWN])}{more}",
    )


def _too_few(snapshot: JobSnapshot, demand: Demand) -> Hold | None:
    """The node pool that comes nearest to having enough hosts, and what is wrong with the others."""
    if snapshot.job.spec.scheduling.placement is Placement.SHARED:
        return None
    pools = snapshot.pools
    fit = {pool: sum(map(demand.suits, pools.nodes(pool))) for pool in pools.of(demand.selector)}
    if not fit or (most := max(fit.values())) >= demand.hosts:
        return None
    pool = next(name for name, count in fit.items() if count == most)
    faults = [f"{n.metadata.name} {fault}" for n in pools.nodes(pool) if (fault := demand.fault(n))]
    why = f": {', '.join(faults[:SHOWN])}" if faults else ""
    more = f" and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
    return Hold(
        BlockedReason.UNSCHEDULABLE,
        f"a slice needs {demand.hosts} hosts of one node pool at the same time, and {pool}, the one with the "
        f"most of them, has {most} that pods may use{why}{more}",
    )


def _unexplained(waiting: Sequence[tuple[Pod, PodCondition]]) -> Hold:
    pod, condition = waiting[0]
    return Hold(
        BlockedReason.UNSCHEDULABLE,
        f"{len(waiting)} pods wait for nodes; the scheduler says of {pod.name}: {condition.message[:QUOTE]}",
    )


def foreign_pods(pods: Iterable[Pod]) -> Hold | None:
    """Pods that bear our names but belong to somebody else, often to a deleted job of the same name."""
    found = [pod.name for pod in pods]
    if not found:
        return None
    return Hold(
        BlockedReason.WAITING_FOR_OLD_PODS,
        f"pods {', '.join(found[:3])} exist and belong to another owner; they have to go first",
    )


def node_pool(pods: Iterable[Pod], nodes: Mapping[str, Node]) -> str | None:
    """The node pool in which a slice's pods are; None while that is not one pool."""
    pools = {
        nodes[pod.spec.node_name].metadata.labels.get(names.NODE_POOL)
        for pod in pods
        if pod.spec.node_name in nodes
    }
    return pools.pop() if len(pools) == 1 else None

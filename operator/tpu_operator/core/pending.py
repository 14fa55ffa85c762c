"""Why a gang does not run yet: the first reason that a person can do something about."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tpu_operator.api import BlockedReason
from tpu_operator.core import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from tpu_operator.core.snapshot import Node, Pod, PodCondition

PULL_ERRORS: Final = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
)
BACK_OFF: Final = "CrashLoopBackOff"
START_ERRORS: Final = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    BACK_OFF,
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
"""Things of a kind that a sentence names."""
GATED: Final = "SchedulingGated"
UNSCHEDULABLE: Final = "Unschedulable"
OF_VOLUMES: Final = ("volume", "pvc", "resourceclaim")
"""By which the scheduler's messages about what a pod brings along are told from those about nodes."""
QUOTE: Final = 1024
"""Characters of what others say that are passed on: some registries answer with whole web pages."""


@dataclass(frozen=True, slots=True)
class Hold:
    """What holds a job up."""

    reason: BlockedReason
    message: str


def counted(count: int, one: str, many: str) -> str:
    """A number of things, in words for one or for several of them."""
    return f"{count} {one if count == 1 else many}"


def some(things: Sequence[str], separator: str = ", ") -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(things) - SHOWN} more" if len(things) > SHOWN else ""
    return f"{separator.join(things[:SHOWN])}{more}"


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
    what = counted(
        len(stuck),
        "pod of an earlier attempt does not terminate",
        "pods of an earlier attempt do not terminate",
    )
    text = f"{what}: {nodes}; look at finalizers and nodes"
    return Hold(BlockedReason.WAITING_FOR_OLD_PODS, text)


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
            if waiting and waiting.reason == BACK_OFF and pod.restartable and status is pod.main:
                continue  # the restart in place that is under way
            if waiting and (reason := KUBELET_ERRORS.get(waiting.reason)):
                where = f"container {status.name} of pod {pod.name}"
                return Hold(reason, f"{where}: {waiting.reason}: {waiting.message[:QUOTE]}")
    return None


def gated(pods: Iterable[Pod], admissions: Mapping[str, str] = MappingProxyType({})) -> Hold | None:
    """Pods that the scheduler may not look at yet.

    Args:
        pods: of something that is to run.
        admissions: by UID of a pod, what the queue says that it waits in.
    """
    found = [pod for pod in pods if _scheduling(pod) == GATED]
    if not found:
        return None
    wait = counted(len(found), "pod waits", "pods wait")
    told = next((pod for pod in found if pod.metadata.uid in admissions), None)
    text = (
        f"{wait} for admission, {told.name} for example: {admissions[told.metadata.uid][:QUOTE]}"
        if told
        else f"{wait} until somebody removes spec.schedulingGates, from {found[0].name} for example"
    )
    return Hold(BlockedReason.AWAITING_ADMISSION, text)


def held_back(pods: Iterable[Pod], now: datetime) -> Iterator[Pod]:
    """Pods that nobody has let the scheduler look at for a while: who admits pods at once has no room."""
    for pod in pods:
        condition = pod.condition("PodScheduled")
        if condition is not None and condition.reason == GATED:
            since = condition.last_transition_time or pod.metadata.creation_timestamp
            if since is None or now - since >= PATIENCE:
                yield pod


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
        if pod.spec.node_selector.pool and (condition := unscheduled(pod)):
            since = condition.last_transition_time or now
            yield (since + PATIENCE - now).total_seconds()


def unscheduled(pod: Pod) -> PodCondition | None:
    """What the scheduler says of a pod that it finds no node for, be it for an error of its own."""
    condition = pod.condition("PodScheduled")
    if condition is None or condition.status != "False" or condition.reason == GATED:
        return None
    return condition


def wants_room(pod: Pod) -> bool:
    """Whether the scheduler finds no node for a pod for want of nodes, and not of a volume of the pod's."""
    condition = unscheduled(pod)
    if condition is None or condition.reason != UNSCHEDULABLE:
        return False
    text = condition.message.lower()
    return "insufficient" in text or not any(word in text for word in OF_VOLUMES)


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

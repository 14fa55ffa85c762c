"""Nodes that are lost, and with them the pods on them.

Kubernetes itself waits five minutes before it takes pods off a node that is not heard of, and never calls
such pods gone. A gang has to act earlier: its other hosts only wait for the one that is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from tpu_operator.core.plan import Sighting

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping
    from datetime import datetime

    from tpu_operator.core.plan import Plan
    from tpu_operator.core.snapshot import Node, Pod

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""Taint by which people say that a node has been shut down (Kubernetes' non-graceful node shutdown)."""
UNHEARD: Final = timedelta(seconds=60)
"""How long before its Ready condition says Unknown a node was last heard of: Kubernetes waits for 50 s
(`--node-monitor-grace-period`), and kubelets report every 10 s."""
LOOK_AGAIN: Final = 5.0
SETTLED: Final = timedelta(seconds=30)
"""How much newer than a pod's binding the news of nodes must be for its node to be among them: by far more
than a watch lags behind."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A node that is lost.

    Attributes:
        time: when it was lost at the earliest; failures that this led to are later.
        message: what has become of it, in a sentence.
    """

    time: datetime
    message: str


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes as a decision sees them.

    Attributes:
        by_name: the nodes.
        version: resource version that the copy of them has reached; -1 while there is none.
        lost_after: seconds for which a node may be out of touch.
        heard: when the server last said something about nodes; None if it never did.
    """

    by_name: Mapping[str, Node] = field(default_factory=dict)
    version: int = -1
    lost_after: float = 60.0
    heard: datetime | None = None

    def of(self, pod: Pod) -> Node | None:
        """The node that a pod is on, as far as it is known."""
        return self.by_name.get(pod.spec.node_name)

    def loss(self, pod: Pod, now: datetime) -> Loss | None:
        """The loss of a pod's node; None while it is well, or that cannot be said."""
        name, node = pod.spec.node_name, self.of(pod)
        if not name:
            return None
        if node is None:
            return Loss(now, f"node {name} is gone") if self._knows_all_of(pod) else None
        if any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints):
            return Loss(_last_sign(node) or now, f"node {name} is out of service")
        if node.ready.status == "True" or (left := self.until_lost(pod, now)) is None or left > 0:
            return None
        return Loss(_last_sign(node) or now, f"node {name} is not ready for over {self.lost_after:.0f} s")

    def until_lost(self, pod: Pod, now: datetime) -> float | None:
        """Seconds until a pod's node may count as lost if nothing is heard of it; None if it is well."""
        node = self.of(pod)
        if node is None:
            waiting = self.version >= 0 and pod.spec.node_name and not self._knows_all_of(pod)
            return LOOK_AGAIN if waiting else None
        ready = node.ready
        since = ready.last_transition_time if ready.status != "True" else None
        return (since + timedelta(seconds=self.lost_after) - now).total_seconds() if since else None

    def _knows_all_of(self, pod: Pod) -> bool:
        """Whether the copy of the nodes is so new that the pod's node must be in it.

        By versions, and by time: a cluster may keep pods and nodes apart (`--etcd-servers-overrides`), each
        with versions of its own, which say nothing then. Where those of nodes are the smaller, the answer is
        always no, and such pods are left to Kubernetes' own collector.
        """
        bound = pod.bound_since
        settled = self.heard is not None and (bound is None or bound + SETTLED <= self.heard)
        return settled and int(pod.metadata.resource_version) <= self.version


def _last_sign(node: Node) -> datetime | None:
    since = node.ready.last_transition_time
    return since - UNHEARD if since and node.ready.status == "Unknown" else since


def with_sightings(plan: Plan, pods: Iterable[Pod], losses: Container[str], nodes: Nodes) -> Plan:
    """A plan that is only carried out while nodes are as lost as they seem.

    One that is well again must not lose its pods. News of it may be late by more than a minute, when the
    watch of nodes is cut without a word.

    Args:
        plan: what was decided.
        pods: the pods that it is about.
        losses: names of those whose nodes are lost.
        nodes: the nodes.
    """
    if not (plan.status or plan.deletes):
        return plan
    hosts = sorted({pod.spec.node_name for pod in pods if pod.name in losses})
    lost = [node.metadata for name in hosts if (node := nodes.by_name.get(name))]
    sightings = tuple(Sighting("Node", "", meta.name, meta.resource_version) for meta in lost)
    return replace(plan, sightings=sightings)

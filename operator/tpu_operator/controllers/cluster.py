"""What all controllers share of the cluster: its nodes, and which slices and other pods hold them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from tpu_operator.controllers.kueue import KueueState
from tpu_operator.core import names
from tpu_operator.core.nodes import Nodes
from tpu_operator.core.placement import Pools, claims
from tpu_operator.core.snapshot import Node, Pod
from tpu_operator.engine.informer import Informer
from tpu_operator.engine.resources import NODES, PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from tpu_operator.core.plan import Manifest
    from tpu_operator.engine.client import ApiServer
    from tpu_operator.engine.informer import Key

EVERY: Key = ("", "")
"""Index key of cluster-scoped objects."""
NOT_OURS: Final = ",".join(f"!{label}" for label in names.OWNERS)
ON_NODES: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Pods that may hold chips."""


class ClusterState:
    """Nodes and node pools.

    Attributes:
        kueue: Kueue's objects.
        nodes: the nodes.
        pools: node pools, and who is in them.
        strangers: find pods of others that take chips. They are not waited for, neither at the start nor
            before a decision: a cluster may have very many pods, and what they say only saves a slice the
            attempt by which it would find out.

    Args:
        api: where to read.
        node_lost_after: seconds for which a node may be out of touch before it counts as lost.
        namespaces: where to look for pods of others on these nodes; empty for all.
    """

    def __init__(self, api: ApiServer, node_lost_after: float, namespaces: Iterable[str] = ("",)) -> None:
        self.kueue = KueueState(api)
        self.nodes = Informer(api, NODES, Node, index=lambda _: EVERY)
        self.pools = Pools()
        self.strangers = [self._others(api, namespace) for namespace in namespaces]
        self._node_lost_after = node_lost_after
        self._listeners: list[Callable[[set[str]], None]] = []
        self.nodes.listen(self._on_node)

    def listen(self, listener: Callable[[set[str]], None]) -> None:
        """Call `listener` when a node changes, with the jobs on it, as `namespace/name`."""
        self._listeners.append(listener)

    def follow(self, pods: Informer[Pod]) -> None:
        """Keep track of where pods are."""
        pods.listen(self._on_pod)

    def view(self, now: datetime) -> Nodes:
        """The nodes as decisions see them."""
        heard = now - timedelta(seconds=self.nodes.age())
        return Nodes(self.nodes.of(EVERY), self.nodes.seen, self._node_lost_after, heard)

    def claim(self, kind: str, owner: Key, creates: Iterable[Manifest], reserved: Mapping[str, str]) -> None:
        """Hold node pools for the pods that an object is about to get, until it is decided about again."""
        self.pools.claim((kind, *owner), claims("/".join(owner), creates, reserved))

    def _on_node(self, key: Key, old: Node | None, new: Node | None) -> None:
        if old and new and _digest(old) == _digest(new):
            return
        name = key[1]
        if new:
            self.pools.put_node(new)
        else:
            self.pools.drop_node(name)
        jobs = {tenant.job for tenant in self.pools.tenants_on(name)}
        for listener in self._listeners:
            listener(jobs)

    def _on_pod(self, key: Key, old: Pod | None, new: Pod | None) -> None:  # noqa: ARG002
        if new:
            self.pools.put_pod(new)
        else:
            self.pools.drop_pod(key)

    def _others(self, api: ApiServer, namespace: str) -> Informer[Pod]:
        informer = Informer(
            api,
            PODS,
            Pod,
            namespace=namespace,
            selector=NOT_OURS,
            fields=ON_NODES,
            keep=lambda pod: pod.chips > 0,
        )
        informer.listen(self._on_stranger)
        return informer

    def _on_stranger(self, key: Key, old: Pod | None, new: Pod | None) -> None:  # noqa: ARG002
        if new:
            self.pools.put_stranger(new)
        else:
            self.pools.drop_stranger(key)


def _digest(node: Node) -> tuple[Any, ...]:
    """All of a node that decisions read, apart from the times of its heartbeats."""
    ready = node.ready
    meta = node.metadata
    return meta.labels, meta.annotations, ready.status, ready.last_transition_time, node.spec, node.chips

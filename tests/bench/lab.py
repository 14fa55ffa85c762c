"""Where benchmarks take place: one cluster with enough fake hosts for every job."""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hack.devcluster import Cluster, tpu
from tests.bench.gangs import GANGS, NAMESPACE
from tests.bench.http import MERGE, Http, all_of
from tests.bench.usage import AuditLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from tests.bench.http import Object

ROOT: Final = Path(__file__).parents[2]
NAME: Final = "bench"
RATES: Final = {"stock": None, "raised": 1000}
"""Requests a second that the controller manager and the scheduler may send; None leaves their defaults."""
NODES: Final = "/api/v1/nodes"
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"


@dataclass
class Lab:
    """The cluster, and our ways to it."""

    cluster: Cluster
    http: Http
    """The bench's own requests."""
    floor: Http
    """The floor's requests."""
    audit: AuditLog

    @classmethod
    async def open(cls, nodes: Iterable[Object]) -> Lab:
        """Start a cluster with those nodes."""
        cluster = await asyncio.to_thread(Cluster.up, NAME, nodes=0, fake_nodes=4, api_qps=RATES["raised"])
        lab = cls(
            cluster,
            Http(cluster.kubeconfig, "bench"),
            Http(cluster.kubeconfig, "floor"),
            AuditLog(cluster.audit_log),
        )
        await lab._prepare(list(nodes))
        return lab

    async def close(self) -> None:
        """Remove the cluster."""
        await self.http.close()
        await self.floor.close()
        await asyncio.to_thread(self.cluster.down)

    def log(self, name: str) -> Path:
        """File for what a subject says."""
        return self.cluster.layout.log(name)

    async def kubectl(self, *arguments: str | Path) -> None:
        """Run kubectl."""
        command = [self.cluster.kubectl, "--kubeconfig", self.cluster.kubeconfig, *arguments]
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)

    async def set_rates(self, rates: str) -> None:
        """Restart the controller manager and the scheduler with other client rates."""
        shape = replace(self.cluster.record.shape, api_qps=RATES[rates])
        if shape == self.cluster.record.shape:
            return
        self.cluster = replace(self.cluster, record=replace(self.cluster.record, shape=shape))
        for component in ("kube-scheduler", "kube-controller-manager"):
            await asyncio.to_thread(self.cluster.stop_component, component)
            await asyncio.to_thread(self.cluster.start_component, component)

    async def _prepare(self, nodes: list[Object]) -> None:
        await self.kubectl("apply", "-f", ROOT / "crds")
        for name in (NAMESPACE, "tpu-operator"):
            await self.http.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        await self.poll(lambda: self.http.call("GET", account), "a service account")
        await all_of(self._create_node(node) for node in nodes)
        await self.poll(self._nodes_are_ready, "the nodes to be ready")

    async def _create_node(self, node: Object) -> None:
        await self.http.call("POST", NODES, node)
        path = f"{NODES}/{node['metadata']['name']}"
        # New nodes get a not-ready taint, which the controller manager takes off a few at a time.
        await self.http.call("PATCH", path, {"spec": {"taints": [tpu.TAINT]}}, MERGE)

    async def _nodes_are_ready(self) -> bool:
        found = await self.http.call("GET", f"{NODES}?resourceVersion=0")
        return all(node["spec"].get("taints") == [tpu.TAINT] for node in found["items"])

    async def poll(
        self, what: Callable[[], Awaitable[Any]], why: str, pause: float = 0.5, patience: float = 600.0
    ) -> None:
        """Ask until the answer is true.

        Raises:
            RuntimeError: it was not in time.
        """
        try:
            async with asyncio.timeout(patience):
                while not await what():  # noqa: ASYNC110 (the other side is a server)
                    await asyncio.sleep(pause)
        except TimeoutError:
            raise RuntimeError(f"waited {patience:.0f} s for {why}") from None


def gang_nodes() -> list[Object]:
    """The hosts of all gangs."""
    return [node for gang in GANGS.values() for node in gang.nodes()]

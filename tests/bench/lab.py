"""Where benchmarks take place: one cluster with enough fake hosts for every job."""

from __future__ import annotations

import asyncio
import json
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hack.devcluster import Cluster, process, teardown, tpu
from hack.devcluster.api import healthy
from hack.devcluster.state import Layout
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
PATIENT: Final = "--node-monitor-grace-period=24h"
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
        # What an interrupted run has left.
        await asyncio.to_thread(teardown.down, Layout(NAME))
        cluster = await asyncio.to_thread(Cluster.up, NAME, nodes=0, fake_nodes=4, api_qps=RATES["raised"])
        lab = cls(
            cluster,
            Http(cluster.kubeconfig, "bench"),
            Http(cluster.kubeconfig, "floor"),
            AuditLog(cluster.audit_log),
        )
        try:
            await lab._prepare(list(nodes))
        except BaseException:
            await lab.close()
            raise
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
        if shape != self.cluster.record.shape:
            self.cluster = replace(self.cluster, record=replace(self.cluster.record, shape=shape))
            await self._restart("kube-scheduler")
            await self._restart("kube-controller-manager", PATIENT)

    async def _prepare(self, nodes: list[Object]) -> None:
        await self.kubectl("apply", "-f", ROOT / "crds")
        for name in (NAMESPACE, "tpu-operator"):
            await self.http.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        await self.poll(lambda: self.http.call("GET", account), "a service account")
        await self._add_nodes(nodes)

    async def _add_nodes(self, nodes: list[Object]) -> None:
        """Add hosts that nobody hears of: heartbeats of a thousand are more work than what is measured."""
        await self._restart("kube-controller-manager", PATIENT)
        await all_of(self._add_node(node) for node in nodes)
        config = self.cluster.layout.config / "kwok.yaml"
        documents = [json.loads(text) for text in config.read_text().split("\n---\n")]
        documents[0]["options"]["nodeLeaseDurationSeconds"] = 0
        config.write_text("\n---\n".join(json.dumps(each) for each in documents))
        # It loses pods of nodes that it has not taken in yet, and takes all in when it starts.
        await self._restart("kwok")

    async def _add_node(self, node: Object) -> None:
        await self.http.call("POST", NODES, node)
        path = f"{NODES}/{node['metadata']['name']}"
        # New nodes get a not-ready taint, which the controller manager takes off a few at a time.
        await self.http.call("PATCH", path, {"spec": {"taints": [tpu.TAINT]}}, MERGE)

    async def _restart(self, name: str, *flags: str) -> None:
        """Restart a component of the cluster, with more flags."""
        component = self.cluster.components[name]
        await asyncio.to_thread(self.cluster.stop_component, name)
        started = replace(component, argv=[*component.argv, *flags])
        await asyncio.to_thread(process.start, self.cluster.layout, started)
        health = component.health
        assert health is not None
        await self.poll(lambda: asyncio.to_thread(healthy, health), f"{name} to work")

    async def served(self, collection: str) -> None:
        """Wait until objects of a new kind can be made."""

        async def answers() -> bool:
            try:
                return bool(await self.http.call("GET", collection))
            except RuntimeError as error:
                # The server asks for patience while it sets up the storage.
                if "TooManyRequests" in str(error):
                    return False
                raise

        await self.poll(answers, f"{collection} to be served", pause=0.1)

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

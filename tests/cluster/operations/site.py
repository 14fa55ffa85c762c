"""The cluster in which lanes run: requests as a user makes them, and what all jobs are at the moment."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from hack.devcluster import fake, tpu

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cluster.operations.fields import Object

LANES: Final = "ops-lanes"
"""Namespace of the jobs that go through a sequence."""
FRESH: Final = "ops-fresh"
"""Namespace of the jobs that are made from the last spec at once."""
JOBS: Final = "/apis/tpu-operator.dev/v1alpha1/namespaces/{}/tpujobs"
PODS: Final = "/api/v1/namespaces/{}/pods"
SERVICES: Final = "/api/v1/namespaces/{}/services"
CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
PRIORITY: Final = {"metadata": {"name": "operations"}, "value": 1, "preemptionPolicy": "Never"}
OF_JOB: Final = "tpu-operator.dev/job"
SINGLE: Final = 48
"""Fake nodes that are whole slices (v5e, 2x2)."""
PAIRS: Final = 12
"""Slices of two fake nodes (v5e, 2x4)."""
HEADS: Final = 2
"""Fake nodes without TPUs."""
PATIENCE: Final = 90.0
PAUSE: Final = 0.4
"""Seconds between two looks at the cluster."""


@dataclass(slots=True)
class Look:
    """All jobs of a namespace, with their pods and Services, at about one time."""

    jobs: dict[str, Object] = field(default_factory=dict)
    pods: dict[str, dict[str, Object]] = field(default_factory=dict)
    services: dict[str, dict[str, Object]] = field(default_factory=dict)


class Site:
    """The API server.

    Args:
        kubeconfig: how to reach it.
    """

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._server: str = cluster["server"]
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {config['users'][0]['user']['token']}"},
            connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=authority)),
        )
        self._looked = asyncio.Condition()
        self.seen = {LANES: Look(), FRESH: Look()}

    async def close(self) -> None:
        await self._session.close()

    async def request(
        self, method: str, path: str, body: Any = None, kind: str = "application/json", **query: str
    ) -> tuple[int, Object]:
        """Status and body of the answer; a server's own error is nobody's idea of a refusal."""
        async with self._session.request(
            method,
            self._server + path,
            data=None if body is None else json.dumps(body),
            headers={"Content-Type": kind},
            params=query,
        ) as answer:
            found: Object = await answer.json()
            assert answer.status < 500, f"{method} {path}: {found}; sent {str(body)[:1000]}"
            return answer.status, found

    async def must(self, method: str, path: str, body: Any = None) -> Object:
        """The answer to a request that has to work."""
        status, found = await self.request(method, path, body)
        assert status < 300, f"{method} {path} {body}: {found}"
        return found

    async def create(self, namespace: str, name: str, spec: Object) -> tuple[Object, str]:
        """Create a job; it, or the server's objection."""
        body = {
            "apiVersion": "tpu-operator.dev/v1alpha1",
            "kind": "TPUJob",
            "metadata": {"name": name},
            "spec": spec,
        }
        return _outcome(*await self.request("POST", JOBS.format(namespace), body, fieldValidation="Strict"))

    async def replace(self, name: str, spec: Object) -> tuple[Object, str]:
        """Put a spec in the place of a lane's; the new job, or the server's objection."""
        patch = [{"op": "add", "path": "/spec", "value": spec}]
        path, kind = f"{JOBS.format(LANES)}/{name}", "application/json-patch+json"
        return _outcome(*await self.request("PATCH", path, patch, kind, fieldValidation="Strict"))

    async def get(self, name: str) -> Object:
        """A lane's job."""
        return await self.must("GET", f"{JOBS.format(LANES)}/{name}")

    async def watch(self) -> None:
        """Look again and again, for ever."""
        while True:
            for namespace in self.seen:
                self.seen[namespace] = await self._look(namespace)
            async with self._looked:
                self._looked.notify_all()
            await asyncio.sleep(PAUSE)

    async def _look(self, namespace: str) -> Look:
        look = Look()
        for job in await self._items(JOBS.format(namespace)):
            look.jobs[job["metadata"]["name"]] = job
        for path, found in ((PODS, look.pods), (SERVICES, look.services)):
            for item in await self._items(path.format(namespace)):
                owner = item["metadata"].get("labels", {}).get(OF_JOB, "")
                found.setdefault(owner, {})[item["metadata"]["name"]] = item
        return look

    async def _items(self, path: str) -> list[Object]:
        return list((await self.must("GET", path))["items"])

    async def until(self, what: Callable[[], bool], why: Callable[[], str]) -> None:
        """Wait until something can be seen.

        Raises:
            AssertionError: it could not be in time.
        """
        try:
            async with asyncio.timeout(PATIENCE), self._looked:
                await self._looked.wait_for(what)
        except TimeoutError:
            raise AssertionError(f"waited {PATIENCE:.0f} s for {why()}") from None

    async def prepare(self) -> None:
        """Make namespaces and nodes."""
        for namespace in self.seen:
            await self.must("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        await self.must("POST", CLASSES, PRIORITY)
        await asyncio.gather(*(self._add_node(node) for node in _nodes()))
        for namespace in self.seen:
            account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
            while (await self.request("GET", account))[0] != 200:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(PAUSE)

    async def _add_node(self, node: Object) -> None:
        await self.must("POST", "/api/v1/nodes", node)
        # New nodes get a not-ready taint, which the controller manager takes off some 7 nodes a second.
        patch = {"spec": {"taints": node["spec"]["taints"]}}
        path = f"/api/v1/nodes/{node['metadata']['name']}"
        await self.request("PATCH", path, patch, "application/merge-patch+json")

    async def clean(self) -> None:
        """Remove what `prepare` has made, and all jobs."""
        for namespace in self.seen:
            await self.must("DELETE", JOBS.format(namespace))
            await self.must("DELETE", f"/api/v1/namespaces/{namespace}")
        # Nodes that go before their pods leave these to a slow garbage collector.
        while any([await self._items(PODS.format(name)) for name in self.seen]):  # noqa: ASYNC110
            await asyncio.sleep(PAUSE)
        await self.request("DELETE", "/api/v1/nodes", labelSelector="operations")
        await self.must("DELETE", f"{CLASSES}/operations")


def _outcome(status: int, answer: Object) -> tuple[Object, str]:
    return ({}, str(answer["message"])) if status >= 400 else (answer, "")


def _nodes() -> list[Object]:
    single = [_node(f"ops-one-{i}", f"ops-one-{i}", "2x2") for i in range(SINGLE)]
    pairs = [_node(f"ops-two-{i}", f"ops-two-{i // 2}", "2x4") for i in range(2 * PAIRS)]
    return [*single, *pairs, *(_node(f"ops-cpu-{i}", "ops-cpu", "") for i in range(HEADS))]


def _node(name: str, pool: str, topology: str) -> Object:
    """A fake host of a v5e slice; without TPUs if it has no topology."""
    made = fake.node(0)
    meta, labels = made["metadata"], made["metadata"]["labels"]
    meta["name"] = labels["kubernetes.io/hostname"] = name
    labels |= {tpu.POOL: pool, "cloud.google.com/gke-tpu-topology": topology, "operations": ""}
    if not topology:
        made["spec"]["taints"] = []
        for key in [key for key in labels if "gke" in key]:
            del labels[key]
        amounts = {key: amount for key, amount in made["status"]["capacity"].items() if key != tpu.RESOURCE}
        made["status"] |= {"capacity": amounts, "allocatable": amounts}
    return made

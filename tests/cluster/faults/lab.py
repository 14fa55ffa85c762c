"""Where fault tests take place: replicas of the operator in this process, each behind a proxy of its own.

A process costs a second or two to start, and there are hundreds of cases. The replica here is the `Runner` of
the real operator on an event loop in a thread. What kills it is exact: from one moment on nothing of it
reaches the server, its connections are broken, and its tasks are cancelled, so that no code of its own has a
say. Cases run side by side, each in a namespace with one replica that leads there.
"""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import ssl
import threading
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import aiohttp
from kubernetes.aio import client as kubernetes_client

from hack.devcluster import fake, tpu
from tests.cluster.faults.forked import Forked
from tests.cluster.faults.proxy import Proxy, Upstream
from tpu_operator.core.inference.images import Images
from tpu_operator.core.settings import PodSettings
from tpu_operator.engine.client import ApiServer
from tpu_operator.runner import Runner
from tpu_operator.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
    from concurrent.futures import Future
    from pathlib import Path

    from tests.cluster.conftest import Operator
    from tests.cluster.faults.proxy import Object
    from tpu_operator.core.snapshot import Custom
    from tpu_operator.engine.informer import Informer

T = TypeVar("T")
Pods = dict[str, tuple[str, str]]

POOLS: Final = 8
"""Slices of two hosts, of which a case takes one; as many cases run at a time."""
HOSTS: Final = 2
TPU: Final = {"accelerator": "v5e", "topology": "2x4", "chipsPerHost": 4}
PATIENCE: Final = 180.0
"""Seconds; generous, as a loaded machine is no bug of the operator's."""
JOBS: Final = "/apis/tpu-operator.dev/v1alpha1/namespaces/{}/tpujobs"
LEASE: Final = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/tpu-operator"
MERGE: Final = "application/merge-patch+json"
GONE: Final = 404
CONFLICT: Final = 409


class Place(NamedTuple):
    """Where a case takes place.

    Attributes:
        namespace: of its own.
        pool: node pool of its own, as replicas of different namespaces would choose the same.
    """

    namespace: str
    pool: str


PLACES: Final = tuple(Place(f"faults-{index}", f"faults-pool-{index}") for index in range(POOLS + 1))
"""All there are; the first one is reserved."""


class Api:
    """The API server, for tests that run on the lab's loop."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def request(self, method: str, path: str, body: Object | None = None, kind: str = "json") -> Object:
        """Ask; an object that is not there is an empty one."""
        content = kind if "/" in kind else f"application/{kind}"
        async with self._upstream.session.request(
            method,
            self._upstream.url + path,
            json=body,
            ssl=self._upstream.tls,
            headers={"Authorization": f"Bearer {self._upstream.token}", "Content-Type": content},
        ) as answer:
            found: Object = await answer.json()
        if answer.status == GONE:
            return {}
        assert answer.status < GONE, f"{method} {path}: {answer.status} {found}"
        return found

    async def get(self, path: str) -> Object:
        return await self.request("GET", path)

    async def items(self, path: str) -> list[Object]:
        return list((await self.get(path))["items"])

    async def create(self, path: str, body: Object) -> Object:
        return await self.request("POST", path, body)

    async def patch(self, path: str, body: Object) -> Object:
        return await self.request("PATCH", path, body, MERGE)

    async def delete(self, path: str, **options: Any) -> None:
        await self.request("DELETE", path, options or None)


class Replica:
    """An operator in this process.

    Args:
        lab: where it runs.
        namespace: where its jobs and its Lease are.
    """

    def __init__(self, lab: Lab, namespace: str) -> None:
        self.proxy = Proxy(lab.upstream)
        self.runner: Runner
        self._authority = lab.authority
        self._namespace = namespace
        self._server: ApiServer | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Replica:
        """Start it, and wait until it has its first copy of the cluster."""
        await self.proxy.start()
        configuration = kubernetes_client.Configuration()
        configuration.host = self.proxy.url
        configuration.connection_pool_maxsize = 0
        # Never used on plain HTTP; without it the system's authorities are read, which takes a while.
        configuration.ca_cert_data = self._authority
        self._server = ApiServer(kubernetes_client.ApiClient(configuration))
        self.runner = Runner(settings(self._namespace), self._server)
        self._task = asyncio.get_running_loop().create_task(self.runner.run())
        await wait(self._synced, "the replica to have a copy of the cluster")
        return self

    async def _synced(self) -> bool:
        self.check()
        return self.runner.synced()

    @property
    def leads(self) -> bool:
        """Whether it holds the Lease."""
        return self.runner._elector.held()

    @property
    def idle(self) -> bool:
        """Whether it leads, and has nothing to do now."""
        busy = any(queue._ready or queue._working for queue in self.runner._queues)
        return self.leads and not busy and self.runner._recorder.idle

    def saw(self, version: int) -> bool:
        """Whether its copy of the jobs is that new."""
        return self._jobs.has_seen(version)

    def might_be(self, name: str, phase: str, pods: Pods | None = None) -> bool:
        """Whether it has nothing to do, and thinks that a job is in that phase; empty for one that is gone.

        Spares the API server most of the questions whether a test is over.

        Args:
            name: of the job.
            phase: of the job.
            pods: phase and attempt of its pods, none of which is on its way out.
        """
        key = (self._namespace, name)
        job = self._jobs.get(key)
        found = {
            pod.name: (pod.status.phase, str(pod.attempt))
            for pod in self.runner._job_controllers[0].pods.of(key).values()
            if not pod.deleting
        }
        return (
            self.idle
            and (job.status.get("phase", "") if job else "") == phase
            and (pods is None or found == pods)
        )

    @property
    def _jobs(self) -> Informer[Custom]:
        return self.runner._job_controllers[0].objects

    def check(self) -> None:
        """Fail if it has ended by itself: nothing that a server does may end it."""
        assert self._task is not None
        if self._task.done() and not self._task.cancelled():
            raise AssertionError("the operator has ended") from self._task.exception()

    def kill(self) -> None:
        """End it without a word."""
        assert self._task is not None
        assert self._server is not None
        self._server.write_time = lambda: 0.0
        self._task.cancel()

    async def close(self) -> None:
        """Clean up, whatever state it is in."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._server is not None:
            await self._server.close()
        await self.proxy.close()


class Process:
    """An operator in a process of its own.

    Args:
        lab: where its proxy runs.
        namespace: where its jobs and its Lease are.
        arguments: more of its command line.
        kind: how it is started.
    """

    idle = True
    """Nobody can tell."""

    def __init__(self, lab: Lab, namespace: str, *arguments: str, kind: type[Operator] = Forked) -> None:
        self._kind = kind
        self.proxy = Proxy(lab.upstream)
        self.operator: Operator
        self._path = lab.directory / uuid.uuid4().hex
        own = (f"--namespace={namespace}", f"--own-namespace={namespace}")
        self._arguments = (*own, *arguments)

    async def start(self) -> Process:
        """Start it, and wait until it has its first copy of the cluster."""
        await self.proxy.start()
        config = self._path.with_suffix(".kubeconfig")
        config.write_text(json.dumps(kubeconfig(self.proxy.url)))
        self.operator = self._kind(config, self._path.with_suffix(".log"), *self._arguments)
        await asyncio.to_thread(self.operator.start)
        return self

    def might_be(self, _name: str, _phase: str, _pods: Pods | None = None) -> bool:
        """Nobody can tell."""
        return True

    def saw(self, version: int) -> bool:
        """Whether it was told of that version of its jobs."""
        jobs = [watch for watch in self.proxy.watches if watch.call.resource == "tpujobs"]
        return any(int(watch.version or 0) >= version for watch in jobs)

    async def health(self) -> int:
        """Status of its liveness probe."""
        return (await asyncio.to_thread(self.operator.http, self.operator.health_port, "/healthz"))[0]

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.operator.signal(signal.SIGKILL)

    def check(self) -> None:
        """Fail if it has ended by itself."""
        if not self.proxy.killed:
            self.operator.check()

    async def close(self) -> None:
        """Clean up, whatever state it is in."""
        if hasattr(self, "operator"):
            await asyncio.to_thread(self.operator.kill)
        await self.proxy.close()


class Lab:
    """An event loop in a thread, and the API server.

    Args:
        kubeconfig: of the cluster.
        directory: for what processes read and write.
    """

    def __init__(self, kubeconfig: Path, directory: Path) -> None:
        self.directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lab", daemon=True)
        self._thread.start()
        self._kubeconfig = kubeconfig
        self.places: asyncio.Queue[Place] = asyncio.Queue()
        self.reserved: asyncio.Queue[Place] = asyncio.Queue()
        self.upstream: Upstream
        self.authority: str
        self.api: Api
        self.run(self._open())

    def submit(self, what: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin something on the loop."""
        return asyncio.run_coroutine_threadsafe(what, self._loop)

    def run(self, what: Coroutine[Any, Any, T]) -> T:
        """Do something on the loop, and its result."""
        return self.submit(what).result()

    def close(self) -> None:
        """Give back what was made."""
        self.run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> None:
        config = json.loads(self._kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self.authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self.upstream = Upstream(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), read_bufsize=2**21),
            cluster["server"],
            config["users"][0]["user"]["token"],
            ssl.create_default_context(cadata=self.authority),
        )
        self.api = Api(self.upstream)
        for index in range((POOLS + 1) * HOSTS):
            await self.api.create("/api/v1/nodes", node(index))
        for place in PLACES:
            await self.add_namespace(place.namespace)
            (self.reserved if place is PLACES[0] else self.places).put_nowait(place)
        await wait(self._nodes_are_ready, "the nodes to be ready")

    async def add_namespace(self, name: str) -> None:
        """Make a namespace, and wait until pods can be made in it."""
        await self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        path = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        await wait(lambda: self.api.get(path), f"the service account of {name}")

    async def _nodes_are_ready(self) -> bool:
        ours = await self.api.items("/api/v1/nodes?labelSelector=faults")
        return all(node["spec"].get("taints") == [tpu.TAINT] for node in ours)

    async def _close(self) -> None:
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.gather(
            *(task for task in asyncio.all_tasks() if task is not asyncio.current_task()),
            return_exceptions=True,
        )
        for place in PLACES:
            await self.api.delete(f"/api/v1/namespaces/{place.namespace}")
        await self.api.delete("/api/v1/nodes?labelSelector=faults")
        await self.upstream.session.close()

    @asynccontextmanager
    async def place(self, *, reserved: bool = False) -> AsyncIterator[Place]:
        """A place where nobody else is, empty again afterwards.

        Args:
            reserved: the one that is kept for what cases wait for.
        """
        queue = self.reserved if reserved else self.places
        found = await queue.get()
        try:
            yield found
        finally:
            await self._empty(found.namespace)
            queue.put_nowait(found)

    async def _empty(self, name: str) -> None:
        await self.api.delete(JOBS.format(name))
        await self.api.delete(f"/api/v1/namespaces/{name}/pods", gracePeriodSeconds=0)
        await self.api.delete(f"/api/v1/namespaces/{name}/services")


def settings(namespace: str) -> Settings:
    """Settings of a replica that works in one namespace alone."""
    return Settings(
        pods=PodSettings(runtime_image="example/runtime:1", launcher_image="example/operator:1"),
        images=Images("example/runtime:1", "example/picker:1", "example/sidecar:1"),
        namespaces=(namespace,),
        own_namespace=namespace,
        identity="replica",
        metrics_port=0,
        health_port=0,
        log_level="info",
        log_format="text",
        workers=4,
    )


def kubeconfig(url: str) -> Object:
    """A kubeconfig for a server that asks for no credentials."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "proxy", "cluster": {"server": url}}],
        "users": [{"name": "proxy", "user": {}}],
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        "current-context": "proxy",
    }


def node(index: int) -> Object:
    """A fake host of a slice that no other test asks for."""
    made = fake.node(index)
    name = f"faults-node-{index}"
    made["metadata"]["name"] = name
    made["metadata"]["labels"] |= {
        "kubernetes.io/hostname": name,
        "cloud.google.com/gke-tpu-topology": TPU["topology"],
        tpu.POOL: f"faults-pool-{index // HOSTS}",
        "faults": "",
    }
    return made


def story(replicas: Iterable[Replica | Process]) -> str:
    """What replicas wrote, one line each."""
    return "\n".join(
        f"  replica {index}: {call}"
        for index, replica in enumerate(replicas)
        for call in replica.proxy.writes
    )


async def wait(
    what: Callable[[], Awaitable[T]], why: str, patience: float = PATIENCE, pace: float = 0.1
) -> T:
    """Ask until the answer is true.

    Raises:
        AssertionError: it was not in time.
    """
    deadline = asyncio.get_running_loop().time() + patience
    while True:
        answer = await what()
        if answer:
            return answer
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"waited {patience:.0f} s for {why}; last answer: {answer!r}")
        await asyncio.sleep(pace)

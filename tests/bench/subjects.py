"""Who is measured: something that makes a job's pods, and makes them again when one has failed."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from typing import TYPE_CHECKING, ClassVar, Final

from tests.bench.gangs import GANGS, NAMESPACE
from tests.bench.http import all_of
from tests.bench.lab import PODS, ROOT
from tests.cluster.conftest import Operator
from tpu_operator.engine.resources import BY_KIND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.gangs import Gang
    from tests.bench.http import Object
    from tests.bench.lab import Lab
    from tests.bench.watch import PodWatch

JOBS: Final = f"/apis/tpu-operator.dev/v1alpha1/namespaces/{NAMESPACE}/tpujobs"

SHIPPED: Final = ROOT / ".venv-operator" / "bin" / "python"
"""Has what the operator's image has; packages for tests, which cost memory, are not there."""
FAILED: Final[Object] = {
    "phase": "Failed",
    "conditions": [{"type": "Ready", "status": "False"}],
    "containerStatuses": [
        {
            "name": "main",
            "image": "example",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": {"exitCode": 1, "reason": "Error"}},
        }
    ],
}
"""A pod whose container has failed."""


class Subject:
    """One of those that are compared.

    Args:
        lab: where.
    """

    name: str
    agent: str
    """How its user agent begins."""
    sizes: ClassVar[Sequence[int]] = tuple(GANGS)
    """Hosts of the gangs that it is measured with."""
    more_pods: ClassVar[int] = 0
    """Pods that it makes beside those of the hosts."""
    failure: ClassVar[Object] = FAILED
    """Status of a pod after which it makes the gang again."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    @property
    def pid(self) -> int | None:
        """Its process, None if it has none of its own."""
        return None

    async def start(self) -> None:
        """Get ready to work."""

    async def stop(self) -> None:
        """End."""

    async def create(self, gang: Gang) -> None:
        """Ask for a gang."""
        raise NotImplementedError

    async def running(self, gang: Gang) -> None:
        """Return once it says itself that the gang runs."""

    async def recover(self, gang: Gang, watch: PodWatch) -> None:
        """Do what a controller would do, if it is none."""

    async def remove(self, gang: Gang) -> None:
        """Remove what `create` has made, but for pods."""


class Floor(Subject):
    """The least possible: a Service and pods, created by a client that knows what it wants."""

    name = agent = "floor"

    async def create(self, gang: Gang) -> None:
        await self._create(gang.others)
        await self._create(gang.pods)

    async def recover(self, gang: Gang, watch: PodWatch) -> None:
        await watch.until(lambda: bool(watch.failed), "a pod to fail")
        await all_of(self.lab.floor.call("DELETE", f"{PODS}/{name}") for name in list(watch.pods))
        await watch.until(lambda: not watch.pods, "the pods to go")
        await self._create(gang.pods)

    async def remove(self, gang: Gang) -> None:
        for child in gang.others:
            await self.lab.floor.call("DELETE", f"{_collection(child)}/{child['metadata']['name']}")

    async def _create(self, children: list[Object]) -> None:
        await all_of(self.lab.floor.call("POST", _collection(child), child) for child in children)


def _collection(child: Object) -> str:
    return BY_KIND[child["kind"]].path(NAMESPACE)


class TpuOperator(Subject):
    """This project."""

    name = agent = "tpu-operator"

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab)
        self._operator: Operator | None = None
        self.ready_after = 0.0
        """Seconds that it took to get ready when it was last started."""

    @property
    def pid(self) -> int | None:
        return self._operator.pid if self._operator else None

    async def start(self) -> None:
        began = time.monotonic()
        python = SHIPPED if SHIPPED.exists() else sys.executable
        self._operator = Operator(self.lab.cluster.kubeconfig, self.lab.log(self.name), python=python)
        await asyncio.to_thread(self._operator.start)
        self.ready_after = time.monotonic() - began
        await self.lab.poll(self._leads, "the operator to lead", pause=0.05)

    async def stop(self) -> None:
        if self._operator is None:
            return
        self._operator.signal(signal.SIGTERM)
        await asyncio.to_thread(self._operator.wait)
        self._operator = None

    async def create(self, gang: Gang) -> None:
        await self.lab.http.call("POST", JOBS, gang.manifest)

    async def running(self, gang: Gang) -> None:
        await self.lab.poll(lambda: self._runs(gang.name), f"{gang.name} to run", pause=0.05)

    async def remove(self, gang: Gang) -> None:
        await self.lab.http.call("DELETE", f"{JOBS}/{gang.name}")

    async def passes(self) -> int:
        """How many passes it has made since it started, none if it has more to make."""
        found = await self._metrics()
        queued = found.get('tpu_operator_queue_depth{queue=""}', 0.0)
        return (
            0 if queued else int(found.get('tpu_operator_reconcile_duration_seconds_count{kind="TPUJob"}', 0))
        )

    async def _leads(self) -> bool:
        return (await self._metrics()).get("tpu_operator_leader") == 1

    async def _metrics(self) -> dict[str, float]:
        assert self._operator is not None
        _, text = await asyncio.to_thread(self._operator.http, self._operator.metrics_port, "/metrics")
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    async def _runs(self, name: str) -> bool:
        status = (await self.lab.http.call("GET", f"{JOBS}/{name}")).get("status", {})
        hosts = status.get("hosts", {})
        return bool(status.get("phase") == "Running" and hosts.get("ready") == hosts.get("desired"))

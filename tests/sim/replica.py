"""One replica of the operator: the real runner in a process that can be killed, stopped and frozen."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from tests.sim.loop import OWNER, Process
from tests.sim.wire import SimApi
from tpu_operator.core.inference.images import Images
from tpu_operator.core.settings import PodSettings
from tpu_operator.runner import Runner
from tpu_operator.settings import Settings

if TYPE_CHECKING:
    from contextvars import Context
    from datetime import datetime

    from tests.sim.faults import Crash
    from tests.sim.world import World

PROBE_PERIOD = 10.0
PROBE_FAILURES = 3
PREFIX = "op-"
CLOCK_JUMP = 40.0
"""Seconds that a replica's time of day jumps."""
SETTINGS = Settings(
    pods=PodSettings(runtime_image="example/runtime:1", launcher_image="example/operator:1"),
    images=Images("example/runtime:1", "example/picker:1", "example/sidecar:1"),
    namespaces=(),
    own_namespace="tpu-operator",
    identity="",
    metrics_port=0,
    health_port=0,
    log_level="info",
    log_format="text",
    workers=4,
)


class Replica:
    """One replica over all of its lives.

    Attributes:
        name: of the replica.
        label: of its present life.
        dead: whether that life is over.
        crashes: what ended lives that nothing should have ended.
    """

    def __init__(self, world: World, name: str, namespaces: tuple[str, ...], skew: float) -> None:
        self.name = name
        self.label = ""
        self.dead = True
        self.crashes: list[str] = []
        self._world = world
        self._settings = replace(SETTINGS, identity=name, namespaces=namespaces)
        self._skew = timedelta(seconds=skew)
        self._rng = world.rng(name)
        self._lives = 0
        self._requests = 0
        self._process = Process("")
        self._world_context = copy_context()
        self._runner: Runner | None = None
        self._stop = asyncio.Event()
        self._main: asyncio.Task[None] | None = None

    async def live(self) -> None:
        """Start, and start again after every end, as Kubernetes does."""
        while True:
            self._lives += 1
            self.label = f"{self.name}#{self._lives}"
            self._process = Process(self.label)
            self._stop = asyncio.Event()
            self.dead = False
            self._main = asyncio.create_task(self._run(), context=self._context())
            await self._probe(self._main)
            await asyncio.wait({self._main})
            self.dead = True
            self._world.trace.add(self.label, "is over")
            await asyncio.sleep(self._rng.uniform(0.5, 10.0))

    def next_request(self) -> Crash:
        """Count a request; what happens to the process at it."""
        self._requests += 1
        return self._world.faults.crash(self.name, self._requests)

    def suffer(self, kind: str, seconds: float) -> None:
        """A fault of a moment."""
        match kind:
            case "kill":
                self.kill()
            case "terminate":
                self.terminate()
            case "freeze":
                self.freeze(seconds)
            case "clock":
                self._skew = timedelta(seconds=self._rng.choice([-CLOCK_JUMP, 0.0, CLOCK_JUMP]))

    def kill(self) -> None:
        """SIGKILL: nothing that it does from now on reaches anybody."""
        if self.dead or self._main is None:
            return
        self._world.trace.add(self.label, "is killed")
        self.dead = True
        self._world.loop.thaw(self._process)
        self._main.cancel()

    def terminate(self) -> None:
        """SIGTERM."""
        self._world.trace.add(self.label, "is told to stop")
        self._stop.set()

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT some time later."""
        process = self._process
        self._world.trace.add(self.label, f"freezes for {seconds:.0f} s")
        self._world.loop.freeze(process)
        self._world.loop.call_later(seconds, self._world.loop.thaw, process, context=self._world_context)

    def _context(self) -> Context:
        context = copy_context()
        context.run(OWNER.set, self._process)
        return context

    async def _run(self) -> None:
        """What the operator's `App` does with a runner."""
        runner = Runner(self._settings, SimApi(self._world.network, self), self._clock)
        self._runner = runner
        work = asyncio.create_task(runner.run())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            stop.cancel()
            (result, _) = await asyncio.gather(work, stop, return_exceptions=True)
            self._note(result)
        if not self.dead:
            await runner.stop()

    def _note(self, result: BaseException | None) -> None:
        if not isinstance(result, asyncio.CancelledError):
            self.crashes.append(f"{self.label} ends by {result!r}")

    def _clock(self) -> datetime:
        return self._world.wall() + self._skew

    async def _probe(self, main: asyncio.Task[None]) -> None:
        """The kubelet's liveness probe."""
        failures = 0
        while not main.done():
            await asyncio.wait({main}, timeout=PROBE_PERIOD)
            silent = self._process.frozen or (self._runner.silent() if self._runner else "")
            failures = failures + 1 if silent else 0
            if failures == PROBE_FAILURES:
                self._world.trace.add(self.label, f"does not pass its probe: {silent}")
                if not self._process.frozen and not self._deaf():
                    self.crashes.append(f"the watch of {silent} has stalled")
                self.terminate()
                self._world.loop.call_later(30.0, self._kill_life, self.label)

    def _deaf(self) -> bool:
        """Whether one of its watches went dead a moment ago, so that it is right to give up."""
        since = self._world.network.deafened.get(self.name, float("-inf"))
        return self._world.loop.time() - since < self._settings.silent_after + PROBE_FAILURES * PROBE_PERIOD

    def _kill_life(self, label: str) -> None:
        if label == self.label:
            self.kill()

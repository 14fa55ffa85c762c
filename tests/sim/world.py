"""A whole cluster from one seed: server, actors, faults, replicas of the operator, and the oracle."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tests.sim import cluster, faults, jobs
from tests.sim.faults import Window
from tests.sim.jobs import Ledger
from tests.sim.kubelet import Kubelets
from tests.sim.loop import LivelockError, SimLoop
from tests.sim.oracle import Oracle
from tests.sim.replica import PREFIX, Replica
from tests.sim.server import Server
from tests.sim.trace import LogTrace, Trace
from tests.sim.user import User
from tests.sim.wire import Network

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

    from tests.sim.faults import Faults, Instant
    from tests.sim.server import Stored

START = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
LOGGER = logging.getLogger("tpu_operator")
PATIENCE = 1500.0
"""Virtual seconds after the last fault in which everything has to be in its place."""
QUIET = 100.0
"""Virtual seconds without a write that show that it will stay there."""
TAIL = 150
"""Lines of the trace that a failure shows."""


class SimulationError(AssertionError):
    """A run went wrong; its message has the seed, the problems and the end of the trace."""


class World:
    """Everything in one run. Made by `run`, or by a scenario that wants to arrange things by itself.

    Args:
        seed: decides everything that is not arranged.
        loop: virtual time.
        trace: takes what happens.
    """

    def __init__(self, seed: int | str, loop: SimLoop, trace: Trace) -> None:
        self.seed = seed
        self.loop = loop
        self.trace = trace
        self.ledger = Ledger()
        self.server = Server(self.wall)
        self.faults: Faults = faults.Faults(self.rng("faults"))
        self.network = Network(loop, self.server, self.faults, self.trace, self.rng("network"))
        self.oracle = Oracle(self)
        self.server.listeners += [self.trace.change, self.oracle.on_change]
        self.network.on_request = self.oracle.on_request
        self.network.on_success = self.oracle.on_success
        self.kubelets = Kubelets(self, self.rng("clocks").choice([0.0, 1.5]))
        self.scheduler = cluster.Scheduler(self, self.kubelets)
        cluster.Collector(self)
        self.misfortunes = cluster.Misfortunes(self, self.kubelets)
        self.replicas: list[Replica] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def rng(self, name: str) -> random.Random:
        """A stream of numbers of one's own."""
        return random.Random(f"{self.seed}/{name}")

    def wall(self) -> datetime:
        """The time of day."""
        return START + timedelta(seconds=self.loop.time())

    def stamp(self) -> str:
        """The time of day, as objects have it."""
        return self.wall().strftime("%Y-%m-%dT%H:%M:%SZ")

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Let something happen beside."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.loop.failures.append(f"the simulation itself failed: {error!r}")
            raise error

    def disturb(self, pod: Stored) -> None:
        """Note that a pod's attempt may end by something else than its program."""
        job = self.server.find("tpujobs", jobs.owner_key(pod))
        if job is not None and jobs.owner(pod) == job.meta["uid"]:
            gang = jobs.gangs(job.body).get(pod.key[1], -1)
            self.ledger.disturbed.add((job.meta["uid"], gang, self.ledger.number(pod, gang)))

    def start_replicas(self, count: int, namespaces: tuple[str, ...] = (), skew: float = 0.0) -> None:
        """Start the operator."""
        rng = self.rng("replicas")
        for name in "ab"[:count]:
            replica = Replica(self, PREFIX + name, namespaces, rng.uniform(-skew, skew))
            self.replicas.append(replica)
            self.spawn(replica.live())

    def strike(self, instant: Instant) -> None:
        """Let a fault of a moment happen."""
        self.trace.add("fault", f"{instant.kind} {instant.who} {instant.seconds:.0f}")
        victims = [r for r in self.replicas if instant.who in {"", r.name} and not r.dead]
        match instant.kind:
            case "cut" | "watch-error":
                self.network.cut(instant.who, error=instant.kind == "watch-error")
            case "compact":
                self.server.compact()
            case "outage":
                now = self.loop.time()
                self.faults.windows.append(Window("down", now, now + instant.seconds, 1.0, 0.0, ""))
                self.network.cut("", error=False)
                self.server.compact()
            case _:
                for replica in victims:
                    replica.suffer(instant.kind, instant.seconds)

    async def until(self, condition: Callable[[], object], what: str, limit: float = 300.0) -> None:
        """Wait for something.

        Raises:
            AssertionError: it has not come.
        """
        end = self.loop.time() + limit
        while not condition():
            assert self.loop.time() < end, f"waited {limit} s for {what}"
            await asyncio.sleep(0.01)

    async def settle(self) -> None:
        """Wait until everything is in its place and stays there.

        Raises:
            AssertionError: it does not come to that.
        """
        self.trace.add("world", "calm")
        limit = self.loop.time() + PATIENCE
        while self.loop.time() < limit:
            await asyncio.sleep(5.0)
            self.check()
            if self.loop.time() - self.oracle.last_write > QUIET and not self.oracle.unsettled():
                self.oracle.check_budget()
                self.check()
                return
        self.oracle.complain("not settled: " + "; ".join(self.oracle.unsettled() or ["writes without end"]))
        self.check()

    def check(self) -> None:
        """Fail if anything has gone wrong so far."""
        problems = self.oracle.violations + self.loop.failures
        problems += [crash for replica in self.replicas for crash in replica.crashes]
        if problems:
            raise AssertionError("\n".join(dict.fromkeys(problems)))

    async def end(self) -> None:
        """Stop everything."""
        for replica in self.replicas:
            replica.kill()
        await asyncio.sleep(0)
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.sleep(0.1)


async def live(world: World) -> None:
    """A life drawn from the seed: some time of trouble, and then peace."""
    rng = world.rng("world")
    until = rng.choice([30.0, 90.0, 180.0])
    for topology, most in (("2x2", 3), ("2x4", 4), ("4x4", 2)):
        for index in range(rng.randint(1, most)):
            cluster.add_pool(world, f"{topology}-{index}", topology)
    world.server.page = rng.choice([2, 500])
    count = rng.choice([1, 2, 2, 2])
    drawn = faults.draw(world.rng("plan"), [PREFIX + name for name in "ab"[:count]], until)
    world.faults.windows, world.faults.crashes = drawn.windows, drawn.crashes
    for window in drawn.windows:
        world.trace.add("plan", str(window))
    namespaces = rng.choice([["train"], ["train"], ["train", "test"]])
    watched = tuple(namespaces) if rng.random() < 0.2 else ()
    world.start_replicas(count, watched, rng.choice([0.0, 0.0, 2.0]))
    for instant in drawn.instants:
        world.loop.call_at(instant.time, world.strike, instant)
    for _ in range(rng.choice([0, 0, 1, 3])):
        world.loop.call_at(rng.uniform(5.0, until), world.misfortunes.preempt)
    for _ in range(rng.choice([0, 0, 1, 2])):
        world.loop.call_at(rng.uniform(5.0, until), lambda: world.spawn(world.misfortunes.lose_node()))
    for _ in range(rng.choice([0, 0, 1, 2])):
        world.loop.call_at(rng.uniform(5.0, until), lambda: world.spawn(world.misfortunes.maintain()))
    user = User(world, namespaces)
    await user.act(rng.randint(3, 14), until)
    await asyncio.sleep(max(0.0, until - world.loop.time()))
    world.faults.crashes = {}
    user.settle()
    await world.settle()


@contextmanager
def logged(trace: Trace) -> Iterator[LogTrace]:
    """The operator's log goes to the trace, and nowhere else."""
    handler, level, propagate = LogTrace(trace), LOGGER.level, LOGGER.propagate
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    try:
        yield handler
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)
        LOGGER.propagate = propagate


def run(seed: int) -> Trace:
    """Run a seed.

    Raises:
        SimulationError: something happened that must not, or did not that must.
    """
    return play(seed, live)


def play(seed: int | str, scenario: Callable[[World], Awaitable[None]]) -> Trace:
    """Run a scenario in a world of its own.

    Raises:
        SimulationError: something happened that must not, or did not that must.
    """
    loop = SimLoop()
    trace = Trace(loop)
    state = random.getstate()
    random.seed(f"{seed}")
    try:
        with logged(trace) as log:
            loop.run_until_complete(_main(seed, loop, trace, scenario, log))
    except (AssertionError, LivelockError) as error:
        raise SimulationError(f"seed {seed}: {error}\n\n{trace.tail(TAIL)}") from error
    finally:
        random.setstate(state)
        loop.close()
    return trace


async def _main(
    seed: int | str,
    loop: SimLoop,
    trace: Trace,
    scenario: Callable[[World], Awaitable[None]],
    log: LogTrace,
) -> None:
    world = World(seed, loop, trace)
    try:
        await scenario(world)
    except AssertionError as error:
        world.oracle.violations.append(str(error))
    await world.end()
    world.oracle.violations += log.crashes
    world.check()

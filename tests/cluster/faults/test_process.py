"""What only whole processes can show: signals, probes, and a start without a server."""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from tests.cluster.faults import actions, proxy
from tests.cluster.faults.lab import LEASE, Process, wait
from tests.cluster.faults.proxy import Rule
from tests.cluster.faults.scenarios import SCENARIOS, case
from tests.cluster.faults.together import together

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiohttp import web

    from tests.cluster.faults.scenarios import Case, Oracle

SILENT_AFTER: Final = 25


@together
async def test_it_starts_while_there_is_no_server(oracle: Oracle) -> None:
    async with case(oracle.lab) as job:
        away = Rule(actions.lose_request, times=12)
        process = Process(oracle.lab, job.namespace)
        process.proxy.rules = [away]
        await job.lead(process)
        assert len(away.hits) == 12
        await job.create()
        await job.settles(await oracle.end("create"))


@together
async def test_silent_watches_fail_the_liveness_probe(oracle: Oracle) -> None:
    """And only they do, and only while they are silent.

    The silence that is allowed is longer than any for which all that runs here side by side may hold us up:
    for so long, we could not say a word either.
    """
    async with case(oracle.lab) as job:
        process = await job.process(f"--silent-after={SILENT_AFTER}")
        await SCENARIOS["restart"].prepare(job)
        since = asyncio.get_running_loop().time()
        async with talking(process):
            while asyncio.get_running_loop().time() < since + 1.5 * SILENT_AFTER:
                assert await process.health() == 200
                await asyncio.sleep(0.5)
        process.proxy.freeze()
        await wait(health(process, 500), "the probe to fail")
        process.proxy.thaw()
        async with talking(process):
            await wait(health(process, 200), "the probe to pass again")


def health(process: Process, code: int) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return await process.health() == code

    return ask


@asynccontextmanager
async def talking(process: Process) -> AsyncIterator[None]:
    """Say all the time that nothing has happened, more often than the server does."""

    async def talk() -> None:
        while True:
            for watch in process.proxy.watches:
                await watch.bookmark()
            await asyncio.sleep(0.5)

    task = asyncio.create_task(talk())
    try:
        yield
    finally:
        task.cancel()


@together
async def test_a_leader_that_is_frozen_past_its_lease_writes_nothing_more(oracle: Oracle) -> None:
    """It is frozen in the middle of creating a job, which the other one finishes; then it wakes up."""
    async with case(oracle.lab) as job:
        first = await job.process()
        second = await job.standby_process()
        freeze = Rule(frozen(first), verb="create", resource="pods", times=1)
        first.proxy.rules = [freeze]
        await job.create()
        await wait(led_by(job, second), "the other one to lead")
        written = len(first.proxy.writes)
        await job.settles(await oracle.end("create"))
        first.operator.signal(signal.SIGCONT)
        await wait(has_looked(first), "it to find out that it does not lead any more")
        assert len(first.proxy.writes) == written, job.story()
        assert await leads(first) == "0.0"
        await job.settles(await oracle.end("create"))


def frozen(process: Process) -> proxy.Action:
    """Freeze a process when the server has done what it asked for, before it gets the answer."""

    async def act(exchange: proxy.Exchange) -> web.StreamResponse:
        done = await exchange.ask()
        process.operator.signal(signal.SIGSTOP)
        return done

    return act


def has_looked(process: Process) -> Callable[[], Awaitable[bool]]:
    """Whether a process has read the Lease a few times from now on."""
    before = len(process.proxy.calls)

    async def ask() -> bool:
        return sum((c.verb, c.resource) == ("get", "leases") for c in process.proxy.calls[before:]) >= 3

    return ask


async def leads(process: Process) -> str:
    """What a process itself says about that."""
    text = (await asyncio.to_thread(process.operator.http, process.operator.metrics_port, "/metrics"))[1]
    return next(line.split()[1] for line in text.splitlines() if line.startswith("tpu_operator_leader "))


async def holder(job: Case) -> str:
    """Who holds the Lease."""
    lease = await job.api.get(LEASE.format(job.namespace))
    return str(lease.get("spec", {}).get("holderIdentity", ""))


def led_by(job: Case, process: Process) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return (await holder(job)).startswith(f"{process.operator.identity}_")

    return ask


@together
async def test_a_leader_that_vanishes_is_succeeded_within_15_seconds(oracle: Oracle) -> None:
    await hand_over(oracle, signal.SIGKILL, 15.0)


@together
async def test_a_leader_that_is_told_to_stop_is_succeeded_within_2_seconds(oracle: Oracle) -> None:
    await hand_over(oracle, signal.SIGTERM, 2.0)


async def hand_over(oracle: Oracle, how: signal.Signals, limit: float) -> None:
    """One replica ends and the other takes the Lease over, in time in one of four turns at least.

    On virtual time (tests/sim) it is always in time; here the machine may be too busy.
    """
    took: list[float] = []
    async with case(oracle.lab) as job:
        first = await job.process()
        while not took or (took[-1] > limit and len(took) < 4):
            await wait(led_by(job, first), "the last one to lead")
            second = await job.standby_process()
            took.append(await seconds_to_hand_over(first, second, how))
            job.replicas.remove(first)
            await first.close()
            first = second
        assert took[-1] <= limit, took
        await job.create()
        await job.settles(await oracle.end("create"))


async def seconds_to_hand_over(first: Process, second: Process, how: signal.Signals) -> float:
    """From the signal to the request by which the other one takes the Lease."""
    taken = Rule(proxy.Exchange.forward, verb="update", resource="leases", times=1)
    second.proxy.rules = [taken]
    since = asyncio.get_running_loop().time()
    first.operator.signal(how)
    if how == signal.SIGTERM:
        assert await asyncio.to_thread(first.operator.wait) == 0

    async def done() -> bool:
        return any(call.status == 200 for call in taken.hits)

    await wait(done, "the Lease to be taken over")
    return taken.hits[0].at - since

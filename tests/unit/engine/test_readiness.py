"""Whether a replica could take over now, on virtual time."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from tests.sim.replica import SETTINGS
from tests.unit.engine.server import Direct, clock
from tpu_operator.engine import metrics
from tpu_operator.runner import Runner
from tpu_operator.settings import SILENT_AFTER


def heard(runner: Runner) -> None:
    for informer in runner.informers:
        informer.synced.set()
        informer._hear()


@pytest.mark.looptime
async def test_a_replica_is_ready_while_its_copy_is_fresh() -> None:
    runner = Runner(SETTINGS, Direct(), clock)
    assert runner.unready() == "not synced"
    heard(runner)
    assert runner.unready() == ""
    await asyncio.sleep(SILENT_AFTER)
    assert runner.unready() == ""
    await asyncio.sleep(1)
    assert runner.unready() == f"nothing heard of {runner.informers[0].resource.plural} for 151 s"
    heard(runner)
    assert runner.unready() == ""


@pytest.mark.looptime
async def test_an_outage_of_the_server_restarts_nobody() -> None:
    runner = Runner(SETTINGS, Direct(), clock)
    heard(runner)
    await asyncio.sleep(3600)
    for informer in runner.informers:
        informer._tried = asyncio.get_running_loop().time()
    assert runner.silent() == ""
    assert runner.unready()


@pytest.mark.parametrize(("why", "status", "text"), [("", 200, "ok\n"), ("not synced", 503, "not synced\n")])
async def test_the_probe(unused_tcp_port: int, why: str, status: int, text: str) -> None:
    server = await metrics.serve(unused_tcp_port, lambda: why)
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with aiohttp.ClientSession() as session, session.get(f"{url}/readyz") as answer:
        assert (answer.status, await answer.text()) == (status, text)
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        assert "tpu_operator_leader" in await answer.text()
    await server.cleanup()

"""Requests over real sockets on loopback: the fence, time limits, and what servers ask for."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from tpu_operator.engine import client
from tpu_operator.engine.client import ApiError, ApiServer, FencedError
from tpu_operator.engine.resources import PODS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": "a"}}


class Lab:
    """A server that notes what it gets."""

    def __init__(self) -> None:
        self.requests: list[web.Request] = []
        self.answer = web.json_response({})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        return self.answer


@asynccontextmanager
async def serving(lab: Lab) -> AsyncIterator[ApiServer]:
    """A client of a server."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", lab.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    configuration = Configuration(host="http://{}:{}".format(*runner.addresses[0]))
    client.configure(configuration)
    api = ApiServer(ApiClient(configuration))
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()


@pytest.fixture
async def lab() -> AsyncIterator[tuple[Lab, ApiServer]]:
    """A server and a client of it."""
    lab = Lab()
    async with serving(lab) as api:
        yield lab, api


async def test_a_process_that_freezes_before_it_sends_does_not_send(
    lab: tuple[Lab, ApiServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was allowed to write when it began, and has slept past its lease since."""
    server, api = lab
    ends = time.monotonic() + 0.2
    api.write_time = lambda: ends - time.monotonic()
    encode = json.dumps

    def freeze(*args: object, **options: object) -> str:
        while api.write_time() > 0:
            pass
        return encode(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(json, "dumps", freeze)
    with pytest.raises((FencedError, ApiError)):
        await api.create(PODS, POD)
    assert server.requests == []


async def test_the_server_is_told_how_long_it_may_take(lab: tuple[Lab, ApiServer]) -> None:
    server, api = lab
    answers = iter((5.0, 3.0))
    api.write_time = lambda: next(answers)
    await api.create(PODS, POD)
    assert server.requests[0].query["timeout"] == "3.000s"
    assert server.requests[0].query["fieldManager"] == "tpu-operator"


class Slow(Lab):
    """A server that waits for an admission webhook until the time of the request is over."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(float(request.query["timeout"].removesuffix("s")))
        return web.json_response({"message": "failed calling webhook", "reason": "Timeout"}, status=504)


async def test_what_took_all_the_time_of_a_write_is_heard() -> None:
    async with serving(Slow()) as api:
        api.write_time = lambda: 0.2
        with pytest.raises(ApiError) as caught:
            await api.create(PODS, POD)
        assert caught.value.answered
        assert caught.value.message == "failed calling webhook"
        began = asyncio.get_running_loop().time()
        await api.settle()
        assert asyncio.get_running_loop().time() - began > client.MIDST / 2, "it may be in the midst of it"


async def test_reads_need_no_lease(lab: tuple[Lab, ApiServer]) -> None:
    server, api = lab
    api.write_time = lambda: 0.0
    await api.get(PODS.path("default"))
    assert "timeout" not in server.requests[0].query
    with pytest.raises(FencedError):
        await api.create(PODS, POD)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("1", 1.0),
        ("86400", 60.0),
        ("9" * 400, 60.0),
        ("", None),
        ("-1", None),
        ("٣", None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
    ],
)
async def test_retry_after(lab: tuple[Lab, ApiServer], header: str, seconds: float | None) -> None:
    server, api = lab
    server.answer = web.json_response({"message": "later"}, status=429, headers={"Retry-After": header})
    with pytest.raises(ApiError) as caught:
        await api.get(PODS.path("default"))
    assert caught.value.retry_after == seconds


async def test_time_limits_are_kept_to_the_fraction_of_a_second(lab: tuple[Lab, ApiServer]) -> None:
    """By itself the HTTP library rounds limits of more than five seconds up."""
    _, api = lab
    loop = asyncio.get_running_loop()
    seen: list[float] = []
    call_at = loop.call_at

    def note(when: float, *args: object, **options: object) -> asyncio.TimerHandle:
        seen.append(when - loop.time())
        return call_at(when, *args, **options)  # type: ignore[arg-type]

    loop.call_at = note  # type: ignore[method-assign]
    try:
        await api.request("GET", PODS.path("default"), timeout=7.25)
    finally:
        loop.call_at = call_at  # type: ignore[method-assign]
    assert any(abs(seconds - 7.25) < 0.05 for seconds in seen)

"""Queries to Prometheus, against a stand-in on loopback that speaks its documented API, and misbehaves.

That the real one is asked rightly is tested in `tests/cluster/inference/test_analysis.py`.
"""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from tests.loopback import free_port
from tpu_operator.core.inquiry import Answer, Inquiry
from tpu_operator.engine import prometheus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def standin(handler: Handler) -> AsyncIterator[str]:
    """Address of a server with these answers to queries."""
    app = web.Application()
    app.router.add_post("/api/v1/query", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def ask(address: str, query: str = "up") -> Answer:
    answers = await prometheus.ask(Inquiry("round", address, {"q": query}))
    assert answers.name == "round"
    return answers.by_query["q"]


def vector(*values: Any) -> bytes:
    result = [{"metric": {"pod": str(i)}, "value": [1.5, value]} for i, value in enumerate(values)]
    return success("vector", result)


def success(kind: str, result: Any) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode()


def refusal(kind: str, error: str) -> bytes:
    return json.dumps({"status": "error", "errorType": kind, "error": error}).encode()


@pytest.mark.parametrize(
    ("status", "body", "value", "problem"),
    [
        (200, vector("0.25"), 0.25, ""),
        (200, vector("+Inf"), math.inf, ""),
        (200, success("scalar", [1.5, "7"]), 7.0, ""),
        (200, vector(), None, "no data"),
        (200, vector("1", "2"), None, "2 numbers where there has to be one"),
        (200, success("matrix", [{"metric": {}, "values": [[1.5, "1"]]}]), None, "the query gives a matrix"),
        (200, success("string", [1.5, "x"]), None, "the query gives a string"),
        (200, success("vector", [{"metric": {}, "histogram": [1.5, {}]}]), None, "a histogram"),
        (200, vector("x"), None, "no number at all"),
        (200, success("scalar", []), None, "no number at all"),
        (400, refusal("bad_data", "parse error at char 3"), None, "bad_data: parse error at char 3"),
        (503, refusal("timeout", "x" * 9999), None, f"timeout: {'x' * prometheus.QUOTED}"),
        (422, refusal("<script>", "boom"), None, "Prometheus says error: boom"),
        (200, b"<html>", None, "what is there is no Prometheus: it answers 200"),
        (404, b'"secret"', None, "what is there is no Prometheus: it answers 404"),
        (200, b'{"status": "success"}', None, "Prometheus says error"),
        (200, b'{"status": "success", "data": {"resultType": "vector", "result": 7}}', None, "no Prometheus"),
    ],
)
def test_an_answer_is_one_number_or_words(
    status: int, body: bytes, value: float | None, problem: str
) -> None:
    found = prometheus.read(status, body)
    assert found.value == value
    assert problem in found.problem
    assert bool(found.problem) == (value is None)
    assert len(found.problem) < 300


async def test_queries_are_sent_as_forms_and_side_by_side() -> None:
    seen: list[str] = []
    all_there = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        form = await request.post()
        seen.append(str(form["query"]))
        if len(seen) == 3:
            all_there.set()
        await all_there.wait()
        assert form["timeout"] == prometheus.SERVER_TIMEOUT
        return web.Response(body=vector(str(form["query"])))

    async with standin(answer) as address:
        queries = {name: name for name in ("1", "2", "3")}
        found = await prometheus.ask(Inquiry("round", address + "/", queries))
    assert {name: each.value for name, each in found.by_query.items()} == {"1": 1.0, "2": 2.0, "3": 3.0}


async def test_redirects_lead_nowhere() -> None:
    visited: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        visited.append(request.path)
        raise web.HTTPFound("/api/v1/query?elsewhere")

    async with standin(elsewhere) as address:
        found = await ask(address)
    assert found == Answer(problem="what is there is no Prometheus: it answers 302")
    assert len(visited) == 1


async def test_what_is_too_large_is_not_read_to_its_end() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * 16384)

    async with standin(endless) as address:
        found = await asyncio.wait_for(ask(address), 60)
    assert "more than 65536 bytes" in found.problem


async def test_who_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "TIMEOUT", 0.2)
    over = asyncio.Event()

    async def silent(request: web.Request) -> web.Response:
        await over.wait()
        return web.Response()

    async with standin(silent) as address:
        found = await ask(address)
        over.set()
    assert found.problem == "Prometheus has not answered within 0 s"


@pytest.mark.parametrize("address", ["http://127.0.0.1:{port}", "http://[broken", "http://127.0.0.1:1:1/"])
async def test_where_nobody_is_that_is_said(address: str) -> None:
    found = await ask(address.format(port=free_port()))
    assert found.problem.startswith("Prometheus cannot be asked: ")


async def test_no_proxy_of_the_environment_gets_to_see_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=vector("1"))

    async with standin(answer) as address:
        assert await ask(address) == Answer(1.0)

"""What may happen to a request on its way, in place of what should."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from aiohttp import web

from tests.cluster.faults.proxy import status_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.cluster.faults.proxy import Action, Exchange


async def lose_request(exchange: Exchange) -> web.StreamResponse:
    """The connection breaks before the request has reached the server."""
    return exchange.drop()


async def lose_answer(exchange: Exchange) -> web.StreamResponse:
    """The server does it, but the answer is lost."""
    if exchange.call.verb != "watch":
        await exchange.ask()
    return exchange.drop()


async def twice(exchange: Exchange) -> web.StreamResponse:
    """The request reaches the server two times; the second answer counts."""
    await exchange.ask()
    return await exchange.ask()


async def answer_late(exchange: Exchange) -> web.StreamResponse:
    """The replica hears of it on its watches before it gets the answer."""
    done = await exchange.ask()
    assert isinstance(done.body, bytes)
    version = int(json.loads(done.body).get("metadata", {}).get("resourceVersion", 0))
    while any(watch.is_behind(exchange.call.resource, version) for watch in exchange.proxy.watches):
        await exchange.proxy.moved.wait()
    return done


def small_pages(items: int) -> Action:
    """Have a list come in pages of so many items, whatever was asked for."""

    async def act(exchange: Exchange) -> web.StreamResponse:
        exchange.ask_for("limit", str(items))
        return await exchange.forward()

    return act


def delay(until: Callable[[], Awaitable[object]]) -> Action:
    """Hold the request until something has happened."""

    async def act(exchange: Exchange) -> web.StreamResponse:
        await until()
        return await exchange.forward()

    return act


def answer(code: int, reason: str = "", retry_after: int | None = None) -> Action:
    """Answer in the server's place, without asking it."""

    async def act(_: Exchange) -> web.StreamResponse:
        headers = {"Retry-After": str(retry_after)} if retry_after is not None else {}
        return web.json_response(status_of(code, reason), status=code, headers=headers)

    return act


def garbage(data: bytes) -> Action:
    """Answer 200 with something that is no object."""

    async def act(_: Exchange) -> web.StreamResponse:
        return web.Response(body=data, content_type="application/json")

    return act


ONCE: Final[dict[str, Action]] = {
    "request-lost": lose_request,
    "answer-lost": lose_answer,
    "answer-late": answer_late,
    "sent-twice": twice,
    "conflict": answer(409),
    "too-many-requests": answer(429, retry_after=1),
    "internal-error": answer(500),
    "unavailable": answer(503),
}
"""What happens to every write, once."""
OUTAGES: Final[dict[str, Action]] = {
    "500": answer(500),
    "503": answer(503),
    "429": answer(429),
    "429-retry-after": answer(429, retry_after=1),
    "401": answer(401),
    "404": answer(404),
    "lost-request": lose_request,
    "lost-answer": lose_answer,
    "no-json": garbage(b"<html>bad gateway</html>"),
    "half-an-object": garbage(b'{"kind":"List","metadata":{"resourceVer'),
    "wrong-types": garbage(b'{"items":{},"metadata":[],"spec":"none"}'),
    "empty": garbage(b""),
}
"""What happens to every request."""
BOOKMARK: Final = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1"}}}\n'
BROKEN_WATCHES: Final[dict[str, Action]] = {
    "closed": garbage(b""),
    "410": answer(410),
    "410-event": garbage(b'{"type":"ERROR","object":{"code":410,"reason":"Expired"}}\n'),
    "bookmark-and-closed": garbage(BOOKMARK),
    "bookmark-and-410": garbage(BOOKMARK + b'{"type":"ERROR","object":{"code":410,"reason":"Expired"}}\n'),
    "no-json": garbage(b"<html>bad gateway</html>\n"),
    "unknown-event": garbage(b'{"type":"SHRUG","object":{}}\n'),
}
"""What happens to every watch."""

"""The way from a replica to the simulated server: latency, faults, broken connections.

The seam is `ApiServer`: its verbs, its fence and its errors are the real ones; only `request` and `stream`,
which speak HTTP in production, are replaced.

A request in flight: the server carries it out within the time that the request asks for, and before its
connection is closed, or not at all; except that one may take effect up to half a second after its connection
is closed, having been in the midst of it. A replica that is frozen keeps its connections open, one that is
killed or stopped does not.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp
from aiohttp.base_protocol import BaseProtocol

from tests.sim.server import RefusalError, Request, parse
from tpu_operator.engine.client import REQUEST_TIMEOUT, ApiError, ApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from random import Random

    from tests.sim.faults import Crash, Fate, Faults
    from tests.sim.loop import SimLoop
    from tests.sim.server import Server, Watch
    from tests.sim.trace import Trace

READ_BUFFER = 2**18
"""aiohttp's own."""
SERVER_TIMEOUT = "60s"
BOOKMARKS = (55.0, 62.0)


class Sender(Protocol):
    """The process that sends."""

    name: str
    """Of the replica."""
    label: str
    """Of this life of it."""
    dead: bool

    def next_request(self) -> Crash:
        """Count a request; what happens to the process at it."""

    def kill(self) -> None:
        """Die at once."""

    def freeze(self, seconds: float) -> None:
        """Stand still for some time."""


class Network:
    """What connects replicas and the server; made in the world's context, where all that it does happens."""

    def __init__(self, loop: SimLoop, server: Server, faults: Faults, trace: Trace, rng: Random) -> None:
        self.loop = loop
        self.server = server
        self.faults = faults
        self.trace = trace
        self.rng = rng
        self.streams: list[Stream] = []
        self.deafened: dict[str, float] = {}
        self.on_request: Callable[[Request], None] = lambda _: None
        """Told of every request that reaches the server."""
        self.on_success: Callable[[Request, bytes], None] = lambda _, __: None
        """Told of every good answer that reaches its replica."""
        self._context = copy_context()

    def later(self, seconds: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Do something after some seconds, whatever becomes of the process that runs now."""
        return self.loop.call_later(seconds, callback, *args, context=self._context)

    def cut(self, who: str, *, error: bool) -> None:
        """End the watches of a replica, or of all."""
        for stream in [s for s in self.streams if who in {"", s.sender.name}]:
            stream.end_with_error() if error else stream.end()


class Call:
    """One request on its way."""

    def __init__(self, network: Network, sender: Sender, request: Request, fate: Fate, crash: Crash) -> None:
        self._net = network
        self._sender = sender
        self._request = request
        self._fate = fate
        self._crash = crash
        self.answer: asyncio.Future[bytes] = network.loop.create_future()
        limit = float(request.query.get("timeout", SERVER_TIMEOUT).removesuffix("s"))
        self._deadline = network.loop.time() + limit
        if fate.up > limit:
            late = RefusalError(504, "Timeout", "the request did not complete within its time")
            self._fate = fate._replace(up=limit, refusal=late)
        self._timer = None if fate.hang else network.later(self._fate.up, self._arrive)

    def close(self) -> None:
        """The connection is closed."""
        if self._timer is not None and not self._timer.cancelled():
            self._timer.cancel()
            self._timer = None
            left = self._deadline - self._net.loop.time()
            if 0.0 < self._fate.straggles < left and self._fate.reset != "before":
                self._net.later(self._fate.straggles, self._execute)

    def _arrive(self) -> None:
        self._timer = None
        if self._fate.reset == "before":
            self._fail(aiohttp.ClientConnectionError("connection refused"))
            return
        result = self._execute()
        if self._crash == "after":
            self._sender.kill()
        elif self._fate.reset == "after":
            self._fail(aiohttp.ServerDisconnectedError())
        else:
            self._net.later(self._fate.down, self._reply, result)

    def _execute(self) -> bytes | RefusalError:
        self._net.on_request(self._request)
        if self._fate.refusal is not None:
            result: bytes | RefusalError = self._fate.refusal
        else:
            try:
                result = self._net.server.handle(self._request)
            except RefusalError as refusal:
                result = refusal
        if isinstance(result, RefusalError):
            request = self._request
            self._net.trace.add(request.writer, f"  {request.method} {request.path}: {result}")
        return result

    def _reply(self, result: bytes | RefusalError) -> None:
        if self.answer.done():
            return
        if isinstance(result, RefusalError):
            error = ApiError(result.status, result.reason, result.message, result.retry_after)
            self.answer.set_exception(error)
        else:
            self.answer.set_result(result)

    def _fail(self, error: Exception) -> None:
        if not self.answer.done():
            self._net.trace.add(
                self._request.writer, f"  {self._request.method} {self._request.path}: {error!r}"
            )
            self.answer.set_exception(ApiError(0, type(error).__name__, str(error)))


class SimApi(ApiServer):
    """The API server as one replica's process reaches it."""

    def __init__(self, network: Network, sender: Sender) -> None:
        self.write_time = lambda: REQUEST_TIMEOUT
        self._given_up = float("-inf")
        self._net = network
        self._sender = sender

    async def close(self) -> None:
        """Nothing to close."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "",
        timeout: float = REQUEST_TIMEOUT,  # noqa: ASYNC109
    ) -> bytes:
        crash = self._crash()
        request = Request(
            self._sender.label, method, path, query or {}, json.dumps(body or {}).encode(), content_type
        )
        fate = self._net.faults.fate(self._sender.name, method, self._net.loop.time())
        call = Call(self._net, self._sender, request, fate, crash)
        try:
            async with asyncio.timeout(timeout):
                answer = await call.answer
        except TimeoutError as error:
            self._net.trace.add(self._sender.label, f"  {method} {path}: timeout")
            raise ApiError(0, "TimeoutError", f"{method} {path}") from error
        finally:
            call.close()
        self._net.on_success(request, answer)
        return answer

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], silence: float
    ) -> AsyncIterator[aiohttp.StreamReader]:
        refusal = self._net.faults.refused(self._sender.name, self._net.loop.time())
        # Opening a watch is a request like any other, with all that can happen to it.
        await self.request("GET", "/version")
        if refusal is not None:
            raise ApiError(refusal.status, refusal.reason, refusal.message)
        stream = Stream(self._net, self._sender, path, silence)
        try:
            stream.open(query)
            yield stream.reader
        except RefusalError as refused:
            raise ApiError(refused.status, refused.reason, refused.message) from refused
        finally:
            stream.close()

    def _crash(self) -> Crash:
        """Count a request, and let happen what happens to the process at it."""
        crash: Crash = "" if self._sender.dead else self._sender.next_request()
        if crash == "before":
            self._sender.kill()
        elif crash == "freeze":
            self._sender.freeze(self._net.rng.choice([3.0, 12.0, 16.0, 30.0]))
        if self._sender.dead:
            raise ApiError(0, "Dead", "this process is no more")
        return crash


class _Flow(BaseProtocol):
    """Flow control without a connection."""

    @property
    def connected(self) -> bool:
        return True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self, resume_parser: bool = True) -> None:
        pass


class Stream:
    """An open watch, with the reader that aiohttp would give."""

    def __init__(self, network: Network, sender: Sender, path: str, silence: float) -> None:
        self.sender = sender
        self.reader = aiohttp.StreamReader(_Flow(network.loop), READ_BUFFER, loop=network.loop)
        self._net = network
        self._path = path
        self._silence = silence
        self._last = 0.0
        self._lost = False
        self._closed = False
        self._watch: Watch | None = None
        self._process = copy_context()
        self._alarm = network.loop.call_later(silence, self._timeout)

    def open(self, query: Mapping[str, str]) -> None:
        """Begin."""
        self._net.streams.append(self)
        self._watch = self._net.server.watch(self._path, query, self._send)
        self._after(float(query["timeoutSeconds"]), self._expire)
        self._after(self._net.rng.uniform(*BOOKMARKS), self._bookmark)

    def close(self) -> None:
        """The client is done."""
        self._closed = True
        self._alarm.cancel()
        if self._watch is not None:
            self._net.server.unwatch(self._watch)
        if self in self._net.streams:
            self._net.streams.remove(self)

    def end(self) -> None:
        """The server ends it: by the book, or in the middle of something."""
        if self._lost:
            return
        match self._net.rng.randrange(3):
            case 0:
                self._end_of_file()
            case 1:
                self._deliver(b'{"type":"MODIFIED","object":{"meta')
                self._end_of_file()
            case _:
                self._receive_soon(self._broken)

    def end_with_error(self) -> None:
        """The server sends an ERROR event and ends it."""
        if self._lost:
            return
        code, reason = self._net.rng.choice([(410, "Expired"), (500, "InternalError"), (504, "Timeout")])
        status = {"kind": "Status", "code": code, "reason": reason, "message": "of the simulation"}
        self._deliver(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
        self._end_of_file()

    def _send(self, line: bytes) -> None:
        """The server writes a line; lines arrive in order."""
        lag = self._net.faults.lag(self.sender.name, self._path, self._net.loop.time())
        if lag is None and not self._lost:
            self._lost = True
            self._net.deafened[self.sender.name] = self._net.loop.time()
            self._net.trace.add(self.sender.label, f"  watch {self._path} goes dead")
        if self._lost or lag is None:
            return
        self._last = max(self._last, self._net.loop.time() + lag)
        self._after(self._last - self._net.loop.time(), self._deliver, line)

    def _deliver(self, line: bytes) -> None:
        self._receive_soon(self._receive, line)

    def _expire(self) -> None:
        if not self._lost:
            self._end_of_file()

    def _end_of_file(self) -> None:
        self._receive_soon(self._eof)

    def _receive_soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Let the process's own loop read it: not while it is frozen."""
        self._net.loop.call_soon(self._unless_closed, callback, *args, context=self._process)

    def _receive(self, line: bytes) -> None:
        if self.reader.is_eof():
            return
        self._alarm.cancel()
        self._alarm = self._net.loop.call_later(self._silence, self._timeout)
        self.reader.feed_data(line)

    def _eof(self) -> None:
        self.reader.feed_eof()

    def _broken(self) -> None:
        self.reader.set_exception(aiohttp.ClientPayloadError("Response payload is not completed"))

    def _timeout(self) -> None:
        self.reader.set_exception(aiohttp.SocketTimeoutError("Timeout on reading data from socket"))

    def _bookmark(self) -> None:
        self._send(self._net.server.bookmark(parse(self._path).plural))
        self._after(self._net.rng.uniform(*BOOKMARKS), self._bookmark)

    def _after(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        self._net.later(seconds, self._unless_closed, callback, *args)

    def _unless_closed(self, callback: Callable[..., object], *args: Any) -> None:
        if not self._closed:
            callback(*args)

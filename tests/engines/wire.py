"""As much HTTP/1.1 as engines, sidecars and their clients need, of nothing but the standard library.

The test engines run in any image that has Python: they are mounted there, not installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

MAX_BODY: Final = 16 * 1024 * 1024
CONNECT_SECONDS: Final = 5.0
BROKEN: Final = (OSError, EOFError)
"""What a connection that breaks, or does not come about in time, looks like."""


@dataclass(frozen=True)
class Request:
    """A request; names of headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """Its body as a JSON object."""
        loaded = json.loads(self.body or b"{}")
        if not isinstance(loaded, dict):
            raise ValueError("the body is no JSON object")  # noqa: TRY004 - it is the client's fault
        return loaded


class Reply:
    """The answer to one request: whole, or in chunks as they come."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.started = False

    async def whole(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Answer at once."""
        self._head(status, {"content-length": str(len(body)), **(headers or {})})
        self._writer.write(body)
        await self._writer.drain()

    async def json(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        """Answer with JSON."""
        body = json.dumps(value).encode()
        await self.whole(status, body, {"content-type": "application/json", **(headers or {})})

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Begin an answer in chunks."""
        self._head(status, {"transfer-encoding": "chunked", **headers})
        await self._writer.drain()

    async def chunk(self, data: bytes) -> None:
        """Send a part of it."""
        self._writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self._writer.drain()

    async def end(self) -> None:
        """End it."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        reason = HTTPStatus(status).phrase
        lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers.items())]
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())


class Server:
    """Serves requests, and can stop without breaking one.

    Args:
        handle: answers a request.
    """

    def __init__(self, handle: Callable[[Request, Reply], Awaitable[None]]) -> None:
        self._handle = handle
        self._server: asyncio.Server | None = None
        self._busy: set[asyncio.Task[None]] = set()
        self._idle: set[asyncio.StreamWriter] = set()
        self._closing = False

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which for 0 is one that was free."""
        self._server = await asyncio.start_server(self._connected, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self, seconds: float) -> None:
        """Take no more connections, let requests end for so long, then break what is left."""
        self._closing = True
        if self._server:
            self._server.close()
        for writer in list(self._idle):
            writer.close()
        if self._busy:
            await asyncio.wait(self._busy, timeout=seconds)
        for task in list(self._busy):
            task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not self._closing:
                self._idle.add(writer)
                request = await _read_request(reader)
                self._idle.discard(writer)
                if request is None:
                    break
                await self._serve(request, writer)
        except (*BROKEN, ValueError, asyncio.CancelledError):
            pass
        finally:
            self._idle.discard(writer)
            writer.close()

    async def _serve(self, request: Request, writer: asyncio.StreamWriter) -> None:
        """Answer one request, in a task that stop() waits for."""
        task = asyncio.ensure_future(self._answer(request, Reply(writer)))
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)
        await task

    async def _answer(self, request: Request, reply: Reply) -> None:
        try:
            await self._handle(request, reply)
        except ValueError as error:
            if reply.started:
                raise
            await reply.json(400, {"error": {"message": str(error), "type": "BadRequestError"}})


@dataclass
class Answer:
    """The answer to a request of ours."""

    status: int
    headers: dict[str, str]
    _reader: asyncio.StreamReader = field(repr=False)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Its body as it comes.

        Raises:
            EOFError: it ends before its end.
        """
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int((await _line(self._reader)).split(b";")[0], 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
            await _line(self._reader)
        elif "content-length" in self.headers:
            if length := int(self.headers["content-length"]):
                yield await self._reader.readexactly(length)
        else:
            while data := await self._reader.read(65536):
                yield data

    async def body(self) -> bytes:
        """All of its body."""
        return b"".join([chunk async for chunk in self.chunks()])


@contextlib.asynccontextmanager
async def request(
    address: str, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> AsyncIterator[Answer]:
    """Send a request, on a connection of its own.

    Args:
        address: host and port.
        method: of the request.
        path: of the request.
        headers: those beside host, length and connection.
        body: of the request.

    Raises:
        OSError: nobody answers.
        EOFError: the connection breaks before the answer.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), CONNECT_SECONDS)
    try:
        sent = {"host": address, "content-length": str(len(body)), "connection": "close", **(headers or {})}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
        await writer.drain()
        status = int((await _line(reader)).split()[1])
        yield Answer(status, await _headers(reader), reader)
    finally:
        writer.close()


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection; None at its end."""
    try:
        line = await _line(reader)
    except EOFError:
        return None
    method, path, _ = line.decode().split(" ", 2)
    headers = await _headers(reader)
    if headers.get("transfer-encoding") == "chunked":
        return Request(method, path, headers, await Answer(0, headers, reader).body())
    length = int(headers.get("content-length", 0))
    if length > MAX_BODY:
        raise ValueError(f"a body of {length} bytes")
    return Request(method, path, headers, await reader.readexactly(length))


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    found: dict[str, str] = {}
    while line := (await _line(reader)).decode("latin-1"):
        name, _, value = line.partition(":")
        found[name.strip().lower()] = value.strip()
    return found


async def _line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError("the connection has ended")
    return line.rstrip(b"\r\n")

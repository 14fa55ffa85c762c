"""As much of HTTP/1.1 as launchers need to speak with each other, with kubelets and with Prometheus.

One request per connection. A thousand hosts hold a long poll each at the same launcher, so a connection costs
a coroutine and not a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import os
import re
import socket
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Optional

from tpu_runtime.aio import within

if TYPE_CHECKING:
    from pathlib import Path

_BACKLOG = 4096
_MAX_HEAD = 16 * 1024
_MAX_BODY = 16 * 1024
_MAX_ANSWER = 64 * 1024
_CHUNK = 256 * 1024
_READ_SECONDS = 10.0
_CLOSE_SECONDS = 5.0
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})[ \t]*\r\n", re.IGNORECASE)
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3}) ?[^\r\n]*\r\n")


class ProtocolError(OSError):
    """The other side does not speak HTTP, or not what we asked for."""


@dataclass(frozen=True)
class Request:
    """What a client asks."""

    method: str
    path: str
    body: bytes = b""


@dataclass(frozen=True)
class Response:
    """What a server answers."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    file: Optional[Path] = None
    """Sent in place of the body; may be large."""


Handler = Callable[[Request], Awaitable[Response]]
"""Answers a request; cancelled when the client goes away before it has answered."""


def text(status: int, message: str) -> Response:
    """A line of text."""
    return Response(status, f"{message}\n".encode())


def json_response(status: int, value: Any) -> Response:
    """A JSON document."""
    return Response(status, json.dumps(value).encode(), "application/json")


class Server:
    """Serves one handler on all addresses of this host.

    Attributes:
        port: where it listens; differs from what was asked for when that was 0.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._connections: set[asyncio.Task[None]] = set()
        self._answering: set[asyncio.Task[None]] = set()
        self._server: Optional[asyncio.AbstractServer] = None
        self.port = 0

    async def start(self, port: int) -> None:
        """Listen on a port, 0 for any.

        Raises:
            OSError: the port is taken.
        """
        listener = _listen(port)
        self.port = listener.getsockname()[1]
        self._server = await asyncio.start_server(
            self._connected, sock=listener, limit=_MAX_HEAD, backlog=_BACKLOG
        )

    async def close(self) -> None:
        """Stop listening and finish the answers that are under way, in at most five seconds."""
        if self._server is not None:
            self._server.close()
        if self._answering:
            await asyncio.wait(self._answering, timeout=_CLOSE_SECONDS)
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            # asyncio complains about connections that end as cancelled.
            with contextlib.suppress(OSError, EOFError, asyncio.TimeoutError, asyncio.CancelledError):
                await self._serve(task, reader, writer)
        finally:
            self._connections.discard(task)
            self._answering.discard(task)
            writer.close()

    async def _serve(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        request = await within(_READ_SECONDS, _read_request(reader))
        self._answering.add(task)
        if isinstance(request, Response):
            response: Optional[Response] = request
        else:
            response = await _unless_gone(self._answer(request), reader)
        if response is not None:
            await _send(response, writer)

    async def _answer(self, request: Request) -> Response:
        try:
            return await self._handler(request)
        except Exception as error:  # noqa: BLE001 - the log is the user's program's, the fault the client's
            return text(HTTPStatus.INTERNAL_SERVER_ERROR, f"no answer to this request: {error!r}")


def _listen(port: int) -> socket.socket:
    """Both address families where the kernel has both: IPv6-only clusters exist."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    return socket.create_server(("", port), backlog=_BACKLOG)


async def _read_request(reader: asyncio.StreamReader) -> Request | Response:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head of the request is too long")
    try:
        method, target, version = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
    except ValueError:
        return text(HTTPStatus.BAD_REQUEST, "this is not HTTP")
    if not version.startswith("HTTP/1."):
        return text(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1 is spoken here")
    length = _content_length(head)
    if length > _MAX_BODY:
        return text(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is longer than {_MAX_BODY} bytes")
    return Request(method, target.partition("?")[0], await reader.readexactly(length))


def _content_length(head: bytes) -> int:
    match = _LENGTH.search(head)
    return int(match.group(1)) if match else 0


async def _unless_gone(answer: Awaitable[Response], reader: asyncio.StreamReader) -> Optional[Response]:
    """The answer, or None when the client has gone away first."""
    answering = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return answering.result() if answering.done() else None
    finally:
        for task in (answering, leaving):
            task.cancel()
        await asyncio.gather(answering, leaving, return_exceptions=True)


async def _send(response: Response, writer: asyncio.StreamWriter) -> None:
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(response.file.open("rb")) if response.file else io.BytesIO(response.body)
        length = file.seek(0, os.SEEK_END)
        file.seek(0)
        writer.write(_head(response, length))
        while chunk := file.read(_CHUNK):
            writer.write(chunk)
            await within(_READ_SECONDS, writer.drain())


def _head(response: Response, length: int) -> bytes:
    status = HTTPStatus(response.status)
    return (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {response.content_type}\r\n"
        f"Content-Length: {length}\r\nConnection: close\r\n\r\n"
    ).encode()


async def post_json(address: tuple[str, int], path: str, value: Any, seconds: float) -> tuple[int, Any]:
    """Send a JSON document and return the status and the JSON document of the answer.

    Args:
        address: IP address and port.
        path: of the request.
        value: the document.
        seconds: for all of it.

    Raises:
        OSError: no connection, or no answer, or not one in JSON (ProtocolError).
    """
    try:
        return await within(seconds, _post_json(address, path, value))
    except asyncio.TimeoutError:
        raise ProtocolError(f"no answer within {seconds:.0f} s") from None
    except EOFError:
        raise ProtocolError("the connection ended before the answer") from None


async def is_ok(address: tuple[str, int], path: str, seconds: float) -> bool:
    """Whether a server answers a GET with 200 in time."""
    head = f"GET {path} HTTP/1.1\r\nHost: launcher\r\nConnection: close\r\n\r\n"
    with contextlib.suppress(OSError, EOFError, asyncio.TimeoutError):
        match = _STATUS_LINE.match(await within(seconds, _exchange(address, head.encode())))
        return match is not None and int(match.group(1)) == HTTPStatus.OK
    return False


async def _post_json(address: tuple[str, int], path: str, value: Any) -> tuple[int, Any]:
    body = json.dumps(value).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: launcher\r\nContent-Length: {len(body)}\r\n\r\n"
    return _parse_answer(await _exchange(address, head.encode() + body))


async def _exchange(address: tuple[str, int], request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(request)
        answer = await reader.read(_MAX_ANSWER)
        while chunk := await reader.read(_MAX_ANSWER):
            answer += chunk
            if len(answer) > _MAX_ANSWER:
                raise ProtocolError("the answer is too long")
    finally:
        writer.close()
    return answer


def _parse_answer(answer: bytes) -> tuple[int, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    match = _STATUS_LINE.match(head + b"\r\n")
    if not match:
        raise ProtocolError("the answer is not HTTP" if answer else "the connection ended before the answer")
    try:
        return int(match.group(1)), json.loads(body)
    except ValueError:
        shown = body[:100].decode(errors="replace")
        raise ProtocolError(f"the answer is not JSON: {shown!r}") from None

"""A reverse proxy before the API server that breaks what passes through it, as the test says.

The operator talks plain HTTP to it, it talks TLS to the server. Requests meet the first rule that matches
them; lines of watches meet the event rules. All of it runs on the event loop of whoever starts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode

import aiohttp
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from ssl import SSLContext

Object = dict[str, Any]
T = TypeVar("T")

VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
LEASES: Final = "leases"
NODES: Final = "nodes"
GONE: Final = 410
REASONS: Final = {
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(slots=True)
class Call:
    """A request, as rules see it.

    Attributes:
        method: HTTP method.
        path: path with query.
        verb: get, list, watch, create, update, patch or delete.
        resource: plural, such as "pods".
        subresource: such as "status", else empty.
        namespace: empty for all.
        name: of the object; empty for lists and watches.
        body: what is sent, decoded.
        at: when it came, on the loop's clock.
        status: what the server answered; None while it has not, or if it was never asked.
    """

    method: str
    path: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    body: Object
    at: float
    status: int | None = None

    @classmethod
    def parse(cls, method: str, path: str, watch: bool, data: bytes) -> Call:
        """Take a request apart."""
        parts = path.partition("?")[0].strip("/").split("/")
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        resource, name, subresource = (*rest, "", "", "")[:3]
        reading = "watch" if watch else "get" if name else "list"
        body = json.loads(data) if data else {}
        return cls(
            method,
            path,
            VERBS.get(method, reading),
            resource,
            subresource,
            namespace,
            name or body.get("metadata", {}).get("name", ""),
            body,
            asyncio.get_running_loop().time(),
        )

    @property
    def version(self) -> str:
        """Resource version that a watch begins at."""
        return dict(parse_qsl(self.path.partition("?")[2])).get("resourceVersion", "")

    @property
    def is_write(self) -> bool:
        """Whether it changes something, other than who leads."""
        return self.method in VERBS and self.resource != LEASES

    @property
    def attempt(self) -> str:
        """Attempt of the pod that is created."""
        return str(self.body.get("metadata", {}).get("labels", {}).get("tpu-operator.dev/attempt", ""))

    def __str__(self) -> str:
        what = "/".join(part for part in (self.resource, self.name, self.subresource) if part)
        more = self.body.get("status", {}).get("phase") or self.body.get("reason") or self.attempt
        return f"{self.verb} {what}{f' ({more})' if more else ''} -> {self.status}"


class Exchange:
    """One request under way, and what may be done with it."""

    def __init__(self, proxy: Proxy, call: Call, request: web.BaseRequest, data: bytes) -> None:
        self.proxy, self.call, self._request, self._data = proxy, call, request, data

    async def forward(self) -> web.StreamResponse:
        """Let it pass, and its answer."""
        if self.call.verb == "watch":
            return await self.proxy.stream(self._request, self.call)
        return await self.ask()

    async def ask(self) -> web.Response:
        """Let the server carry it out."""
        return await self.proxy.ask(self._request, self.call, self._data)

    def ask_for(self, parameter: str, value: str) -> None:
        """Change a parameter of the request's query."""
        path, _, query = self.call.path.partition("?")
        self.call.path = f"{path}?{urlencode({**dict(parse_qsl(query)), parameter: value})}"

    def drop(self) -> web.StreamResponse:
        """Break the connection without an answer."""
        if self._request.transport is not None:
            self._request.transport.abort()
        return web.Response()


Action = Callable[["Exchange"], Awaitable[web.StreamResponse]]


def status_of(code: int, reason: str = "", retry_after: int | None = None) -> Object:
    """The API's Status object of an error."""
    found: Object = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"the test answers {code}",
        "reason": reason or REASONS.get(code, ""),
        "code": code,
    }
    return found | ({"details": {"retryAfterSeconds": retry_after}} if retry_after is not None else {})


@dataclass(slots=True)
class Rule:
    """What happens to which requests.

    Attributes:
        action: what happens.
        verb: only to these; the others are alike. Empty matches all.
        resource: plural.
        subresource: "-" for the object itself.
        name: name of the object.
        where: a further condition.
        skip: how many matching requests to let pass first.
        times: how many to meet then.
        hits: those that it has met.
    """

    action: Action
    verb: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""
    where: Callable[[Call], bool] = field(default=lambda _: True)
    skip: int = 0
    times: float = float("inf")
    hits: list[Call] = field(default_factory=list)

    def meets(self, call: Call) -> bool:
        """Whether it is this request's turn; counts."""
        fits = (
            self.verb in {"", call.verb}
            and self.resource in {"", call.resource}
            and self.subresource in {"", call.subresource or "-"}
            and self.name in {"", call.name}
            and self.where(call)
        )
        if not fits or len(self.hits) >= self.times:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.hits.append(call)
        return True


@dataclass(slots=True)
class EventRule:
    """Which events of watches are lost, or come more than once.

    Attributes:
        copies: how many times they come.
        resource: plural; empty matches all but nodes.
        name: name of the object.
        type: ADDED, MODIFIED, DELETED or BOOKMARK; empty for all but bookmarks.
        skip: how many matching events to let pass first.
        times: how many to meet then.
        hits: those that it has met, as "type name".
    """

    copies: int = 0
    resource: str = ""
    name: str = ""
    type: str = ""
    skip: int = 0
    times: float = 1
    hits: list[str] = field(default_factory=list)

    def meets(self, resource: str, event: Object) -> bool:
        """Whether it is this event's turn; counts."""
        name = event["object"].get("metadata", {}).get("name", "")
        fits = (
            (self.resource == resource or (not self.resource and resource != NODES))
            and self.name in {"", name}
            and (self.type == event["type"] or (not self.type and event["type"] != "BOOKMARK"))
        )
        if not fits or len(self.hits) >= self.times:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.hits.append(f"{event['type']} {name}")
        return True


class Watch:
    """An open watch."""

    def __init__(self, call: Call, response: web.StreamResponse, transport: asyncio.Transport | None) -> None:
        self.call = call
        self.version = call.version
        self.ended = asyncio.Event()
        self.hung = False
        self._response = response
        self._transport = transport

    async def send(self, line: bytes) -> None:
        """Send a line, or a part of one."""
        with contextlib.suppress(ConnectionError):
            await self._response.write(line)

    def is_behind(self, resource: str, version: int) -> bool:
        """Whether it will still bring that version of an object of a resource."""
        return self.call.resource == resource and int(self.version or 0) < version

    async def fail(self, code: int, retry_after: int | None = None) -> None:
        """Send an ERROR event and end, as the server does."""
        event = {"type": "ERROR", "object": status_of(code, retry_after=retry_after)}
        await self.send(json.dumps(event).encode() + b"\n")
        self.ended.set()

    async def bookmark(self) -> None:
        """Say that nothing has happened."""
        event = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": self.version}}}
        if not self.hung:
            await self.send(json.dumps(event).encode() + b"\n")

    def snap(self) -> None:
        """End with a broken connection."""
        if self._transport is not None:
            self._transport.abort()
        self.ended.set()

    async def truncate(self, *, politely: bool) -> None:
        """End in the middle of a line: with the end of the chunked body, or a broken connection."""
        await self.send(b'{"type":"MODIFIED","object":{"metad')
        if politely:
            self.ended.set()
        else:
            self.snap()


@dataclass(frozen=True, slots=True)
class Upstream:
    """The API server.

    Attributes:
        session: connections to it, shared by the proxies of a loop.
        url: where it is.
        token: what opens it.
        tls: its certificate.
    """

    session: aiohttp.ClientSession
    url: str
    token: str
    tls: SSLContext


class Proxy:
    """One proxy, for one replica of the operator.

    Attributes:
        rules: what happens to requests; the first that meets one decides.
        event_rules: what happens to events of watches.
        calls: all requests that came, in order.
        writes: those of them that change something; leases left out.
        watches: watches that are open now.
        moved: set for a moment when a watch has brought something, or has ended.
        url: where it listens.
    """

    def __init__(self, upstream: Upstream) -> None:
        self.rules: list[Rule] = []
        self.event_rules: list[EventRule] = []
        self.calls: list[Call] = []
        self.writes: list[Call] = []
        self.watches: list[Watch] = []
        self.moved = asyncio.Event()
        self.url = ""
        self._upstream = upstream
        self._flow = asyncio.Event()
        self._flow.set()
        self._dead = False
        self._kill: tuple[int, Callable[[], object]] | None = None
        self._asked: set[asyncio.Task[Any]] = set()
        self._runner: web.ServerRunner | None = None
        self._server: web.Server | None = None
        self._site: web.TCPSite | None = None
        self._port = 0

    async def start(self) -> Proxy:
        """Begin to listen on a free port of loopback."""
        self._server = web.Server(self._handle, access_log=None)
        self._runner = web.ServerRunner(self._server, handle_signals=False, shutdown_timeout=0.1)
        await self._runner.setup()
        await self.accept()
        return self

    async def accept(self) -> None:
        """Take new connections, at the same port as before."""
        assert self._runner is not None
        self._site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await self._site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def refuse(self) -> None:
        """Break all connections and refuse new ones, as if the machine were down."""
        if self._site is not None:
            site, self._site = self._site, None
            await site.stop()
        self._abort()

    def freeze(self) -> None:
        """Let no more lines of watches through; nothing is lost."""
        self._flow.clear()

    def thaw(self) -> None:
        """Let them through again."""
        self._flow.set()

    def hang(self) -> None:
        """Let nothing more through on the watches that are open now, not even their end."""
        for watch in self.watches:
            watch.hung = True

    def break_watches(self) -> None:
        """Break the connections of all watches."""
        for watch in list(self.watches):
            watch.snap()

    async def expire(self) -> None:
        """Tell all watches that their position is lost, which makes the replica list again."""
        for watch in list(self.watches):
            await watch.fail(GONE)

    def kill_after(self, number: int, kill: Callable[[], object]) -> None:
        """Cut the replica off after a write: the server has done it, and the replica does not hear of it.

        Args:
            number: the how manieth write from now on; 0 for at once.
            kill: ends the replica; nothing of it passes from before this is called.
        """
        self._kill = (len(self.writes) + number, kill)
        if number == 0:
            self._die(kill)

    def spare(self) -> bool:
        """Take `kill_after` back; whether it is too late."""
        self._kill = None
        return self._dead

    async def close(self) -> None:
        """Stop, after what the server was asked has been answered."""
        self._dead = True
        self._abort()
        for watch in self.watches:
            watch.ended.set()
        await asyncio.gather(*self._asked, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def killed(self) -> bool:
        """Whether the write of `kill_after` has come."""
        return self._dead

    def _abort(self) -> None:
        assert self._server is not None
        for connection in self._server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    def _die(self, kill: Callable[[], object]) -> None:
        self._dead = True
        self._abort()
        kill()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        data = await request.read()
        call = Call.parse(request.method, request.path_qs, "watch" in request.query, data)
        exchange = Exchange(self, call, request, data)
        if self._dead:
            return exchange.drop()
        self.calls.append(call)
        if not call.is_write:
            return await self._act(exchange)
        self.writes.append(call)
        plan = self._kill
        if plan is None or len(self.writes) != plan[0]:
            return await self._act(exchange)
        done = await exchange.ask()
        if self._kill != plan:
            return done
        self._die(plan[1])
        return exchange.drop()

    async def _act(self, exchange: Exchange) -> web.StreamResponse:
        rule = next((rule for rule in self.rules if rule.meets(exchange.call)), None)
        done = await (rule.action(exchange) if rule is not None else exchange.forward())
        return exchange.drop() if self._dead else done

    async def ask(self, request: web.BaseRequest, call: Call, data: bytes) -> web.Response:
        """Ask the server, whose answer arrives here whatever becomes of the replica."""
        return await asyncio.shield(self._spawn(self._ask(request, call, data)))

    def _spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)
        return task

    async def _ask(self, request: web.BaseRequest, call: Call, data: bytes) -> web.Response:
        try:
            async with self._send(request, call, data) as found:
                body = await found.read()
        except aiohttp.ClientError:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        call.status = found.status
        kept = {key: found.headers[key] for key in ("Content-Type", "Retry-After") if key in found.headers}
        return web.Response(body=body, status=found.status, headers=kept)

    def _send(
        self, request: web.BaseRequest, call: Call, data: bytes
    ) -> aiohttp.client._RequestContextManager:
        headers = {key: request.headers[key] for key in ("Content-Type", "Accept") if key in request.headers}
        headers |= {"Authorization": f"Bearer {self._upstream.token}", "Accept-Encoding": "identity"}
        return self._upstream.session.request(
            call.method,
            self._upstream.url + call.path,
            data=data or None,
            headers=headers,
            ssl=self._upstream.tls,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
        )

    async def stream(self, request: web.BaseRequest, call: Call) -> web.StreamResponse:
        """Pass a watch on, line by line."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        try:
            async with self._send(request, call, b"") as found:
                call.status = found.status
                if found.status != web.HTTPOk.status_code:
                    return web.Response(body=await found.read(), status=found.status)
                await response.prepare(request)
                watch = Watch(call, response, request.transport)
                self.watches.append(watch)
                try:
                    await self._pass_lines(watch, found.content)
                finally:
                    self.watches.remove(watch)
                    self._wake()
        except (aiohttp.ClientError, ConnectionError):
            # Of the server, or of the replica: either way the other one sees its connection end.
            if request.transport is not None:
                request.transport.abort()
        return response

    def _wake(self) -> None:
        """Wake whoever waits for watches to move, and nobody who comes later."""
        self.moved.set()
        self.moved.clear()

    async def _pass_lines(self, watch: Watch, lines: aiohttp.StreamReader) -> None:
        while not watch.ended.is_set():
            line = await _first(lines.readline(), watch.ended)
            if not line:
                return
            await _first(self._flow.wait(), watch.ended)
            event = json.loads(line)
            rule = next((r for r in self.event_rules if r.meets(watch.call.resource, event)), None)
            if watch.ended.is_set():
                return
            for _ in range(0 if watch.hung else 1 if rule is None else rule.copies):
                await watch.send(line)
            watch.version = event["object"].get("metadata", {}).get("resourceVersion", watch.version)
            self._wake()


async def _first(what: Awaitable[T], ended: asyncio.Event) -> T | None:
    """The result, or None if it is over before."""
    task = asyncio.ensure_future(what)
    end = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait({task, end}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        end.cancel()

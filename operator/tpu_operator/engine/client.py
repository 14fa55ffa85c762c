"""The one way to the API server: raw JSON over the client library's connection.

`kubernetes.aio` brings credentials, their renewal, and TLS; its models are left alone, since decoding a pod
into one costs a millisecond. Every request has a time limit, and every write passes the fence.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlencode
from urllib.request import getproxies

import aiohttp
import msgspec
from kubernetes.aio import client as kubernetes_client

from tpu_operator.core.names import FIELD_MANAGER
from tpu_operator.engine import credentials
from tpu_operator.engine.metrics import API_REQUESTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from tpu_operator.engine.resources import Resource

T = TypeVar("T")

APPLY: Final = "application/apply-patch+yaml"
JSON: Final = "application/json"
MERGE: Final = "application/merge-patch+json"
REQUEST_TIMEOUT: Final = 30.0
WRITE_TIMEOUT: Final = 12.0
"""Seconds; the lease leaves a write 10 to 12, and a server may wait 10 for a webhook and then do without."""
ANSWER: Final = 1.0
"""Seconds after a write's time in which the server may still say that it is over, and what has taken it."""
TIMED_OUT: Final = 504
MIDST: Final = 0.5
"""Seconds for which the server may still be in the midst of a write whose connection we have closed."""
TAKEN: Final = "Taken"
"""Our own reason for a name that something else has."""
TOO_LARGE: Final = "request is too large"
"""What etcd says, in an answer that looks like a fault of the server."""
CONNECT_TIMEOUT: Final = 5.0
LONGEST_PAUSE: Final = 60.0
"""Seconds; who asks for longer ones is not the API server but, say, a page about maintenance."""
OK: Final = range(200, 300)


class ApiError(Exception):
    """The API server's answer to a request that it did not carry out.

    Attributes:
        status: HTTP status; 0 when there was no answer.
        reason: the machine-readable reason, such as "AlreadyExists".
        message: the server's explanation.
        retry_after: seconds that the server asks to wait, a minute at most, or None.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = None if retry_after is None else min(retry_after, LONGEST_PAUSE)

    @property
    def answered(self) -> bool:
        """Whether the server has said anything at all."""
        return self.status > 0

    @property
    def uncertain(self) -> bool:
        """Whether the server may have carried the request out all the same."""
        return not self.answered or self.status >= 500  # noqa: PLR2004

    @property
    def gone(self) -> bool:
        """Whether the object, or its incarnation, is not there any more."""
        return self.status == 404  # noqa: PLR2004

    @property
    def conflict(self) -> bool:
        """Whether the object has changed in between, or exists already."""
        return self.status == 409  # noqa: PLR2004

    @property
    def refused(self) -> bool:
        """Whether the server has understood and said no, so that a repetition will be refused as well."""
        return self.status in {400, 403, 413, 422} or self.reason == TAKEN or TOO_LARGE in self.message


def decode(data: bytes, view: type[T]) -> T:
    """Decode an answer.

    Raises:
        ApiError: it is nothing that the server would say; something between it and us has answered.
    """
    try:
        return msgspec.json.decode(data, type=view)
    except msgspec.MsgspecError as error:
        raise ApiError(0, "Unreadable", f"the answer is no {view.__name__.strip('_')}: {error}") from error


class FencedError(Exception):
    """A write that was not sent, as this replica may not be the leader any more."""


_write_time: ContextVar[Callable[[], float] | None] = ContextVar("write_time", default=None)
"""For the request under way: asked for the seconds that it may take, if it is a write."""


class _Request(aiohttp.ClientRequest):
    """A request that looks at the fence at the last moment before it is sent.

    Between the decision to send a write and its first byte there may be a new connection, or the process was
    frozen; and the time limit that the server is told begins when the request arrives.
    """

    async def send(self, conn: Any) -> aiohttp.ClientResponse:
        ask = _write_time.get()
        if ask is not None:
            if (left := ask()) <= 0:
                raise FencedError(f"{self.method} {self.url.path}")
            self.url = self.url.update_query(timeout=f"{left:.3f}s")
        return await super().send(conn)


def configure(configuration: kubernetes_client.Configuration) -> None:
    """Set what the way to the server needs of the library, whatever the credentials are."""
    configuration.connection_pool_maxsize = 0  # the writer's semaphore is the limit
    # Without a proxy there is nothing to look for in the environment, nor a .netrc at every request.
    configuration.client_session_kwargs = {"trust_env": bool(getproxies()), "request_class": _Request}


class ApiServer:
    """Requests to one API server.

    Args:
        api: the library's client, configured.
        write_time: asked before every write: seconds that it may take, none if it must not be sent. It is
            the leader's lease: a write must neither be sent nor carried out when somebody else may lead.
    """

    def __init__(
        self, api: kubernetes_client.ApiClient, write_time: Callable[[], float] = lambda: WRITE_TIMEOUT
    ) -> None:
        self._api = api
        self.write_time = write_time
        self._given_up = float("-inf")

    @classmethod
    async def connect(cls) -> ApiServer:
        """Connect as the environment says: the pod's service account, or else the kubeconfig.

        Raises:
            CredentialsError: there is neither.
        """
        configuration = kubernetes_client.Configuration()
        await credentials.load(configuration)
        return cls._with(configuration, FIELD_MANAGER)

    @classmethod
    async def connect_for_person(
        cls, agent: str, kubeconfig: str = "", context: str = ""
    ) -> tuple[ApiServer, str]:
        """Connect as kubectl would; returns the namespace of the context, too.

        Args:
            agent: who asks, for the server's logs.
            kubeconfig: a file; empty: as KUBECONFIG says, or the user's own, or the pod's service account.
            context: an entry of it; empty: the current one.

        Raises:
            CredentialsError: there is no way to the API server.
        """
        configuration = kubernetes_client.Configuration()
        namespace = await credentials.load_for_person(configuration, kubeconfig, context)
        return cls._with(configuration, agent), namespace

    @classmethod
    def _with(cls, configuration: kubernetes_client.Configuration, agent: str) -> ApiServer:
        configure(configuration)
        api = kubernetes_client.ApiClient(configuration)
        api.user_agent = agent
        return cls(api)

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def get(self, path: str, **query: str) -> bytes:
        """Read a path."""
        return await self.request("GET", path, query=query)

    async def create(self, resource: Resource, manifest: Mapping[str, Any]) -> bytes:
        """Create an object; 409 when one of that name exists, 400 for a field that Kubernetes does not know.

        Manifests hold parts that users wrote: a misspelt field must not be dropped without a word.
        """
        path = resource.path(manifest["metadata"].get("namespace", ""))
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        return await self.write("POST", path, manifest, query=query)

    async def apply(self, resource: Resource, manifest: Mapping[str, Any], subresource: str = "") -> bytes:
        """Server-side apply an object, taking over the fields that it names."""
        meta = manifest["metadata"]
        path = resource.path(meta.get("namespace", ""), meta["name"], subresource)
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self.write("PATCH", path, manifest, query=query, content_type=APPLY)

    async def merge(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        version: str,
        change: Mapping[str, Any],
        subresource: str = "",
    ) -> bytes:
        """Change parts of one version of an object; 409 if there is a newer one."""
        body = {**change, "metadata": {**change.get("metadata", {}), "resourceVersion": version}}
        path = resource.path(namespace, name, subresource)
        return await self.write(
            "PATCH", path, body, query={"fieldManager": FIELD_MANAGER}, content_type=MERGE
        )

    async def delete(
        self, resource: Resource, namespace: str, name: str, uid: str, grace_seconds: int | None = None
    ) -> bytes | None:
        """Delete one incarnation of an object; None if it is gone already.

        Raises:
            ApiError: it was not deleted; a conflict is another incarnation, or a change at the same time.
        """
        options: dict[str, Any] = {
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            return await self.write("DELETE", resource.path(namespace, name), options)
        except ApiError as error:
            if error.gone:
                return None
            raise

    async def write(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
    ) -> bytes:
        """Send a change.

        Raises:
            FencedError: this replica may not write now.
            ApiError: the server did not carry it out.
        """
        left = self._write_time()
        if left <= 0:
            raise FencedError(f"{method} {path}")
        # The server keeps the limit as well: it does not notice that a client is frozen.
        query = {**(query or {}), "timeout": f"{left:.3f}s"}
        answered = False
        token = _write_time.set(self._write_time)
        try:
            data = await self.request(
                method, path, query=query, body=body, content_type=content_type, timeout=left + ANSWER
            )
            answered = True
        except ApiError as error:
            # A server that is out of time says so while it may still be in the midst of it.
            answered = error.answered and error.status != TIMED_OUT
            raise
        finally:
            _write_time.reset(token)
            if not answered:
                self._given_up = asyncio.get_running_loop().time()
        return data

    def _write_time(self) -> float:
        return min(WRITE_TIMEOUT, self.write_time())

    async def settle(self) -> None:
        """Wait until no write that was given up can take effect any more."""
        await asyncio.sleep(self._given_up + MIDST - asyncio.get_running_loop().time())

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        timeout: float = REQUEST_TIMEOUT,  # noqa: ASYNC109
    ) -> bytes:
        """Send any request and read the whole answer.

        Raises:
            ApiError: the server did not carry it out, or did not answer.
        """
        limits = aiohttp.ClientTimeout(
            total=timeout, sock_connect=CONNECT_TIMEOUT, ceil_threshold=float("inf")
        )
        try:
            response = await self._send(method, path, query, body, content_type, limits)
            async with response:
                data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            _count(method, path, 0)
            raise _unanswered(f"{method} {path}", error) from error
        _count(method, path, response.status)
        if response.status not in OK:
            raise _error(response, data)
        return data

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], silence: float
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Open a watch, or follow a log.

        Args:
            path: path of the collection, or of the log.
            query: its parameters.
            silence: seconds without a byte after which the connection counts as dead.

        Raises:
            ApiError: the server did not open it.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=silence)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                response = await self._send("GET", path, query, None, JSON, limits)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            _count("WATCH", path, 0)
            raise _unanswered(f"watch {path}", error) from error
        async with response:
            _count("WATCH", path, response.status)
            if response.status not in OK:
                raise _error(response, await response.read())
            try:
                yield response.content
            finally:
                _hang_up(response)

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        content_type: str,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        headers = {"Content-Type": content_type, "Accept": JSON, "User-Agent": self._api.user_agent}
        try:
            await self._api.update_params_for_auth(headers, [], [credentials.TOKEN], path, method, body)
        except Exception as error:  # whatever the library meets in token files and plugins
            raise ApiError(0, "Credentials", f"{method} {path}: {error!r}") from error
        url = f"{self._api.configuration.host}{path}"
        if query:
            url += "?" + urlencode(query)
        answer = await self._api.rest_client.request(
            method, url, headers=headers, body=body, _request_timeout=limits
        )
        response: aiohttp.ClientResponse = answer.response
        return response


class _Status(msgspec.Struct, rename="camel"):
    """The server's metav1.Status."""

    message: str = ""
    reason: str = ""


def _unanswered(request: str, error: Exception) -> ApiError:
    kind = type(error).__name__
    return ApiError(0, kind, f"{request} was not answered: {str(error) or kind}")


def _error(response: aiohttp.ClientResponse, data: bytes) -> ApiError:
    try:
        status = msgspec.json.decode(data, type=_Status)
    except msgspec.MsgspecError:
        status = _Status(message=data[:500].decode(errors="replace"))
    reason = status.reason or response.reason or ""
    return ApiError(response.status, reason, status.message, _retry_after(response))


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdecimal() else None


def _hang_up(response: aiohttp.ClientResponse) -> None:
    """Break off what has not been read to its end.

    Closed politely, a connection over TLS stays until the server answers, which one that hangs never does.
    """
    if response.connection and response.connection.transport:
        response.connection.transport.abort()


def _count(method: str, path: str, status: int) -> None:
    parts = path.split("/")
    # /api/v1/namespaces/NS/RESOURCE/… or /apis/GROUP/V/namespaces/NS/RESOURCE/…
    start = 3 if parts[1] == "api" else 4
    rest = parts[start:]
    resource = rest[2] if len(rest) > 2 and rest[0] == "namespaces" else "".join(rest[:1])  # noqa: PLR2004
    API_REQUESTS.labels(method, resource, str(status)).inc()

"""A local copy of some objects of the cluster, kept true by list and watch.

What other watchers get wrong and this one must not: a deletion that happens while the watch is down is found
by comparing the next list with the copy; no answer of the server ends the watch for good; and a watch that
is silent for longer than the server's bookmarks allow counts as dead.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import aiohttp
import msgspec

from tpu_operator.engine.client import ApiError, decode
from tpu_operator.engine.metrics import LISTENER_ERRORS, WATCH_AGE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpu_operator.engine.client import ApiServer
    from tpu_operator.engine.resources import Resource

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name."""

SERVER_TIMEOUT: Final = 300
SILENCE: Final = 70.0
"""Seconds without a word after which a watch is given up; the server sends a bookmark every minute."""
FIRST_PAGE: Final = 25
"""Objects of the first page of a list, whose size tells how many the next may have."""
PAGE: Final = 500
PAGE_BYTES: Final = 8 << 20
"""Bytes that a page may have: an object may have 1.5 MiB, and a user many of them."""
BACKOFF: Final = (0.2, 30.0)
RELIST_AFTER: Final = 5.0
"""Once the pauses are this long, the position in the watch is given up as well."""
STEADY: Final = 1.0
"""A watch that stands for so long has not failed, even if it brings nothing."""
GONE: Final = 410


class HasMetadata(Protocol):
    """What the informer needs to know of an object."""

    @property
    def metadata(self) -> Any:
        """Its name, namespace, labels and resource version."""


T = TypeVar("T", bound=HasMetadata)
Listener = Callable[[Key, T | None, T | None], None]
"""Called with the key of an object and what it was and is: None before it appears, and once it is gone."""


class _ListMeta(msgspec.Struct, rename="camel"):
    # Never absent: an answer without one comes from something else than the server, and means nothing.
    resource_version: str
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    items: list[msgspec.Raw]
    metadata: _ListMeta


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Bookmark(msgspec.Struct):
    metadata: _ListMeta


class _Name(msgspec.Struct, rename="camel"):
    name: str
    namespace: str = ""
    resource_version: str = ""


class _Named(msgspec.Struct):
    metadata: _Name


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: float | None = None


class _Error(msgspec.Struct):
    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details = msgspec.field(default_factory=_Details)


class RelistError(Exception):
    """The watch cannot go on from where it is."""


SURVIVED: Final = (
    RelistError,
    ApiError,
    aiohttp.ClientError,
    TimeoutError,
    OSError,
    msgspec.MsgspecError,
    RecursionError,
)
"""What a server, a network or an object can do to a watch, none of which ends it."""


class Informer(Generic[T]):
    """Objects of one resource, by key, with one optional index.

    Args:
        api: where to read.
        resource: what to read.
        view: the type that objects are decoded into.
        namespace: only this namespace; empty for all.
        selector: only objects with these labels.
        fields: only objects with these fields.
        keep: tells objects that are of interest from others, which no selector does; None keeps all.
        index: maps an object to the key of what it belongs to.

    Attributes:
        seen: resource version that the copy has reached; -1 before the first.
    """

    def __init__(  # noqa: PLR0913 - each narrows what is read
        self,
        api: ApiServer,
        resource: Resource,
        view: type[T],
        *,
        namespace: str = "",
        selector: str = "",
        fields: str = "",
        keep: Callable[[T], bool] | None = None,
        index: Callable[[T], Key | None] | None = None,
    ) -> None:
        self.resource = resource
        self._api = api
        self._decoder = msgspec.json.Decoder(view)
        self._path = resource.path(namespace)
        selectors = {"labelSelector": selector, "fieldSelector": fields}
        self._selector = {name: value for name, value in selectors.items() if value}
        self._keep = keep or (lambda _: True)
        self._index_of = index or (lambda _: None)
        self._objects: dict[Key, T] = {}
        self._index: defaultdict[Key, dict[str, T]] = defaultdict(dict)
        self._listeners: list[Listener[T]] = []
        self._version = ""
        self.seen = -1
        self._heard = self._tried = asyncio.get_running_loop().time()
        self._stood = False
        self._round: asyncio.Task[None] | None = None
        self._fresh = asyncio.Event()
        self.synced = asyncio.Event()
        chosen = ",".join(filter(None, (selector, fields)))
        WATCH_AGE.labels(resource.plural, namespace, chosen).set_function(self.age)

    def listen(self, listener: Listener[T]) -> None:
        """Call `listener` with every object that appears, changes or goes."""
        self._listeners.append(listener)

    def get(self, key: Key) -> T | None:
        """The object of that key."""
        return self._objects.get(key)

    def keys(self) -> list[Key]:
        """Keys of all objects."""
        return list(self._objects)

    def values(self) -> list[T]:
        """All objects."""
        return list(self._objects.values())

    def of(self, key: Key) -> Mapping[str, T]:
        """Objects that the index assigns to a key, by name."""
        return self._index.get(key, {})

    def has_seen(self, version: int) -> bool:
        """Whether the copy is at least as new as a resource version of one of its objects."""
        return self.seen >= version

    def age(self) -> float:
        """Seconds since the server last said anything."""
        return asyncio.get_running_loop().time() - self._heard

    def stalled(self) -> float:
        """Seconds since the server last said anything on a watch, or a request to it failed.

        An outage of the server is no stall; a watch that it has opened and says nothing on is one.
        """
        return asyncio.get_running_loop().time() - max(self._heard, self._tried)

    async def refresh(self) -> None:
        """Read everything again, and return once the copy is newer than this call."""
        self._fresh.clear()
        self._version = ""
        if self._round is not None:
            self._round.cancel()
        await self._fresh.wait()

    async def run(self) -> None:
        """List and watch for ever."""
        while True:
            self._round = asyncio.create_task(self._follow())
            try:
                await asyncio.wait({self._round})
            finally:
                self._round.cancel()
                await asyncio.gather(self._round, return_exceptions=True)
            if not self._round.cancelled():
                self._round.result()

    async def _follow(self) -> None:
        delay = BACKOFF[0]
        while True:
            self._stood = False
            try:
                if not self._version and not await self._read():
                    continue
                await self._watch()
                delay = BACKOFF[0]
            except SURVIVED as error:
                # Pauses add up until a watch stands: lists that end in nothing are the dearest of failures.
                delay = BACKOFF[0] if self._stood else delay
                if isinstance(error, RelistError) or delay > RELIST_AFTER:
                    self._version = ""
                await self._back_off(error, delay)
                delay = min(delay * 2, BACKOFF[1])

    async def _back_off(self, error: BaseException, delay: float) -> None:
        # A time-out is the watch's own silence; a request that was not answered is an ApiError.
        if not isinstance(error, TimeoutError):
            self._tried = asyncio.get_running_loop().time()
        asked = getattr(error, "retry_after", None) or 0.0
        pause = max(asked, delay) * random.uniform(1.0, 1.5)  # noqa: S311
        log.warning("%s: watch failed, going on in %.1f s: %r", self.resource.plural, pause, error)
        await asyncio.sleep(pause)

    async def _read(self) -> bool:
        """Read everything; whether there is something to watch now."""
        await self._list()
        self._be_fresh()
        return True

    def _be_fresh(self) -> None:
        self.synced.set()
        self._fresh.set()

    async def _list(self) -> None:
        """Read everything, and find out what has gone since."""
        found: dict[Key, T] = {}
        query = {"limit": str(FIRST_PAGE), **self._selector}
        while True:
            data = await self._get_page(query)
            page = decode(data, _List)
            self._hear()
            if page.items:
                query["limit"] = str(min(PAGE, max(1, PAGE_BYTES * len(page.items) // len(data))))
            for raw in page.items:
                if (item := self._decode(raw)) is not None:
                    found[self._key(item)] = item
            if not page.metadata.continue_:
                break
            query["continue"] = page.metadata.continue_
        self._replace(found)
        self._version = page.metadata.resource_version
        self._see(self._version)

    def _decode(self, raw: msgspec.Raw) -> T | None:
        """An object of interest; one that cannot be read must not cost us all the others."""
        try:
            item = self._decoder.decode(raw)
            return item if self._keep(item) else None
        except (msgspec.MsgspecError, RecursionError) as error:
            log.warning("%s: an object cannot be read, it is left out: %r", self.resource.plural, error)
            return None

    async def _get_page(self, query: dict[str, str]) -> bytes:
        try:
            return await self._api.get(self._path, **query)
        except ApiError as error:
            if error.status == GONE:
                raise RelistError("the list expired while it was read") from error
            raise

    def _replace(self, found: Mapping[Key, T]) -> None:
        for key in [key for key in self._objects if key not in found]:
            self._remove(key)
        for key, item in found.items():
            old = self._objects.get(key)
            if old is None or old.metadata.resource_version != item.metadata.resource_version:
                self._put(key, item)

    async def _watch(self) -> None:
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(SERVER_TIMEOUT),
            **self._selector,
        }
        try:
            async with self._api.stream(self._path, query, SILENCE) as stream:
                await self._take_in(stream)
        except ApiError as error:
            if error.status == GONE:
                raise RelistError(error.message) from error
            raise

    async def _take_in(self, stream: aiohttp.StreamReader) -> None:
        """Read events until the server ends the watch, as it does every few minutes."""
        loop = asyncio.get_running_loop()
        opened = loop.time()
        try:
            # Not line by line: aiohttp's reader sets a limit on lines, and there is none on objects.
            rest = b""
            async for chunk in stream.iter_any():
                self._hear()
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._handle(line)
            if rest:
                raise aiohttp.ClientPayloadError("the connection ended in the middle of a line")
        finally:
            self._stood = loop.time() - opened >= STEADY
        if not self._stood:
            raise aiohttp.ClientPayloadError("the watch ended as soon as it was opened")

    def _handle(self, line: bytes) -> None:
        event = msgspec.json.decode(line, type=_Event)
        match event.type:
            case "ADDED" | "MODIFIED" | "DELETED":
                self._take(event)
            case "BOOKMARK":
                self._advance(msgspec.json.decode(event.object, type=_Bookmark).metadata.resource_version)
            case _:
                self._raise(msgspec.json.decode(event.object, type=_Error))

    def _take(self, event: _Event) -> None:
        """An object has appeared, changed or gone; one that cannot be read is left out, as a list does."""
        item = self._decode(event.object)
        if item is not None:
            gone = event.type == "DELETED"
            self._remove(self._key(item), item) if gone else self._put(self._key(item), item)
            self._advance(item.metadata.resource_version)
            return
        try:
            named = msgspec.json.decode(event.object, type=_Named).metadata
        except (msgspec.MsgspecError, RecursionError):
            return
        self._remove((named.namespace, named.name))
        self._advance(named.resource_version)

    def _raise(self, error: _Error) -> None:
        """A watch's own error: only 410 says that its position is lost."""
        if error.code == GONE:
            raise RelistError(error.message)
        raise ApiError(error.code, error.reason, error.message, error.details.retry_after_seconds)

    def _advance(self, version: str) -> None:
        self._version = version
        self._see(version)

    def _see(self, version: str) -> None:
        # That versions of one resource compare as numbers is promised since Kubernetes 1.35 (KEP-5504).
        # Before, they are etcd's revisions, which the server's own watch cache compares in the same way.
        if version.isdecimal():
            self.seen = max(self.seen, int(version))

    def _hear(self) -> None:
        self._heard = asyncio.get_running_loop().time()

    @staticmethod
    def _key(item: T) -> Key:
        return item.metadata.namespace, item.metadata.name

    def _put(self, key: Key, item: T) -> None:
        old = self._objects.get(key)
        if old is not None:
            self._unindex(old)
        self._objects[key] = item
        owner = self._index_of(item)
        if owner is not None:
            self._index[owner][item.metadata.name] = item
        self._notify(key, old, item)

    def _remove(self, key: Key, last: T | None = None) -> None:
        """Forget an object; listeners hear of the last state that is known of it."""
        old = self._objects.pop(key, None)
        if old is not None:
            self._unindex(old)
            self._notify(key, last or old, None)

    def _unindex(self, item: T) -> None:
        owner = self._index_of(item)
        if owner is not None and owner in self._index:
            self._index[owner].pop(item.metadata.name, None)
            if not self._index[owner]:
                del self._index[owner]

    def _notify(self, key: Key, old: T | None, new: T | None) -> None:
        for listener in self._listeners:
            try:
                listener(key, old, new)
            except Exception:
                # Of one object; the copy, and all that hear of others, have to go on.
                LISTENER_ERRORS.labels(self.resource.plural).inc()
                log.exception("%s %s/%s: a listener failed", self.resource.plural, *key)

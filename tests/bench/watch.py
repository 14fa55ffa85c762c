"""The stopwatch: one watch of the pods of a namespace, light enough not to be what is measured."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from tests.bench.http import Http, Object

PATIENCE: Final = 600.0
COLUMNS: Final = ("Name", "Ready", "Status", "Node")
NOWHERE: Final = ("<none>", "")


class PodWatch:
    """How many pods there are, have a node, and are ready.

    Args:
        http: where to read.
        namespace: whose pods.
    """

    def __init__(self, http: Http, namespace: str) -> None:
        self._http = http
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._columns: list[int] = []
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.pods: set[str] = set()
        self.scheduled: set[str] = set()
        self.ready: set[str] = set()
        self.failed: set[str] = set()
        self.gone: set[str] = set()
        """Those of the pods that were there at the beginning which are not there any more."""
        self._before: dict[str, str] = {}
        self._uids: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        version = await self._list()
        self._before = dict(self._uids)
        self._task = asyncio.create_task(self._follow(version))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def until(self, what: Callable[[], bool], why: str, patience: float = PATIENCE) -> float:
        """Wait until something is so; the time on the monotonic clock.

        Raises:
            RuntimeError: it was not in time, or the watch ended.
        """
        try:
            async with asyncio.timeout(patience):
                while not what():
                    self._changed.clear()
                    self._check()
                    await self._changed.wait()
        except TimeoutError:
            raise RuntimeError(f"waited {patience:.0f} s for {why}; {self}") from None
        return time.monotonic()

    def __str__(self) -> str:
        return f"{len(self.pods)} pods, {len(self.scheduled)} scheduled, {len(self.ready)} ready"

    def _check(self) -> None:
        assert self._task is not None
        if self._task.done():
            raise RuntimeError("the watch of pods has ended") from self._task.exception()

    async def _list(self) -> str:
        """Read all pods; the version to watch from."""
        found = await self._http.table(self._path)
        titles = [column["name"] for column in found["columnDefinitions"]]
        self._columns = [titles.index(title) for title in COLUMNS]
        rows = found["rows"] or []
        self._uids = {row["object"]["metadata"]["name"]: row["object"]["metadata"]["uid"] for row in rows}
        for name in self.pods - self._uids.keys():
            self._remove(name)
        self.gone |= {name for name, uid in self._before.items() if self._uids.get(name) != uid}
        for row in rows:
            self._put(row["cells"])
        return str(found["metadata"]["resourceVersion"])

    async def _follow(self, version: str) -> None:
        try:
            while True:
                async for event in self._http.watch(self._path, version):
                    self._handle(event)
                    self._changed.set()
                # The server closes the watch of a client that does not keep up.
                version = await self._list()
                self._changed.set()
        finally:
            self._changed.set()

    def _handle(self, event: Object) -> None:
        if event["type"] not in {"ADDED", "MODIFIED", "DELETED"}:
            raise RuntimeError(f"the watch of pods says {event}")
        for row in event["object"]["rows"]:
            if event["type"] == "DELETED":
                self._remove(row["cells"][self._columns[0]])
            else:
                self._put(row["cells"])

    def _put(self, cells: list[Any]) -> None:
        name, ready, status, node = (cells[index] for index in self._columns)
        have, _, want = ready.partition("/")
        for members, is_one in (
            (self.pods, True),
            (self.scheduled, node not in NOWHERE),
            (self.ready, have == want and status == "Running"),
            (self.failed, status == "Error"),
        ):
            (members.add if is_one else members.discard)(name)

    def _remove(self, name: str) -> None:
        for members in (self.pods, self.scheduled, self.ready, self.failed):
            members.discard(name)
        if name in self._before:
            self.gone.add(name)

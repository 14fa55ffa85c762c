"""Kubernetes Events about our objects, for `kubectl describe`.

Written by one task beside the passes, in the order in which they happened: what is only for people must not
hold up a pass while the server has no room for events. One that happens again becomes a series of the first,
as those of client-go do, so that each transition is one write.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tpu_operator.core.names import FIELD_MANAGER
from tpu_operator.engine.client import MERGE, ApiError, FencedError
from tpu_operator.engine.clock import wall_clock
from tpu_operator.engine.metrics import EVENTS_LOST
from tpu_operator.engine.resources import EVENTS

if TYPE_CHECKING:
    from datetime import datetime

    from tpu_operator.core.plan import Event
    from tpu_operator.engine.client import ApiServer
    from tpu_operator.engine.clock import Clock

log = logging.getLogger(__name__)

SERIES_ENDS: Final = 600.0
"""Seconds after which the same event is a new one; the server forgets events after an hour."""
MEMORY: Final = 4096
"""Series remembered before the one that is longest over is forgotten."""
ROOM: Final = 4096
"""Events that wait to be written before the oldest is given up: two for each of 2,000 jobs at one moment."""
PAUSES: Final = (0.5, 2.0)
"""Seconds between the tries to write one event."""
LONGEST_PAUSE: Final = 10.0
FLUSH: Final = 0.3
"""Seconds for what still waits at the end: a successor leads within two."""
MAX_NOTE: Final = 1024
"""The API's limit on an event's note, in bytes."""


@dataclass(frozen=True, slots=True)
class Regarding:
    """The object that an event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class _Happening:
    """An event that waits to be written."""

    name: str
    regarding: Regarding
    warning: bool
    reason: str
    note: str
    time: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Equal for events that are one series."""
        return self.regarding.uid, self.reason, self.note


@dataclass(frozen=True, slots=True)
class _Series:
    """An event that has been written."""

    name: str
    count: int
    until: float


class Recorder:
    """Takes events at any time, and writes them while `run` runs.

    One that cannot be written is logged and forgotten.

    Args:
        api: where to write.
        instance: name of this replica.
        clock: tells when events happened.
    """

    def __init__(self, api: ApiServer, instance: str, clock: Clock = wall_clock) -> None:
        self._api = api
        self._clock = clock
        self._instance = instance
        self._waiting: asyncio.Queue[_Happening] = asyncio.Queue(ROOM)
        self._series: dict[tuple[str, str, str], _Series] = {}
        self._writing = False
        self._last_name = 0

    @property
    def idle(self) -> bool:
        """Whether all events are written."""
        return self._waiting.empty() and not self._writing

    def record(self, regarding: Regarding, event: Event) -> None:
        """Have an event written."""
        if self._waiting.full():
            self._lose(self._waiting.get_nowait(), "too many wait")
            self._waiting.task_done()
        self._waiting.put_nowait(self._happening(regarding, event, self._clock()))

    async def run(self) -> None:
        """Write until cancelled, and then for a moment more."""
        writing = asyncio.create_task(self._write_all())
        try:
            await asyncio.wait({writing})
        finally:
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(FLUSH):
                        await self._waiting.join()
            finally:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
                self._forget_the_rest()

    async def _write_all(self) -> None:
        while True:
            happening = await self._waiting.get()
            self._writing = True
            try:
                await self._write(happening)
            except (ApiError, FencedError) as error:
                self._lose(happening, str(error))
            except Exception:
                # Of one event; those after it are still written.
                EVENTS_LOST.inc()
                log.exception("event %s about %s not written", happening.reason, happening.regarding.name)
            finally:
                self._writing = False
                self._waiting.task_done()

    async def _write(self, happening: _Happening) -> None:
        """Write an event, with some patience."""
        for pause in PAUSES:
            try:
                return await self._send(happening)
            except ApiError as error:
                if error.refused or error.gone:
                    raise
                await asyncio.sleep(min(max(pause, error.retry_after or 0.0), LONGEST_PAUSE))
        return await self._send(happening)

    async def _send(self, happening: _Happening) -> None:
        now = asyncio.get_running_loop().time()
        series = self._series.get(happening.key)
        if series is None or series.until < now or not await self._prolong(series, happening):
            await self._create(happening)
            series = _Series(happening.name, 0, now)
        # Only what the server has is remembered, the latest last.
        self._series.pop(happening.key, None)
        self._series[happening.key] = _Series(series.name, series.count + 1, now + SERIES_ENDS)
        if len(self._series) > MEMORY:
            del self._series[next(iter(self._series))]

    async def _prolong(self, series: _Series, happening: _Happening) -> bool:
        """Add to a series; false if the server does not have it any more."""
        body = {"series": {"count": series.count + 1, "lastObservedTime": happening.time}}
        path = EVENTS.path(happening.regarding.namespace, series.name)
        try:
            await self._api.write("PATCH", path, body, content_type=MERGE)
        except ApiError as error:
            if error.gone:
                return False
            raise
        return True

    async def _create(self, happening: _Happening) -> None:
        try:
            await self._api.create(EVENTS, self._manifest(happening))
        except ApiError as error:
            # An earlier try has worked, whose answer was lost.
            if not error.conflict:
                raise

    def _happening(self, regarding: Regarding, event: Event, time: datetime) -> _Happening:
        # As client-go names them; no two of ours are the same.
        self._last_name = max(self._last_name + 1, int(time.timestamp() * 1e6))
        return _Happening(
            name=f"{regarding.name[:230]}.{self._last_name:x}",
            regarding=regarding,
            warning=event.warning,
            reason=event.reason[:128],
            note=event.message.encode()[:MAX_NOTE].decode(errors="ignore"),
            time=time.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        )

    def _manifest(self, happening: _Happening) -> dict[str, Any]:
        regarding = happening.regarding
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": happening.name, "namespace": regarding.namespace},
            "eventTime": happening.time,
            "type": "Warning" if happening.warning else "Normal",
            "reason": happening.reason,
            "action": "Reconcile",
            "note": happening.note,
            "reportingController": f"tpu-operator.dev/{FIELD_MANAGER}",
            "reportingInstance": self._instance[:128],
            "regarding": {
                "apiVersion": regarding.api_version,
                "kind": regarding.kind,
                "namespace": regarding.namespace,
                "name": regarding.name,
                "uid": regarding.uid,
            },
        }

    def _lose(self, happening: _Happening, why: str) -> None:
        EVENTS_LOST.inc()
        about = happening.regarding
        log.warning(
            "event %s about %s/%s not written: %s", happening.reason, about.namespace, about.name, why
        )

    def _forget_the_rest(self) -> None:
        while not self._waiting.empty():
            self._lose(self._waiting.get_nowait(), "this replica has ended its work")
            self._waiting.task_done()

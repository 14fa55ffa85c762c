"""Keys of objects that want a pass, each at most once, and never two passes over one at a time."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from tpu_operator.engine.metrics import QUEUE_DEPTH, QUEUE_OLDEST

if TYPE_CHECKING:
    from tpu_operator.engine.informer import Key

FIRST_DELAY: Final = 0.05
LAST_DELAY: Final = 60.0


class WorkQueue:
    """First in, first out, without duplicates; a key that comes back while it is worked on is kept for later.

    The semantics are those of client-go's workqueue, on the event loop's clock.

    Args:
        name: tells this queue's metrics from those of others.
    """

    def __init__(self, name: str = "") -> None:
        self._ready: dict[Key, float] = {}
        self._line: asyncio.Queue[Key] = asyncio.Queue()
        self._working: set[Key] = set()
        self._dirty: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._appointments: dict[Key, asyncio.TimerHandle] = {}
        QUEUE_DEPTH.labels(name).set_function(lambda: len(self._ready))
        QUEUE_OLDEST.labels(name).set_function(self.oldest)

    def add(self, key: Key) -> None:
        """Want a pass over this object soon."""
        if key in self._working:
            self._dirty.add(key)
        elif key not in self._ready:
            self._ready[key] = self._now()
            self._line.put_nowait(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Want a pass at that time at the latest; an earlier appointment stands."""
        when = self._now() + max(0.0, seconds)
        earlier = self._appointments.get(key)
        if earlier is not None:
            if earlier.when() <= when:
                return
            earlier.cancel()
        self._appointments[key] = asyncio.get_running_loop().call_at(when, self._keep_appointment, key)

    def retry(self, key: Key, at_least: float = 0.0) -> None:
        """Want a pass after a failure: each one in a row doubles the wait, with jitter."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(LAST_DELAY, FIRST_DELAY * 2 ** min(failures, 16)) * random.uniform(1.0, 1.5)  # noqa: S311
        self.add_after(key, max(delay, at_least))

    def succeeded(self, key: Key) -> None:
        """Forget the failures of a key."""
        self._failures.pop(key, None)

    def oldest(self) -> float:
        """Seconds that the first key has been waiting."""
        first = next(iter(self._ready.values()), None)
        return 0.0 if first is None else self._now() - first

    async def take(self) -> Key:
        """The next key; `done` must be called with it."""
        key = await self._line.get()
        del self._ready[key]
        self._working.add(key)
        return key

    def done(self, key: Key) -> None:
        """The pass over a key has ended."""
        self._working.discard(key)
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)

    def _keep_appointment(self, key: Key) -> None:
        del self._appointments[key]
        self.add(key)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

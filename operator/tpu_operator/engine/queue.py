"""Keys of objects that want a pass, each at most once, and never two passes over one at a time.

The semantics are those of client-go's workqueue, on the event loop's clock, and one more: a namespace has
only so many keys in line or worked on, so that objects that take long leave those of others their turn.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, Final

from tpu_operator.engine.metrics import QUEUE_DEPTH, QUEUE_OLDEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpu_operator.engine.informer import Key

FIRST_DELAY: Final = 0.05
LAST_DELAY: Final = 60.0
PAUSE: Final = 1.0
"""Seconds between two rings of an alarm."""


class WorkQueue:
    """First in, first out, without duplicates; a key that comes back while it is worked on is kept for later.

    Closed at first: while nobody takes keys there is no point in keeping them.

    Args:
        name: tells this queue's metrics from those of others.
        share: keys of one namespace that are in line or worked on at a time.
    """

    def __init__(self, name: str = "", share: int = 32) -> None:
        self._share = share
        self._open = False
        self._reset()
        QUEUE_DEPTH.labels(name).set_function(lambda: len(self._ready))
        QUEUE_OLDEST.labels(name).set_function(self.oldest)

    def _reset(self) -> None:
        self._ready: dict[Key, float] = {}
        self._line: asyncio.Queue[Key] = asyncio.Queue()
        self._working: set[Key] = set()
        self._dirty: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._appointments: dict[Key, asyncio.TimerHandle] = {}
        self._admitted: Counter[str] = Counter()
        self._waiting: defaultdict[str, deque[Key]] = defaultdict(deque)

    def open(self) -> None:
        """From now on, keep keys."""
        self._open = True

    def close(self) -> None:
        """Forget all keys and keep no more; whoever takes them has ended."""
        self._open = False
        for appointment in self._appointments.values():
            appointment.cancel()
        self._reset()

    def add(self, key: Key) -> None:
        """Want a pass over this object soon."""
        if key in self._working:
            self._dirty.add(key)
        elif key not in self._ready and self._open:
            self._ready[key] = self._now()
            self._waiting[key[0]].append(key)
            self._admit(key[0])

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
        self._admitted[key[0]] -= 1
        self._admit(key[0])
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)

    def _admit(self, namespace: str) -> None:
        """Put the next keys of a namespace in line, up to its share."""
        waiting = self._waiting[namespace]
        while waiting and self._admitted[namespace] < self._share:
            self._admitted[namespace] += 1
            self._line.put_nowait(waiting.popleft())
        if not waiting:
            del self._waiting[namespace]
        if not self._admitted[namespace]:
            del self._admitted[namespace]

    def _keep_appointment(self, key: Key) -> None:
        del self._appointments[key]
        self.add(key)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


class Alarm:
    """Does something soon after it was asked for: once for all who ask meanwhile, and not without a pause.

    Args:
        ring: what to do.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._set = False
        self._not_before = float("-inf")

    def set(self) -> None:
        """Have it done."""
        if self._set:
            return
        self._set = True
        loop = asyncio.get_running_loop()
        loop.call_at(max(loop.time(), self._not_before), self._go_off)

    def _go_off(self) -> None:
        self._set = False
        self._not_before = asyncio.get_running_loop().time() + PAUSE
        self._ring()

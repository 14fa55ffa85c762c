"""An event loop on virtual time: it never waits, and the same program runs the same way every time.

Callbacks belong to the `Process` in whose context they were made. Freezing a process holds its callbacks
back, while time and everybody else go on: what SIGSTOP does.
"""

from __future__ import annotations

import asyncio
import heapq
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS_AT_ONCE = 100_000
"""Callbacks at one instant after which somebody is going round in circles."""


@dataclass(eq=False)
class Process:
    """Callbacks that stop and continue together.

    Attributes:
        name: for traces.
        frozen: whether they are stopped.
        parked: those that were due meanwhile, in order.
    """

    name: str
    frozen: bool = False
    parked: list[asyncio.Handle] = field(default_factory=list)


OWNER: ContextVar[Process | None] = ContextVar("OWNER", default=None)


class LivelockError(Exception):
    """Callbacks call each other without end, and time does not pass."""


class SimLoop(asyncio.BaseEventLoop):
    """Runs the callback that is due first, at its time; first in, first out among equals."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._order = 0
        self._due: list[tuple[float, int, asyncio.Handle, Context]] = []
        self._steps = 0
        self.failures: list[str] = []
        """Exceptions that nobody caught."""
        self.set_exception_handler(self._failed)

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context  # an empty one is false
        handle = asyncio.Handle(callback, args, self, context)
        self._push(self._now, handle, context)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context  # an empty one is false
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._push(when, handle, context)
        return handle

    def freeze(self, process: Process) -> None:
        """Stop a process."""
        process.frozen = True

    def thaw(self, process: Process) -> None:
        """Let a process go on with what it has missed."""
        process.frozen = False
        parked, process.parked = process.parked, []
        for handle in parked:
            self._push(self._now, handle, handle._context)  # type: ignore[attr-defined]

    def _push(self, when: float, handle: asyncio.Handle, context: Context) -> None:
        self._order += 1
        heapq.heappush(self._due, (when, self._order, handle, context))

    def _run_once(self) -> None:
        """One callback; called by the base class until the loop is stopped."""
        if not self._due:
            raise LivelockError("everybody waits for something that will not come")
        when, _, handle, context = heapq.heappop(self._due)
        if handle._cancelled:
            return
        self._tick(when)
        owner = context.get(OWNER)
        if owner is not None and owner.frozen:
            owner.parked.append(handle)
        else:
            handle._run()

    def _tick(self, when: float) -> None:
        if when > self._now:
            self._now = when
            self._steps = 0
        self._steps += 1
        if self._steps > STEPS_AT_ONCE:
            raise LivelockError(f"{STEPS_AT_ONCE} callbacks at {self._now:.3f} s")

    def _failed(self, _: asyncio.AbstractEventLoop, problem: dict[str, Any]) -> None:
        error = problem.get("exception")
        self.failures.append(f"{problem['message']}: {error!r}")

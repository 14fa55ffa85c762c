"""What asyncio has only in newer Pythons, or gets wrong in older ones."""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, TypeVar

T = TypeVar("T")


async def within(seconds: float, awaitable: Awaitable[T]) -> T:
    """Wait for a result, but not for longer than `seconds`.

    Before Python 3.12, `asyncio.wait_for` forgets that it was cancelled when the result comes at the same
    moment. Here that would be a launcher that ignores SIGTERM.

    Raises:
        asyncio.TimeoutError: there was none in time; what was waited for is cancelled.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            return task.result()
        raise asyncio.TimeoutError
    finally:
        task.add_done_callback(_forget)
        task.cancel()


def _forget(task: asyncio.Future[Any]) -> None:
    """Take note of an exception that nobody waits for any more."""
    if not task.cancelled():
        task.exception()

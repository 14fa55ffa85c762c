"""The processes of one host, for one attempt, in step with those of all other hosts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Callable, Optional

from tpu_runtime.gate import DONE, HOLD_SECONDS, OPEN, RETRY, STAY, Answer
from tpu_runtime.names import backoff

if TYPE_CHECKING:
    from tpu_runtime.processes import Group
    from tpu_runtime.visitor import Door


async def run_together(
    group: Group, door: Optional[Door], attempt: int, failed_at: Callable[[], float]
) -> bool:
    """Wait for the end of the processes, and stop them when the attempt is over on another host.

    Args:
        group: the processes.
        door: the gate; None where nobody starts again in place.
        attempt: the attempt.
        failed_at: when the first of them failed, in epoch seconds, once one has.

    Returns:
        Whether they are to be started again in this container, since another host has failed, and has
        failed first.
    """
    if door is None:
        await group.wait()
        return False
    over = asyncio.ensure_future(until_over(door, attempt))
    failing = asyncio.ensure_future(group.failing.wait())
    ended = asyncio.ensure_future(group.wait())
    try:
        await asyncio.wait({over, failing, ended}, return_when=asyncio.FIRST_COMPLETED)
        if group.failed is None and over.done():
            over.result()
            group.recall()
        if group.recalled or group.stop_signal is not None:
            await ended
            return group.recalled
        again = await tell_end(door, attempt, failed_at() if group.failed else None)
        await ended
        return again
    finally:
        for task in (over, failing, ended):
            task.cancel()


async def until_over(door: Door, attempt: int) -> None:
    """Return when an attempt is over on some other host; never, if the gate's host ends well first."""
    delays = backoff()
    while True:
        asked = time.monotonic()
        try:
            answer = await door.watch(attempt, HOLD_SECONDS)
        except ConnectionRefusedError:
            return  # its launcher is gone, and says so itself where it ends well
        except OSError as error:
            answer = Answer(RETRY, str(error))
        if answer.state == DONE:
            await asyncio.Event().wait()
        if answer.state not in {OPEN, RETRY}:
            return
        if time.monotonic() - asked > 1:
            delays = backoff()
        else:
            await asyncio.sleep(next(delays))


async def tell_end(door: Door, attempt: int, failed_at: Optional[float]) -> bool:
    """Say how this host's processes have ended; whether they failed only after another host's had."""
    with contextlib.suppress(OSError):
        return (await door.ended(attempt, failed_at)).state == STAY
    return False

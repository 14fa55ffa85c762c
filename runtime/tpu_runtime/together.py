"""The processes of one host, for one attempt, in step with those of all other hosts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional

from tpu_runtime.gate import DONE, HOLD_SECONDS, OPEN, OVER, RETRY, STAY, Answer, Failed
from tpu_runtime.names import backoff

if TYPE_CHECKING:
    from tpu_runtime.processes import Group
    from tpu_runtime.visitor import Door

_OWN_WORD_SECONDS = 1.5
"""In which a service says that it is broken: what has failed elsewhere may have failed for that."""
_STACKS_SECONDS = 10.0
"""In which all hosts find that they hang, and have the stacks of their processes in their logs."""


@dataclass(frozen=True)
class Outcome:
    """What other hosts have to do with the end of an attempt on this one.

    Attributes:
        again: another host has failed first. Where restarts happen in place, this one starts again.
        over: what the gate has said, where the processes were recalled for that.
    """

    again: bool = False
    over: Optional[Answer] = None


async def run_together(
    group: Group, door: Optional[Door], attempt: int, failed: Callable[[], Failed], *, leads: bool = False
) -> Outcome:
    """Wait for the end of the processes, and stop them when the attempt is over on another host.

    Args:
        group: the processes.
        door: the gate; None where a host need not know how the others fare.
        attempt: the attempt.
        failed: how the first of them failed, once one has, or was told to stop.
        leads: the others have nothing to do once the processes of this host have ended.
    """
    if door is None:
        await group.wait()
        await _let_others_speak(group)
        return Outcome()
    over = asyncio.ensure_future(until_over(door, attempt))
    decided = asyncio.ensure_future(group.decided.wait())
    ended = asyncio.ensure_future(group.wait())
    try:
        await asyncio.wait({over, decided}, return_when=asyncio.FIRST_COMPLETED)
        if over.done():
            await _heed(over.result(), group, decided)
        if group.recalled:
            await ended
            return Outcome(again=True, over=over.result())
        await decided
        await _let_others_speak(group)
        await group.hear_out()
        again = False
        if group.failed or group.hung or (leads and group.stop_signal is not None):
            again = await tell_end(door, attempt, failed())
        elif not over.done() and group.stop_signal is None:
            again = await tell_end(door, attempt, None)
        await ended
        return Outcome(again)
    finally:
        for task in (over, decided, ended):
            task.cancel()


async def _let_others_speak(group: Group) -> None:
    """Hold back the end of a host that hangs: with it, all others are told to stop."""
    if group.hung is not None:
        await asyncio.sleep(min(_STACKS_SECONDS, time.time() - group.hung))


async def _heed(answer: Answer, group: Group, decided: asyncio.Future[Any]) -> None:
    """Act on what the gate says: there is nothing left to do, or the attempt is over."""
    if answer.state == DONE:
        group.dismiss()
        return
    if group.only_serves:
        await asyncio.wait({decided}, timeout=_OWN_WORD_SECONDS)
    if group.failed is None:
        group.recall()


async def until_over(door: Door, attempt: int) -> Answer:
    """Return when an attempt is over on some other host, or done everywhere."""
    delays = backoff()
    while True:
        asked = time.monotonic()
        try:
            answer = await door.watch(attempt, HOLD_SECONDS)
        except ConnectionRefusedError:  # it says so itself where it ends well
            return Answer(OVER, "the launcher that keeps the gate is gone")
        except OSError as error:
            answer = Answer(RETRY, str(error))
        if answer.state not in {OPEN, RETRY}:
            return answer
        if time.monotonic() - asked > 1:
            delays = backoff()
        else:
            await asyncio.sleep(next(delays))


async def tell_end(door: Door, attempt: int, failed: Optional[Failed]) -> bool:
    """Say how this host's processes have ended; whether they failed only after another host's had."""
    with contextlib.suppress(OSError):
        return (await door.ended(attempt, failed)).state == STAY
    return False

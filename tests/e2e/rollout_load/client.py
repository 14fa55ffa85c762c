"""Steady traffic: streamed completions, one after the other at a fixed pace, whatever becomes of them.

Run inside the cluster's network. It writes a line of JSON for every request when that has ended, and stops
by itself: after so many requests, after so many seconds, or on SIGTERM, and then waits for its open streams.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

from tests.e2e.rollout_load.ledger import Request
from tests.engines import wire
from tests.engines.completions import Outcome, complete
from tests.gateway.picker import NOBODY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STREAM_SECONDS: Final = 120.0
"""What is not over by then has failed."""
AGAIN: Final = 10
PAUSE_SECONDS: Final = 0.1


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="client", description=__doc__)
    parser.add_argument("address", help="host and port of the gateway")
    parser.add_argument("--rate", type=float, required=True, help="requests a second")
    parser.add_argument("--tokens", type=int, required=True, help="length of each stream")
    parser.add_argument("--most", type=int, required=True, help="requests after which it stops")
    parser.add_argument("--seconds", type=float, required=True, help="time after which it stops")
    return parser.parse_args(arguments)


async def ask(address: str, tokens: int) -> Request:
    """Ask for one stream.

    The stand-in names pods that the picker picks from. llm-d's picker is both in one; where these two know
    different pods no engine has been asked, and the request is sent once more, which is counted.
    """
    sent, again = time.time(), 0
    outcome = await _once(address, tokens)
    while NOBODY in outcome.text and again < AGAIN:
        await asyncio.sleep(PAUSE_SECONDS)
        outcome = await _once(address, tokens)
        again += 1
    return Request(sent, time.time(), tokens, outcome, again)


async def _once(address: str, tokens: int) -> Outcome:
    try:
        async with asyncio.timeout(STREAM_SECONDS):
            return await complete(address, max_tokens=tokens)
    except (TimeoutError, *wire.BROKEN) as error:
        return Outcome(0, text=repr(error))


async def run(given: argparse.Namespace, stop: asyncio.Event, tell: Callable[[Request], None]) -> None:
    """Send requests until there were enough.

    Args:
        given: the command line.
        stop: set when there were enough before that.
        tell: called with every request once it has ended.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    open_streams: set[asyncio.Task[None]] = set()
    for number in range(given.most):
        await _until(began + number / given.rate, stop)
        if stop.is_set() or loop.time() - began > given.seconds:
            break
        task = loop.create_task(_told(given, tell))
        open_streams.add(task)
        task.add_done_callback(open_streams.discard)
    await asyncio.gather(*open_streams)


async def _told(given: argparse.Namespace, tell: Callable[[Request], None]) -> None:
    tell(await ask(given.address, given.tokens))


async def _until(due: float, stop: asyncio.Event) -> None:
    """Wait for a moment, or until it is to stop."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), max(0.0, due - asyncio.get_running_loop().time()))


async def main(given: argparse.Namespace) -> None:
    """Run it as a process."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    def tell(request: Request) -> None:
        sys.stdout.write(request.line() + "\n")
        sys.stdout.flush()

    await run(given, stop, tell)


if __name__ == "__main__":
    asyncio.run(main(options(sys.argv[1:])))

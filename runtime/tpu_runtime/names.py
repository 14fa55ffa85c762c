"""Looking names up without ever standing in the way of the launcher's end.

`getaddrinfo` cannot be interrupted and takes tens of seconds where the name server does not answer, so it
runs in threads that the interpreter does not wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
from typing import Any, Iterable, Iterator

from tpu_runtime.aio import within

_LOOKUP_SECONDS = 30.0
_LEAST_SECONDS = 0.25
MOST_SECONDS = 5.0
_PER_SECOND = 200
_MANY = 1000
_SHARE = 0.05
_PARALLEL = 16


async def resolve(name: str) -> str:
    """An IP address of a name.

    Raises:
        OSError: there is none, or no answer in time.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[str] = loop.create_future()

    def settle(result: Any) -> None:
        if found.done():
            return
        if isinstance(result, BaseException):
            found.set_exception(result)
        else:
            found.set_result(result)

    def look_up() -> None:
        result = _look_up(name)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
            loop.call_soon_threadsafe(settle, result)

    threading.Thread(target=look_up, name=f"resolve {name}", daemon=True).start()
    try:
        return await within(_LOOKUP_SECONDS, found)
    except asyncio.TimeoutError:
        raise OSError(f"no answer from the name server within {_LOOKUP_SECONDS:.0f} s") from None


def _look_up(name: str) -> str | OSError:
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        return error
    except UnicodeError as error:  # a label that no DNS name can have
        return OSError(f"not a DNS name: {error}")


class Resolver:
    """Resolves a list of names, each again and again until it is found.

    Args:
        names: of all hosts, each of which looks for all of them.

    Attributes:
        missing: the names that were not found so far, with the last error.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.missing = dict.fromkeys(names, "not looked up yet")
        self._askers = len(self.missing) ** 2
        self._slots = asyncio.Semaphore(_PARALLEL)

    async def run(self) -> None:
        """Return when all names resolve. Cancel it to give up."""
        await asyncio.gather(*(self._find(name) for name in list(self.missing)))

    async def _find(self, name: str) -> None:
        for delay in backoff(askers=self._askers):
            try:
                async with self._slots:
                    await resolve(name)
            except OSError as error:
                self.missing[name] = str(error)
            else:
                del self.missing[name]
                return
            await asyncio.sleep(delay)


def longest_pause(askers: int, waited: float) -> float:
    """Seconds between two questions, by which those who ask may start later than they could.

    Args:
        askers: how many ask the same, which are not to do so too often, all told.
        waited: for how many seconds; whoever has waited for long does not mind a little more.
    """
    return max(_LEAST_SECONDS, askers / _PER_SECOND, waited * _SHARE)


def backoff(first: float = 0.2, most: float = MOST_SECONDS, askers: int = _MANY) -> Iterator[float]:
    """Endless delays in seconds, growing and jittered, so that a thousand hosts do not retry in step."""
    delay, began = first, time.monotonic()
    while True:
        yield delay * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, keeps no secret
        delay = min(delay * 2, most, longest_pause(askers, time.monotonic() - began))

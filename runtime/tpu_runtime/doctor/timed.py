"""Work that may hang, under a time limit that holds whatever it does."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Callable, TypeVar, Union

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")


def within(
    tasks: Mapping[str, Callable[[], T]], seconds: float, parallel: int
) -> dict[str, Union[T, Exception]]:
    """Do tasks in threads; what has not come to an end in time is left out, and left behind.

    Args:
        tasks: by name.
        seconds: for all of them together.
        parallel: threads.

    Returns:
        For each task that has ended, its result, or the exception with which it has.
    """
    waiting = queue.SimpleQueue[str]()
    done = queue.SimpleQueue[tuple[str, Union[T, Exception]]]()
    for name in tasks:
        waiting.put(name)

    def work() -> None:
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((name, tasks[name]()))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
                done.put((name, error))

    for _ in range(min(parallel, len(tasks))):
        threading.Thread(target=work, daemon=True).start()
    return _collected(done, len(tasks), time.monotonic() + seconds)


def _collected(
    done: queue.SimpleQueue[tuple[str, Union[T, Exception]]], count: int, end: float
) -> dict[str, Union[T, Exception]]:
    results: dict[str, Union[T, Exception]] = {}
    while len(results) < count:
        try:
            name, result = done.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            break
        results[name] = result
    return results

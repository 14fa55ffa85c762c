"""What a page shows, as it is and again with every change."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, TypeVar

from tpu_operator.cli.dashboard.inferencepage import inference_page
from tpu_operator.cli.dashboard.jobpage import job_page
from tpu_operator.cli.dashboard.overview import overview
from tpu_operator.cli.follow import follow, follow_inference

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from datetime import datetime

    from tpu_operator.api import TPUInference, TPUJob
    from tpu_operator.cli.dashboard.board import Board
    from tpu_operator.cli.dashboard.markup import Markup
    from tpu_operator.cli.follow import Follower
    from tpu_operator.cli.happenings import Happening
    from tpu_operator.engine.informer import Key

S = TypeVar("S")

TICK: Final = 5.0
"""Seconds after which a page is drawn anew though nothing has changed: its pictures have an axis of time."""
TOGETHER: Final = 0.25
"""Seconds in which changes are told as one."""
EVENTS: Final = 3.0
"""Seconds for which events that were read are good."""


class Events:
    """Events of one object, read rarely.

    Args:
        board: where to read.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._found: Sequence[Happening] = ()
        self._read: datetime | None = None

    async def of(self, item: TPUJob | TPUInference) -> Sequence[Happening]:
        """The events."""
        now = self._board.clock()
        if self._read is None or (now - self._read).total_seconds() >= EVENTS:
            self._found, self._read = await self._board.events(item), now
        return self._found


async def overviews(board: Board) -> AsyncGenerator[Markup, None]:
    """The first page."""
    async with aclosing(_changes(board)) as changes:
        async for _ in changes:
            yield overview([*board.jobs.items.values()], [*board.inferences.items.values()], board.place)


async def job_pages(board: Board, key: Key) -> AsyncGenerator[Markup, None]:
    """A job; ends when it is deleted.

    Raises:
        CommandError: there is no such job, or its namespace is not shown.
        ApiError: it may not be looked at.
    """
    namespace, name = key
    server, events = board.at(namespace), Events(board)
    # A watch goes on whatever it is told; that the pods may not be looked at is said here.
    await server.pods(board.jobs.find(key))
    async with follow(server, name) as follower:
        async for seen in _states(follower):
            yield job_page(seen, await events.of(seen.job), board.clock())


async def inference_pages(board: Board, key: Key) -> AsyncGenerator[Markup, None]:
    """A TPUInference; ends when it is deleted.

    Raises:
        CommandError: there is none of that name, or its namespace is not shown.
        ApiError: it may not be looked at.
    """
    namespace, name = key
    server, events = board.at(namespace), Events(board)
    await server.pods(board.inferences.find(key))
    async with follow_inference(server, name) as follower:
        async for seen in _states(follower):
            told = await events.of(seen.inference)
            yield inference_page(seen, told, list(board.history(key).samples), board.clock())


async def _states(follower: Follower[S]) -> AsyncGenerator[S, None]:
    """An object at first, after each change, and after some time without one; until it is deleted."""
    seen = await follower.next()
    while seen is not None:
        yield seen
        try:
            seen = await follower.next(TICK)
        except TimeoutError:
            seen = follower.now()


async def _changes(board: Board) -> AsyncGenerator[None, None]:
    """Once at first, and then after each change, or after some time without one."""
    with board.listening() as changed:
        while True:
            changed.clear()
            yield
            try:
                async with asyncio.timeout(TICK):
                    await changed.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(TOGETHER)


PAGES: Final[dict[str, Callable[[Board, Key], AsyncGenerator[Markup, None]]]] = {
    "jobs": job_pages,
    "inferences": inference_pages,
}
"""By the first part of their path."""

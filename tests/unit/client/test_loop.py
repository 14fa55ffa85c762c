"""Coroutines for callers without an event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tpu_operator.client.loop import Loop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


async def _double(value: int) -> int:
    await asyncio.sleep(0)
    return 2 * value


class Items:
    """A generator that tells whether it was closed."""

    closed = False

    async def all(self) -> AsyncGenerator[int, None]:
        try:
            for value in range(3):
                await asyncio.sleep(0)
                yield value
        finally:
            self.closed = True


def test_results_and_errors(loop: Loop) -> None:
    async def fail() -> None:
        raise ValueError("no")

    assert loop.run(_double(2)) == 4
    with pytest.raises(ValueError, match="no"):
        loop.run(fail())


async def test_where_a_loop_runs_already(loop: Loop) -> None:
    assert loop.run(_double(3)) == 6


def test_items_to_their_end(loop: Loop) -> None:
    items = Items()
    assert list(loop.iterate(items.all())) == [0, 1, 2]
    assert items.closed


def test_who_stops_early_closes_the_generator(loop: Loop) -> None:
    items = Items()
    iterator = loop.iterate(items.all())
    assert next(iterator) == 0
    iterator.close()  # type: ignore[attr-defined]
    assert items.closed


def test_an_interrupt_ends_the_coroutine_too(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        cancelled = False

        def result(self) -> None:
            raise KeyboardInterrupt

        def cancel(self) -> None:
            self.cancelled = True

    future = Interrupted()

    def submit(coroutine: object, _: object) -> Interrupted:
        coroutine.close()  # type: ignore[attr-defined]
        return future

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", submit)
    with pytest.raises(KeyboardInterrupt):
        loop.run(_double(1))
    assert future.cancelled

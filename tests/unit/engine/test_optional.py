"""An informer of what the server may not serve, on virtual time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from tests.unit.engine.test_watch import Watched, pod
from tpu_operator.core.snapshot import Pod
from tpu_operator.engine.client import ApiError
from tpu_operator.engine.optional import ASK_AGAIN, PATIENCE, OptionalInformer
from tpu_operator.engine.resources import PODS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.looptime


class Maybe(Watched):
    """A server that lacks the resource until it is told to serve it."""

    served = False
    broken = False

    def __init__(self) -> None:
        super().__init__([], ends=False)

    async def get(self, path: str, **query: str) -> bytes:
        await asyncio.sleep(1.0)
        if self.broken:
            raise ApiError(500, "InternalError", "conversion webhook failed: connection refused")
        if not self.served:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        return await super().get(path, **query)


@asynccontextmanager
async def looked_for(server: Maybe) -> AsyncIterator[OptionalInformer[Pod]]:
    """An informer that has found out that there is nothing."""
    made: OptionalInformer[Pod] = OptionalInformer(server, PODS, Pod)
    task = asyncio.create_task(made.run())
    await made.synced.wait()
    yield made
    task.cancel()


async def test_what_is_not_served_is_not_silent() -> None:
    """However short the silence that is allowed: it is looked for much more seldom than a watch speaks."""
    async with looked_for(Maybe()) as informer:
        for _ in range(int(10 * ASK_AGAIN)):
            await asyncio.sleep(1.0)
            assert informer.age() <= 1.0
            assert informer.stalled() <= 1.0


async def test_it_is_found_once_it_is_served_and_may_be_silent_then() -> None:
    told: list[bool] = []
    async with looked_for(server := Maybe()) as informer:
        informer.listen_served(lambda: told.append(informer.served))
        server.served = True
        await asyncio.sleep(2 * ASK_AGAIN)
        assert told == [True]
        assert [item.metadata.name for item in informer.values()] == [pod()["metadata"]["name"]]
        before = informer.stalled()
        await asyncio.sleep(10.0)
        assert informer.stalled() == pytest.approx(before + 10.0)


async def test_nothing_is_left_of_what_is_served_no_more() -> None:
    async with looked_for(server := Maybe()) as informer:
        server.served = True
        await asyncio.sleep(2 * ASK_AGAIN)
        assert informer.values()
        server.served = False
        await informer.refresh()
        assert (informer.served, informer.values()) == (False, [])


async def test_a_new_leader_does_without_what_cannot_be_read_until_it_can() -> None:
    async with looked_for(server := Maybe()) as informer:
        server.served = True
        await asyncio.sleep(2 * ASK_AGAIN)
        server.broken = True
        await asyncio.wait_for(informer.refresh(), 2 * PATIENCE)
        assert (informer.served, informer.values()) == (False, [])
        server.broken = False
        await asyncio.sleep(60.0)
        assert informer.served
        assert informer.values()


async def test_who_is_only_slow_is_waited_for() -> None:
    async with looked_for(server := Maybe()) as informer:
        server.get = asyncio.Event().wait  # type: ignore[assignment]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(informer.refresh(), 3 * PATIENCE)

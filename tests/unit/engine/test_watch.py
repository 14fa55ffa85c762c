"""An informer on a watch that brings what the test says, on virtual time."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.streams import stream_reader
from tpu_operator.core.snapshot import Pod
from tpu_operator.engine.client import ApiServer
from tpu_operator.engine.informer import Informer
from tpu_operator.engine.metrics import WATCH_AGE
from tpu_operator.engine.resources import PODS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from aiohttp import StreamReader

pytestmark = pytest.mark.looptime

KEY = ("default", "a")
BOOKMARK = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "2"}}}
EXPIRED = {"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}


class Watched(ApiServer):
    """A server with one pod at first, whose watches bring some events and then end, or say nothing more.

    Args:
        events: what every watch brings.
        ends: whether watches end after that.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]], *, ends: bool) -> None:
        self._events = b"".join(json.dumps(event).encode() + b"\n" for event in events)
        self._ends = ends
        self.queries: list[Mapping[str, str]] = []
        self.lists: list[float] = []
        self.watches: list[float] = []

    async def get(self, path: str, **query: str) -> bytes:
        self.queries.append(query)
        self.lists.append(asyncio.get_running_loop().time())
        return json.dumps({"metadata": {"resourceVersion": "1"}, "items": [pod()]}).encode()

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        query: Mapping[str, str],
        silence: float,
    ) -> AsyncIterator[StreamReader]:
        loop = asyncio.get_running_loop()
        self.queries.append(query)
        self.watches.append(loop.time())
        reader = stream_reader()
        reader.feed_data(self._events)
        if self._ends:
            reader.feed_eof()
        yield reader


def pod(**changes: Any) -> dict[str, Any]:
    """The pod on the wire."""
    meta = {"namespace": KEY[0], "name": KEY[1], "resourceVersion": "1", "labels": {}}
    return {"metadata": meta | changes}


async def follow(server: Watched, seconds: float) -> Informer[Pod]:
    """An informer that has run for some time."""
    informer = Informer(server, PODS, Pod)
    task = asyncio.create_task(informer.run())
    await asyncio.sleep(seconds)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return informer


async def test_a_watch_that_ends_after_an_event_is_no_reason_to_spin() -> None:
    server = Watched([BOOKMARK], ends=True)
    await follow(server, seconds=600)
    assert len(server.watches) < 40
    pauses = [later - one for one, later in zip(server.watches, server.watches[1:], strict=False)]
    assert max(pauses) > 25


async def test_nor_are_lists_that_each_end_in_a_watch_that_has_expired() -> None:
    server = Watched([BOOKMARK, EXPIRED], ends=True)
    await follow(server, seconds=600)
    assert len(server.lists) < 40


async def test_an_object_that_has_become_unreadable_is_left_out() -> None:
    unreadable = {"type": "MODIFIED", "object": pod(labels="none", resourceVersion="2")}
    informer = await follow(Watched([unreadable], ends=False), seconds=5)
    assert informer.keys() == []
    assert informer.has_seen(2)


async def test_an_object_that_cannot_be_read_may_go() -> None:
    gone = {"type": "DELETED", "object": pod(labels="none", resourceVersion="3")}
    informer = await follow(Watched([gone], ends=False), seconds=5)
    assert informer.keys() == []


async def test_what_is_no_object_at_all_is_passed_over() -> None:
    informer = await follow(Watched([{"type": "ADDED", "object": 3}, BOOKMARK], ends=False), seconds=5)
    assert informer.keys() == [KEY]
    assert informer.has_seen(2)


async def test_listeners_hear_of_a_change_once() -> None:
    server = Watched(
        [
            {"type": "MODIFIED", "object": pod(resourceVersion="2")},
            {"type": "DELETED", "object": pod(resourceVersion="3")},
        ],
        ends=False,
    )
    heard: list[tuple[Any, ...]] = []

    def listen(key: tuple[str, str], old: Pod | None, new: Pod | None) -> None:
        heard.append((key, old and old.metadata.resource_version, new and new.metadata.resource_version))

    informer = Informer(server, PODS, Pod)
    informer.listen(listen)
    task = asyncio.create_task(informer.run())
    await asyncio.sleep(5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    # The last state of what is gone is the one it went in.
    assert heard == [(KEY, None, "1"), (KEY, "1", "2"), (KEY, "3", None)]


async def test_lists_and_watches_ask_for_what_is_wanted_only() -> None:
    server = Watched([BOOKMARK], ends=False)
    informer = Informer(server, PODS, Pod, selector="app", fields="metadata.name=a")
    task = asyncio.create_task(informer.run())
    await asyncio.sleep(5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    asked = [(query["labelSelector"], query["fieldSelector"]) for query in server.queries]
    assert asked == [("app", "metadata.name=a")] * 2


class Paged(Watched):
    """A server with as many objects as asked for in each page, of some size, for five pages."""

    def __init__(self, size: int) -> None:
        super().__init__([BOOKMARK], ends=False)
        self._size = size
        self.limits: list[int] = []

    async def get(self, path: str, **query: str) -> bytes:
        number, limit = len(self.limits), int(query["limit"])
        self.limits.append(limit)
        items = [pod(name=f"{number}-{index}", note="x" * self._size) for index in range(limit)]
        meta = {"resourceVersion": "1", "continue": "more" if number < 4 else ""}
        return json.dumps({"metadata": meta, "items": items}).encode()


@pytest.mark.parametrize(
    ("size", "limits"), [(10, [25, 500, 500, 500, 500]), (100_000, [25, 83, 83, 83, 83])]
)
async def test_a_page_of_a_list_has_as_many_objects_as_are_not_too_large(
    size: int, limits: list[int]
) -> None:
    server = Paged(size)
    informer = await follow(server, 1)
    assert server.limits == limits
    assert len(informer.values()) == sum(limits)


async def test_what_is_of_no_interest_is_not_kept() -> None:
    """Nor what has been of interest."""
    labelled, plain = pod(labels={"tpu-operator.dev/job": "a"}), pod(resourceVersion="3")
    server = Watched([{"type": "MODIFIED", "object": plain}], ends=False)
    server.get = lambda *_, **__: _listed(labelled)  # type: ignore[method-assign]
    informer = Informer(server, PODS, Pod, keep=lambda each: bool(each.metadata.labels))
    seen: list[bool] = []
    informer.listen(lambda _, old, new: seen.append(new is not None))
    task = asyncio.create_task(informer.run())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert seen == [True, False]
    assert informer.seen == 3


async def _listed(*items: dict[str, Any]) -> bytes:
    return json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()


async def test_of_watches_of_one_resource_each_has_its_own_age() -> None:
    server = Watched([], ends=False)
    old = Informer(server, PODS, Pod, selector="job")
    await asyncio.sleep(100)
    new = Informer(server, PODS, Pod, selector="model", fields="spec.nodeName!=")
    ages = {
        sample.labels["selector"]: sample.value
        for metric in WATCH_AGE.collect()
        for sample in metric.samples
        if sample.labels["resource"] == "pods"
    }
    assert (ages["job"], ages["model,spec.nodeName!="]) == (old.age(), new.age()) == (100, 0)

"""Events about our objects, on virtual time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.engine.server import Direct, clock
from tpu_operator.core.plan import Event
from tpu_operator.engine.client import ApiError
from tpu_operator.engine.events import FLUSH, MAX_NOTE, MEMORY, PAUSES, ROOM, SERIES_ENDS, Recorder, Regarding
from tpu_operator.engine.metrics import EVENTS_LOST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.looptime

RESTART = Event(True, "UserError", "Restarting: UserError in pod train-0-1, exit code 3")
READY = Event(False, "AllReady", "Ready: 2 hosts")
OUTAGE = ApiError(500, "InternalError", "etcdserver: no space")


def job(name: str = "train", uid: str = "u") -> Regarding:
    return Regarding("tpu-operator.dev/v1alpha1", "TPUJob", "default", name, uid)


def written(api: Direct) -> list[tuple[str, int]]:
    """Reason and count of what the server has, in the order in which it was made."""
    bodies = [stored.body for stored in api.server.all("events")]
    return [(body["reason"], body.get("series", {}).get("count", 1)) for body in bodies]


def methods(api: Direct) -> list[str]:
    return [sent.method for sent in api.sent]


@asynccontextmanager
async def running(api: Direct) -> AsyncIterator[Recorder]:
    recorder = Recorder(api, "op-0", clock)
    task = asyncio.create_task(recorder.run())
    yield recorder
    await until_idle(recorder)
    await end(task)


async def until_idle(recorder: Recorder) -> None:
    for _ in range(10_000):
        if recorder.idle:
            return
        await asyncio.sleep(0.125)
    raise AssertionError("the recorder does not get done")


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_an_event_says() -> None:
    api = Direct()
    async with running(api) as recorder:
        recorder.record(job(), RESTART)
        await asyncio.sleep(7)
    (stored,) = api.server.all("events")
    body: dict[str, Any] = stored.body
    assert body["metadata"]["name"].startswith("train.")
    assert body["eventTime"] == "2026-11-30T12:00:00.000000Z"
    assert (body["type"], body["reason"], body["note"]) == ("Warning", "UserError", RESTART.message)
    assert body["regarding"]["uid"] == "u"
    assert body["reportingInstance"] == "op-0"


async def test_notes_are_cut_to_what_the_server_takes() -> None:
    api = Direct()
    async with running(api) as recorder:
        recorder.record(job(), Event(False, "Long", "ä" * 2000))
    (stored,) = api.server.all("events")
    assert len(stored.body["note"].encode()) == MAX_NOTE


async def test_each_transition_is_one_write_and_the_same_again_is_a_series() -> None:
    api = Direct()
    async with running(api) as recorder:
        for _ in range(3):
            recorder.record(job(), RESTART)
            recorder.record(job(), READY)
            await asyncio.sleep(60)
    assert written(api) == [("UserError", 3), ("AllReady", 3)]
    assert methods(api) == ["POST", "POST", "PATCH", "PATCH", "PATCH", "PATCH"]
    assert api.server.all("events")[0].body["series"] == {
        "count": 3,
        "lastObservedTime": "2026-11-30T12:02:00.000000Z",
    }


async def test_other_words_or_another_object_are_another_event() -> None:
    api = Direct()
    async with running(api) as recorder:
        recorder.record(job(), RESTART)
        recorder.record(job(uid="v"), RESTART)
        recorder.record(job(), Event(True, RESTART.reason, "Restarting: another pod"))
    assert written(api) == [("UserError", 1)] * 3


@pytest.mark.parametrize(("pause", "counts"), [(SERIES_ENDS - 1, [2]), (SERIES_ENDS + 1, [1, 1])])
async def test_a_series_ends_when_nothing_is_added_to_it(pause: float, counts: list[int]) -> None:
    api = Direct()
    async with running(api) as recorder:
        recorder.record(job(), RESTART)
        await asyncio.sleep(pause)
        recorder.record(job(), RESTART)
    assert [count for _, count in written(api)] == counts


async def test_a_series_that_the_server_has_forgotten_starts_anew() -> None:
    api = Direct()
    async with running(api) as recorder:
        recorder.record(job(), RESTART)
        await until_idle(recorder)
        (stored,) = api.server.all("events")
        api.server.delete("events", stored.key, "etcd")
        recorder.record(job(), RESTART)
    assert written(api) == [("UserError", 1)]
    assert methods(api) == ["POST", "PATCH", "POST"]


async def test_one_that_failed_is_not_remembered_as_written() -> None:
    api = Direct(failures=[OUTAGE] * (len(PAUSES) + 1))
    async with running(api) as recorder:
        recorder.record(job(), RESTART)
        await until_idle(recorder)
        assert written(api) == []
        recorder.record(job(), RESTART)
    assert written(api) == [("UserError", 1)]


async def test_a_count_that_failed_is_not_counted() -> None:
    api = Direct()
    async with running(api) as recorder:
        recorder.record(job(), RESTART)
        await until_idle(recorder)
        api.failures = [OUTAGE] * (len(PAUSES) + 1)
        recorder.record(job(), RESTART)
        await until_idle(recorder)
        recorder.record(job(), RESTART)
    assert written(api) == [("UserError", 2)]


async def test_an_answer_that_is_lost_makes_no_second_event() -> None:
    api = Direct(failures=[OUTAGE, None, OUTAGE], lost=True)
    async with running(api) as recorder:
        recorder.record(job(), RESTART)
        recorder.record(job(), RESTART)
    assert written(api) == [("UserError", 2)]


@pytest.mark.parametrize("status", [403, 404, 422])
async def test_what_is_refused_is_not_tried_again(status: int) -> None:
    api = Direct(failures=[ApiError(status, "Refused", "no")])
    async with running(api) as recorder:
        recorder.record(job(), RESTART)
    assert methods(api) == ["POST"]


async def test_one_that_cannot_even_be_sent_stops_no_others() -> None:
    api = Direct(failures=[ValueError("odd")])
    async with running(api) as recorder:
        recorder.record(job(), RESTART)
        recorder.record(job(), READY)
    assert written(api) == [("AllReady", 1)]


async def test_a_pause_that_the_server_asks_for() -> None:
    api = Direct(failures=[ApiError(429, "TooManyRequests", "later", retry_after=5.0)])
    async with running(api) as recorder:
        recorder.record(job(), RESTART)
    assert [sent.at for sent in api.sent] == [0, 5]


async def test_nobody_waits_for_events_and_their_order_is_kept() -> None:
    api = Direct(latency=8.0)
    async with running(api) as recorder:
        began = asyncio.get_running_loop().time()
        for name in "abc":
            recorder.record(job(name, uid=name), RESTART)
        assert asyncio.get_running_loop().time() == began
        assert not recorder.idle
    assert [sent.body["regarding"]["name"] for sent in api.sent] == ["a", "b", "c"]


async def test_names_differ_even_at_one_moment() -> None:
    api = Direct()
    async with running(api) as recorder:
        for number in range(3):
            recorder.record(job(), Event(False, f"Reason{number}", ""))
    assert len(written(api)) == 3


async def test_the_oldest_is_given_up_when_too_many_wait() -> None:
    api, before = Direct(), EVENTS_LOST._value.get()
    recorder = Recorder(api, "op-0", clock)
    for number in range(ROOM + 2):
        recorder.record(job(f"job-{number}", uid=str(number)), RESTART)
    task = asyncio.create_task(recorder.run())
    await until_idle(recorder)
    await end(task)
    names = [sent.body["regarding"]["name"] for sent in api.sent]
    assert (len(names), names[0], names[-1]) == (ROOM, "job-2", f"job-{ROOM + 1}")
    assert EVENTS_LOST._value.get() - before == 2


async def test_memory_is_bounded() -> None:
    api = Direct()
    async with running(api) as recorder:
        for number in range(MEMORY):
            recorder.record(job(uid=str(number)), RESTART)
        await until_idle(recorder)
        recorder.record(job(uid="0"), RESTART)
        recorder.record(job(uid="one more"), RESTART)
        await until_idle(recorder)
        assert len(recorder._series) == MEMORY
        recorder.record(job(uid="0"), RESTART)
        recorder.record(job(uid="1"), RESTART)
    assert methods(api)[-4:] == ["PATCH", "POST", "PATCH", "POST"]


async def test_what_waits_at_the_end_is_written() -> None:
    api = Direct(latency=FLUSH / 4)
    recorder = Recorder(api, "op-0", clock)
    task = asyncio.create_task(recorder.run())
    await asyncio.sleep(1)
    recorder.record(job(), RESTART)
    recorder.record(job(), READY)
    await asyncio.sleep(api.latency / 2)
    await end(task)
    assert written(api) == [("UserError", 1), ("AllReady", 1)]
    assert methods(api) == ["POST", "POST"]


async def test_the_end_does_not_wait_for_a_server_that_does_not_answer() -> None:
    api = Direct(latency=60.0)
    recorder = Recorder(api, "op-0", clock)
    task = asyncio.create_task(recorder.run())
    for number in range(5):
        recorder.record(job(uid=str(number)), RESTART)
    await asyncio.sleep(1)
    began = asyncio.get_running_loop().time()
    await end(task)
    assert asyncio.get_running_loop().time() - began == pytest.approx(FLUSH)
    assert recorder.idle


async def test_a_replica_that_may_not_write_writes_no_events() -> None:
    api = Direct()
    async with running(api) as recorder:
        api.write_time = lambda: 0.0
        recorder.record(job(), RESTART)
    assert api.sent == []

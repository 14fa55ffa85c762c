"""The work queue, on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tpu_operator.engine.metrics import QUEUE_DEPTH, QUEUE_OLDEST
from tpu_operator.engine.queue import FIRST_DELAY, LAST_DELAY, Alarm, WorkQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from prometheus_client import Gauge

    from tpu_operator.engine.informer import Key

pytestmark = pytest.mark.looptime

JITTER = 1.25
"""Makes all waits multiples of 1/16 s, which floats and the virtual clock represent exactly."""

A, B, C = (("default", name) for name in "abc")


def now() -> float:
    return asyncio.get_running_loop().time()


def opened(share: int = 32) -> WorkQueue:
    queue = WorkQueue(share=share)
    queue.open()
    return queue


async def taken(queue: WorkQueue) -> list[Key]:
    """All keys that are ready now; none of them is done."""
    keys = []
    while True:
        try:
            async with asyncio.timeout(0.001):
                keys.append(await queue.take())
        except TimeoutError:
            return keys


async def take_at(queue: WorkQueue) -> tuple[Key, float]:
    """The next key, done at once, and how long it took to come."""
    start = now()
    key = await queue.take()
    queue.done(key)
    return key, now() - start


async def run_workers(
    queue: WorkQueue, count: int, work: Callable[[Key], Awaitable[None]], until: float
) -> None:
    """Workers as the reconciler has them, for some seconds."""

    async def worker() -> None:
        while True:
            key = await queue.take()
            try:
                await work(key)
            finally:
                queue.done(key)

    tasks = [asyncio.create_task(worker()) for _ in range(count)]
    await asyncio.sleep(until)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {asyncio.CancelledError}


class TestAdd:
    async def test_first_in_first_out(self) -> None:
        queue = opened()
        for key in (B, A, C):
            queue.add(key)
        assert await taken(queue) == [B, A, C]

    async def test_a_key_that_waits_is_not_added_again_and_keeps_its_place(self) -> None:
        queue = opened()
        for key in (A, B, A, A):
            queue.add(key)
        assert await taken(queue) == [A, B]

    async def test_a_key_that_is_worked_on_comes_back_once_it_is_done(self) -> None:
        queue = opened()
        queue.add(A)
        assert await queue.take() == A
        queue.add(A)
        queue.add(A)
        assert await taken(queue) == []
        queue.done(A)
        assert await taken(queue) == [A]

    async def test_a_key_that_comes_back_stands_in_line_behind_the_others(self) -> None:
        queue = opened()
        queue.add(A)
        await queue.take()
        queue.add(A)
        queue.add(B)
        queue.done(A)
        assert await taken(queue) == [B, A]

    async def test_a_key_that_is_done_does_not_come_back_by_itself(self) -> None:
        queue = opened()
        queue.add(A)
        queue.done(await queue.take())
        assert await taken(queue) == []

    async def test_a_taker_that_waits_is_woken(self) -> None:
        queue = opened()
        waiting = asyncio.create_task(take_at(queue))
        await asyncio.sleep(5)
        queue.add(A)
        assert await waiting == (A, 5)

    async def test_a_taker_that_gives_up_takes_nothing_with_it(self) -> None:
        queue = opened()
        waiting = [asyncio.create_task(queue.take()) for _ in range(2)]
        await asyncio.sleep(1)
        queue.add(A)
        waiting[0].cancel()
        assert await waiting[1] == A


class TestAddAfter:
    async def test_not_before_its_time(self) -> None:
        queue = opened()
        queue.add_after(A, 30)
        assert await take_at(queue) == (A, 30)

    @pytest.mark.parametrize("seconds", [0, -5])
    async def test_at_once(self, seconds: float) -> None:
        queue = opened()
        queue.add_after(A, seconds)
        assert await take_at(queue) == (A, 0)

    @pytest.mark.parametrize("appointments", [(30, 10), (10, 30), (10, 10), (30, 10, 20)])
    async def test_the_earliest_appointment_stands_and_it_is_the_only_one(
        self, appointments: tuple[float, ...]
    ) -> None:
        queue = opened()
        for seconds in appointments:
            queue.add_after(A, seconds)
        assert await take_at(queue) == (A, 10)
        await asyncio.sleep(100)
        assert await taken(queue) == []

    async def test_an_earlier_appointment_wakes_a_taker_that_waits_for_a_later_one(self) -> None:
        queue = opened()
        queue.add_after(A, 30)
        waiting = asyncio.create_task(take_at(queue))
        await asyncio.sleep(1)
        queue.add_after(B, 4)
        assert await waiting == (B, 5)

    async def test_a_new_appointment_after_the_last_one(self) -> None:
        queue = opened()
        for _ in range(3):
            queue.add_after(A, 10)
            assert await take_at(queue) == (A, 10)

    async def test_a_pass_in_between_does_not_call_it_off(self) -> None:
        queue = opened()
        queue.add_after(A, 10)
        queue.add(A)
        assert await take_at(queue) == (A, 0)
        assert await take_at(queue) == (A, 10)

    async def test_its_time_comes_while_it_is_worked_on(self) -> None:
        queue = opened()
        queue.add_after(A, 10)
        queue.add(A)
        await queue.take()
        await asyncio.sleep(20)
        assert await taken(queue) == []
        queue.done(A)
        assert await taken(queue) == [A]

    async def test_keys_come_in_the_order_of_their_times(self) -> None:
        queue = opened()
        for key, seconds in ((A, 3), (B, 1), (C, 2)):
            queue.add_after(key, seconds)
        assert [await take_at(queue) for _ in range(3)] == [(B, 1), (C, 1), (A, 1)]


class TestRetry:
    @pytest.fixture(autouse=True)
    def jitter(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
        """A fixed factor in place of a random one; returns the bounds that were asked for."""
        bounds: list[tuple[float, float]] = []

        def uniform(low: float, high: float) -> float:
            bounds.append((low, high))
            return JITTER

        monkeypatch.setattr(random, "uniform", uniform)
        return bounds

    async def test_every_failure_in_a_row_doubles_the_wait_up_to_a_limit(self) -> None:
        queue = opened()
        waits = []
        for _ in range(14):
            queue.retry(A)
            waits.append((await take_at(queue))[1] / JITTER)
        assert waits == [min(FIRST_DELAY * 2**n, LAST_DELAY) for n in range(14)]
        assert waits[-1] == LAST_DELAY

    async def test_waits_are_spread_by_half(self, jitter: list[tuple[float, float]]) -> None:
        opened().retry(A)
        assert jitter == [(1.0, 1.5)]

    async def test_success_starts_over(self) -> None:
        queue = opened()
        for _ in range(10):
            queue.retry(A)
            await take_at(queue)
        queue.succeeded(A)
        queue.retry(A)
        assert await take_at(queue) == (A, FIRST_DELAY * JITTER)

    async def test_the_server_may_ask_for_more(self) -> None:
        queue = opened()
        queue.retry(A, at_least=7)
        assert await take_at(queue) == (A, 7)

    async def test_keys_fail_each_on_their_own(self) -> None:
        queue = opened()
        for _ in range(10):
            queue.retry(A)
            await take_at(queue)
        queue.retry(B)
        assert await take_at(queue) == (B, FIRST_DELAY * JITTER)

    async def test_a_change_does_not_wait_for_the_retry(self) -> None:
        queue = opened()
        queue.retry(A, at_least=60)
        queue.add(A)
        assert await take_at(queue) == (A, 0)

    async def test_an_object_may_fail_for_days(self) -> None:
        queue = opened()
        for _ in range(2000):
            queue.retry(A)
        await take_at(queue)
        queue.retry(A)
        assert await take_at(queue) == (A, LAST_DELAY * JITTER)


class TestWorkers:
    @pytest.mark.parametrize("workers", [1, 2, 8])
    async def test_never_two_at_a_time_for_a_key_and_no_change_is_lost(self, workers: int) -> None:
        queue = opened()
        chance = random.Random(workers)
        keys = [("default", str(number)) for number in range(5)]
        busy: Counter[Key] = Counter()
        wanted: dict[Key, int] = dict.fromkeys(keys, 0)
        seen: dict[Key, int] = dict.fromkeys(keys, 0)

        async def work(key: Key) -> None:
            busy[key] += 1
            assert busy[key] == 1
            seen[key] = wanted[key]
            await asyncio.sleep(chance.randrange(8) / 8)
            busy[key] -= 1

        async def change() -> None:
            for number in range(1, 300):
                key = chance.choice(keys)
                wanted[key] = number
                if chance.random() < 0.3:
                    queue.add_after(key, chance.randrange(8) / 8)
                else:
                    queue.add(key)
                await asyncio.sleep(chance.randrange(4) / 16)

        await asyncio.gather(change(), run_workers(queue, workers, work, until=200))
        assert seen == wanted
        assert await taken(queue) == []

    async def test_workers_share_the_work(self) -> None:
        queue = opened()
        for number in range(8):
            queue.add(("default", str(number)))
        started = []

        async def work(key: Key) -> None:
            started.append((key[1], now()))
            await asyncio.sleep(10)

        await run_workers(queue, 4, work, until=100)
        assert started == [(str(number), 0 if number < 4 else 10) for number in range(8)]

    async def test_a_busy_key_does_not_starve_the_others(self) -> None:
        queue = opened()
        passes: Counter[Key] = Counter()

        async def work(key: Key) -> None:
            passes[key] += 1
            await asyncio.sleep(1)
            queue.add(key)

        for key in (A, B, C):
            queue.add(key)
        await run_workers(queue, 1, work, until=99.5)
        assert max(passes.values()) - min(passes.values()) <= 1

    async def test_an_appointment_is_kept_however_many_workers_wait(self) -> None:
        queue = opened()
        times = []

        async def work(key: Key) -> None:
            times.append((key, now()))

        queue.add_after(A, 10)
        queue.add_after(B, 20)
        await run_workers(queue, 5, work, until=100)
        assert times == [(A, 10), (B, 20)]


class TestShares:
    async def test_keys_of_other_namespaces_pass_by_those_that_wait_for_their_namespace(self) -> None:
        queue = opened(share=2)
        for number in range(4):
            queue.add(("busy", str(number)))
        queue.add(("calm", "0"))
        first = await taken(queue)
        assert first == [("busy", "0"), ("busy", "1"), ("calm", "0")]
        queue.done(("busy", "1"))
        assert await taken(queue) == [("busy", "2")]

    async def test_one_that_hangs_does_not_hold_up_another_namespace(self) -> None:
        queue = opened(share=4)
        done = []

        async def work(key: Key) -> None:
            await asyncio.sleep(3600 if key[0] == "hangs" else 0.25)
            done.append((key, now()))

        for number in range(1000):
            queue.add(("hangs", str(number)))
        queue.add(A)
        await run_workers(queue, 8, work, until=10)
        assert done == [(A, 0.25)]

    async def test_a_key_that_comes_back_waits_behind_others_of_its_namespace(self) -> None:
        queue = opened(share=1)
        queue.add(A)
        queue.add(B)
        assert await taken(queue) == [A]
        queue.add(A)
        queue.done(A)
        assert await taken(queue) == [B]
        queue.done(B)
        assert await taken(queue) == [A]


class TestClosed:
    async def test_nothing_is_kept_before_it_opens(self) -> None:
        queue = WorkQueue()
        queue.add(A)
        assert queue.oldest() == 0
        queue.open()
        assert await taken(queue) == []

    async def test_nothing_is_left_once_it_is_closed(self) -> None:
        queue = opened()
        queue.add(A)
        queue.add_after(B, 10)
        queue.retry(C)
        queue.close()
        queue.open()
        await asyncio.sleep(100)
        assert await taken(queue) == []
        assert queue.oldest() == 0

    async def test_an_appointment_that_is_put_forward_leaves_nothing_behind(self) -> None:
        queue = opened()
        loop = asyncio.get_running_loop()
        for _ in range(1000):
            queue.add_after(A, 7 * 24 * 3600)
            queue.add_after(A, 1)
            await take_at(queue)
        assert len(loop._scheduled) < 500  # type: ignore[attr-defined]


class TestMetrics:
    async def test_depth_and_age_of_each_queue(self) -> None:
        queue, _other = WorkQueue("one"), WorkQueue("other")
        queue.open()
        assert [_value(gauge, "one") for gauge in (QUEUE_DEPTH, QUEUE_OLDEST)] == [0, 0]
        queue.add(A)
        await asyncio.sleep(5)
        queue.add(B)
        assert [_value(gauge, "one") for gauge in (QUEUE_DEPTH, QUEUE_OLDEST)] == [2, 5]
        queue.done(await queue.take())
        assert [_value(gauge, "one") for gauge in (QUEUE_DEPTH, QUEUE_OLDEST)] == [1, 0]
        assert [_value(gauge, "other") for gauge in (QUEUE_DEPTH, QUEUE_OLDEST)] == [0, 0]


def _value(gauge: Gauge, queue: str) -> float:
    (metric,) = gauge.collect()
    (value,) = (sample.value for sample in metric.samples if sample.labels == {"queue": queue})
    return float(value)


class TestAlarm:
    async def test_all_who_ask_meanwhile_are_answered_at_once(self) -> None:
        rings: list[float] = []
        alarm = Alarm(lambda: rings.append(now()))
        began = now()
        for _ in range(1000):
            alarm.set()
        assert rings == []
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert rings == [began]
        for _ in range(40):
            alarm.set()
            await asyncio.sleep(0.0625)
        await asyncio.sleep(10)
        assert rings == [began, began + 1, began + 2, began + 3]

    async def test_it_rings_for_whoever_asks_while_it_rings(self) -> None:
        rings: list[float] = []

        def ring() -> None:
            rings.append(now())
            if len(rings) < 3:
                alarm.set()

        alarm = Alarm(ring)
        alarm.set()
        await asyncio.sleep(10)
        assert [seconds - rings[0] for seconds in rings] == [0, 1, 2]

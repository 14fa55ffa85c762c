"""Metrics, and what a scrape costs."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from tests.builders import NOW
from tests.sim.loop import SimLoop
from tests.unit.engine.server import Direct
from tpu_operator.controllers.chipseconds import ChipSeconds
from tpu_operator.controllers.jobmetrics import JobMetrics
from tpu_operator.core.snapshot import Custom
from tpu_operator.engine.informer import Informer
from tpu_operator.engine.metrics import LAG_INTERVAL, LISTENER_ERRORS, LoopLag, render
from tpu_operator.engine.resources import TPUJOBS

if TYPE_CHECKING:
    from tpu_operator.engine.informer import Key


def jobs(count: int) -> list[Custom]:
    wire = [
        {
            "metadata": {"name": f"job-{number}", "namespace": "default", "uid": str(number)},
            "spec": {"tpu": {"accelerator": "v5e", "topology": "4x4"}},
            "status": {
                "phase": "Succeeded",
                "completionTime": "2026-11-30T11:00:00Z",
                "restarts": {"byCause": {"Preempted": 1}},
                "slices": [{"index": 0, "state": "Succeeded"}],
            },
        }
        for number in range(count)
    ]
    return msgspec.json.decode(msgspec.json.encode(wire), type=list[Custom])


def test_the_worst_lag_since_the_last_look() -> None:
    async def main() -> list[float]:
        lag = LoopLag()
        measuring = asyncio.create_task(lag.measure())
        await asyncio.sleep(10 * LAG_INTERVAL - 0.1)
        cast("SimLoop", asyncio.get_running_loop())._now += 1.6
        await asyncio.sleep(10 * LAG_INTERVAL)
        looks = [lag.take(), lag.take()]
        measuring.cancel()
        return looks

    loop = SimLoop()
    first, second = loop.run_until_complete(main())
    loop.close()
    assert first == pytest.approx(1.5)
    assert second == 0


async def test_what_is_rendered_is_what_the_library_would_render() -> None:
    registry = CollectorRegistry()
    Gauge("one", "One.", ["label"], registry=registry).labels('"odd"\n').set(1)
    registry.register(JobMetrics(lambda: jobs(3), ChipSeconds(lambda: NOW), lambda: True, lambda: NOW))
    assert await render(registry) == generate_latest(registry)


async def test_a_scrape_of_many_jobs_does_not_hold_up_the_loop() -> None:
    many = jobs(10_000)
    registry = CollectorRegistry()
    registry.register(JobMetrics(lambda: many, ChipSeconds(lambda: NOW), lambda: True, lambda: NOW))
    began = time.process_time()
    generate_latest(registry)
    whole = time.process_time() - began
    rendering = asyncio.create_task(render(registry))
    turns = 0
    while not rendering.done():
        turns += 1
        await asyncio.sleep(0)
    assert b"job-9999" in rendering.result()
    assert turns > 10, f"the loop stood still for most of {whole:.1f} s"


@pytest.mark.looptime
async def test_a_listener_that_fails_ends_nothing() -> None:
    """Of one object, told to nobody else: the copy and the others go on."""
    api = Direct()
    informer: Informer[Custom] = Informer(api, TPUJOBS, Custom)
    heard: list[Key] = []

    def broken(*_: object) -> None:
        raise TypeError("odd")

    informer.listen(broken)
    informer.listen(lambda key, _, __: heard.append(key))
    errors = LISTENER_ERRORS.labels("tpujobs")
    before = errors._value.get()
    for job in jobs(2):
        informer._put((job.metadata.namespace, job.metadata.name), job)
    assert heard == [("default", "job-0"), ("default", "job-1")]
    assert len(informer.keys()) == 2
    assert errors._value.get() - before == 2

"""What is measured of one gang: making it, and making it again after a failure."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from tests.bench import usage
from tests.bench.gangs import NAMESPACE
from tests.bench.http import MERGE, all_of
from tests.bench.lab import PODS
from tests.bench.watch import PodWatch

if TYPE_CHECKING:
    from collections import Counter

    from tests.bench.gangs import Gang
    from tests.bench.lab import Lab
    from tests.bench.subjects import Subject

Metrics = dict[str, float]

SETTLE: Final = 2.0
"""Seconds after the last pod is ready that still belong to the work: status and events follow."""


class Meter:
    """What a subject uses from now on.

    Args:
        lab: where.
        subject: who.
    """

    def __init__(self, lab: Lab, subject: Subject) -> None:
        self._lab, self._subject = lab, subject
        self._mark = lab.audit.mark()
        self._cpu = usage.cpu_seconds(subject.pid) if subject.pid else 0.0

    def read(self) -> Metrics:
        """The figures since the beginning."""
        return {**self.process(), **calls(self.calls())}

    def calls(self) -> Counter[str]:
        """API calls since the beginning."""
        return self._lab.audit.calls(self._mark, self._subject.agent)

    def process(self) -> Metrics:
        """CPU time since the beginning, and memory now."""
        pid = self._subject.pid
        if pid is None:
            return {}
        return {"cpu": usage.cpu_seconds(pid) - self._cpu, "rss": usage.rss_mib(pid)}


def calls(counted: Counter[str]) -> Metrics:
    """Figures of API calls."""
    found = {f"calls: {call}": float(number) for call, number in sorted(counted.items())}
    found["writes"] = usage.writes(counted)
    states = sum(n for call, n in counted.items() if call.endswith("/status") and not call.startswith("get "))
    events = sum(n for call, n in counted.items() if call.endswith(" events"))
    if states:
        found["writes per status change"] = (states + events) / states
    return found


async def create(lab: Lab, subject: Subject, gang: Gang) -> Metrics:
    """A gang, from nothing until all hosts are ready."""
    async with PodWatch(lab.http, NAMESPACE) as watch, asyncio.TaskGroup() as group:
        meter = Meter(lab, subject)
        began = time.monotonic()
        group.create_task(subject.create(gang))
        pods = gang.hosts + subject.more_pods
        created = await watch.until(lambda: len(watch.pods) == pods, "the pods")
        scheduled = await watch.until(lambda: len(watch.scheduled) == pods, "the scheduler")
        ready = await watch.until(lambda: len(watch.ready) == pods, "the pods to be ready")
        await subject.running(gang)
        running = time.monotonic()
        await asyncio.sleep(SETTLE)
        times = {"created": created, "scheduled": scheduled, "ready": ready, "running": running}
        return {name: moment - began for name, moment in times.items()} | meter.read()


async def restart(lab: Lab, subject: Subject, gang: Gang) -> Metrics:
    """A gang, from the failure of one host until all are ready again."""
    async with PodWatch(lab.http, NAMESPACE) as watch, asyncio.TaskGroup() as group:
        group.create_task(subject.recover(gang, watch))
        meter = Meter(lab, subject)
        victim = sorted(watch.pods)[gang.hosts // 2]
        began = time.monotonic()
        await lab.http.call("PATCH", f"{PODS}/{victim}/status", {"status": subject.failure}, MERGE)
        gone = await watch.until(lambda: len(watch.gone) >= gang.hosts, "the old pods to go")
        pods = gang.hosts + subject.more_pods
        ready = await watch.until(lambda: len(watch.ready) == pods, "the new pods to be ready")
        await subject.running(gang)
        running = time.monotonic()
        await asyncio.sleep(SETTLE)
        times = {"gone": gone, "ready": ready, "running": running}
        return {name: moment - began for name, moment in times.items()} | meter.read()


async def clear(lab: Lab, subject: Subject, gang: Gang) -> None:
    """Leave nothing of a gang behind."""
    await subject.remove(gang)
    await remove_pods(lab)


async def remove_pods(lab: Lab) -> None:
    """Delete all pods; one by one, as the server takes its time over a whole collection."""
    async with PodWatch(lab.http, NAMESPACE) as watch:
        await all_of(
            lab.http.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0") for name in list(watch.pods)
        )
        await watch.until(lambda: not watch.pods, "the pods to go")

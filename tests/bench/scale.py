"""What is measured of many jobs: all running, idle, through a restart of the operator, and long finished."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from hack.devcluster import fake, tpu
from tests import builders
from tests.bench import usage
from tests.bench.gangs import NAMESPACE, SETTINGS, node, tpujob
from tests.bench.http import MERGE, all_of
from tests.bench.lab import PODS
from tests.bench.scenarios import Meter, calls, remove_pods
from tests.bench.subjects import JOBS
from tests.bench.watch import PodWatch
from tpu_operator.api import TPUJob
from tpu_operator.core import job
from tpu_operator.core.snapshot import JobSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.http import Object
    from tests.bench.lab import Lab
    from tests.bench.scenarios import Metrics
    from tests.bench.subjects import TpuOperator

HOSTS: Final = 4
NODES: Final = 64
"""Nodes that the jobs share, each with chips for many hosts: thousands of nodes are another benchmark."""
PODS_OF_A_NODE: Final = 110
QUIET: Final = 5.0
"""Seconds without a write after which an operator counts as idle."""


def nodes() -> Iterator[Object]:
    """Nodes for all jobs together."""
    for index in range(NODES):
        made = node(f"crowd-{index}", {})
        chips = {tpu.RESOURCE: str(PODS_OF_A_NODE * tpu.CHIPS)}
        made["status"] |= {kind: made["status"][kind] | chips for kind in ("capacity", "allocatable")}
        yield made


async def crowd(lab: Lab, subject: TpuOperator, count: int, idle_seconds: float) -> dict[str, Metrics]:
    """Running jobs: figures by scenario."""
    try:
        metrics = await _running(lab, subject, count)
        if idle_seconds:
            metrics |= await _idle(lab, subject, idle_seconds)
        return {f"jobs-{count}x{HOSTS}": metrics, "operator-restart": await _restart(lab, subject, count)}
    finally:
        await clear(lab)


async def finished(lab: Lab, subject: TpuOperator, count: int) -> dict[str, Metrics]:
    """Jobs of one host that have long finished, each with the pod that it has left for its log."""
    await subject.stop()
    try:
        await all_of(_finish(lab, f"done-{index}") for index in range(count))
        meter = Meter(lab, subject)
        await subject.start()
        await lab.poll(partial(_has_passed, subject, count), "the operator to look at all jobs")
        await _quiet(lab, subject)
        return {
            f"finished-{count}": {"ready": subject.ready_after, **meter.process(), **calls(meter.calls())}
        }
    finally:
        await clear(lab)


async def clear(lab: Lab) -> None:
    """Leave no job and no pod behind."""
    names = [row["cells"][0] for row in (await lab.http.table(JOBS))["rows"] or ()]
    await all_of(lab.http.call("DELETE", f"{JOBS}/{name}") for name in names)
    await remove_pods(lab)


async def _running(lab: Lab, subject: TpuOperator, count: int) -> Metrics:
    shape = {"accelerator": "v5e", "topology": "4x4"}
    jobs = [tpujob(f"crowd-{index}", shape, scheduling={"placement": "Shared"}) for index in range(count)]
    async with PodWatch(lab.http, NAMESPACE) as watch:
        meter = Meter(lab, subject)
        began = time.monotonic()
        await all_of(lab.http.call("POST", JOBS, each) for each in jobs)
        ready = await watch.until(lambda: len(watch.ready) == count * HOSTS, "the pods to be ready")
        await lab.poll(lambda: _all_run(lab, count), "the jobs to run")
        done = time.monotonic()
    await _quiet(lab, subject)
    found = {"ready": ready - began, "running": done - began} | meter.read()
    return found | {"writes per job": found["writes"] / count}


async def _idle(lab: Lab, subject: TpuOperator, seconds: float) -> Metrics:
    meter = Meter(lab, subject)
    await asyncio.sleep(seconds)
    return {
        "idle cpu": meter.process()["cpu"] / seconds * 100,
        "idle writes": usage.writes(meter.calls()),
    }


async def _restart(lab: Lab, subject: TpuOperator, count: int) -> Metrics:
    await subject.stop()
    mark = lab.audit.mark()
    await subject.start()
    pid = subject.pid
    assert pid is not None
    await lab.poll(partial(_has_passed, subject, count), "the operator to look at all jobs")
    await _quiet(lab, subject)
    made = lab.audit.calls(mark, subject.agent)
    changes = {call: number for call, number in made.items() if call.split()[0] not in usage.READS}
    return {
        "ready": subject.ready_after,
        "pods touched": sum(number for call, number in changes.items() if call.endswith(" pods")),
        "status writes": sum(number for call, number in changes.items() if call.endswith("/status")),
        "rss": usage.rss_mib(pid),
        **calls(made),
    }


async def _all_run(lab: Lab, count: int) -> bool:
    found = await lab.http.table(JOBS)
    phase = [column["name"] for column in found["columnDefinitions"]].index("Phase")
    return len([row for row in found["rows"] if row["cells"][phase] == "Running"]) == count


async def _has_passed(subject: TpuOperator, count: int) -> bool:
    return await subject.passes() >= count


async def _quiet(lab: Lab, subject: TpuOperator) -> None:
    """Return once it has written nothing for a while."""

    async def silent() -> bool:
        mark = lab.audit.mark()
        await asyncio.sleep(QUIET)
        return not usage.writes(lab.audit.calls(mark, subject.agent))

    await lab.poll(silent, "the writes to end")


async def _finish(lab: Lab, name: str) -> None:
    """A job that has come and gone while no operator looked."""
    wire = tpujob(name, {"accelerator": "v5e", "topology": "2x2"})
    made = TPUJob.parse(await lab.http.call("POST", JOBS, wire, answered=True))
    pod: Object = next(
        dict(child)
        for child in job.plan(JobSnapshot(made, {}, {}), datetime.now(UTC), SETTINGS).creates
        if child["kind"] == "Pod"
    )
    pod["metadata"]["annotations"] = {fake.HOLD: "true"}
    pod["spec"]["nodeName"] = "crowd-0"
    await lab.http.call("POST", PODS, pod)
    ended = builders.terminated(0)
    ended["containerStatuses"][0] |= {"image": "example", "imageID": "", "ready": False, "restartCount": 0}
    await lab.http.call("PATCH", f"{PODS}/{pod['metadata']['name']}/status", {"status": ended}, MERGE)
    await lab.http.call("PATCH", f"{JOBS}/{name}/status", {"status": _succeeded()}, MERGE)


def _succeeded() -> Object:
    """The status of a job of one host that has succeeded."""
    world = builders.World(builders.job(tpu={"accelerator": "v5e", "topology": "2x2"})).run()
    return dict(world.all_pods(**builders.terminated(0)).settle().job.status.wire())

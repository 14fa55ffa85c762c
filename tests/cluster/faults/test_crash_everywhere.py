"""The operator is killed at each of its writes, before or after the server has carried it out.

Whatever is left behind, its successor has to bring the job to where it would have been without the crash:
the same status, the same pods, none made twice, none left over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from tests.cluster.faults.lab import Process, wait
from tests.cluster.faults.scenarios import SCENARIOS, case
from tests.kube import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cluster.faults.lab import Lab
    from tests.cluster.faults.scenarios import Oracle

pytestmark = pytest.mark.timeout(900)
"""Seconds for all that run side by side, on a machine that has other things to do as well."""

When = Literal["before", "after"]
KILLS = [
    pytest.param(name, number, when, id=f"{name}-{when}-write-{number}")
    for name, scenario in SCENARIOS.items()
    for number in range(1, scenario.limit + 1)
    for when in ("before", "after")
]


@pytest.mark.parametrize(("scenario", "number", "when"), KILLS)
def test_crash_everywhere(side_by_side: Callable[..., None], scenario: str, number: int, when: When) -> None:
    side_by_side(crash)


async def crash(oracle: Oracle, scenario: str, number: int, when: When) -> None:
    story = SCENARIOS[scenario]
    undisturbed, end = await oracle.undisturbed(scenario), await oracle.end(scenario)
    async with case(oracle.lab) as job:
        first = await job.replica()
        await story.prepare(job)
        first.proxy.kill_at(number, when, first.kill)
        await story.act(job)

        async def killed_or_done() -> bool:
            return first.proxy.killed or await job.is_in(undisturbed)

        await wait(killed_or_done, f"write {number}")
        killed = first.proxy.spare()
        if story.interrupted is not None:
            await story.interrupted(job)
        if killed:
            await job.replica()
        await job.settles(end)


@pytest.mark.parametrize(("scenario", "number"), [("create", 2), ("restart", 1), ("restart", 4), ("fail", 2)])
def test_sigkill(lab: Lab, oracle: Oracle, tmp_path: Path, scenario: str, number: int) -> None:
    """The same with a real process, to show that the replicas of the other cases stand for one."""
    story, end = SCENARIOS[scenario], lab.run(oracle.end(scenario))
    with lab.within(case(lab)) as job:

        def start() -> Process:
            lab.run(job.free_lease())
            process = Process(lab, job.namespace, tmp_path)
            job.replicas.append(process)
            process.operator.start()
            return process

        first = start()
        lab.run(story.prepare(job))
        first.proxy.kill_at(number, "after", first.kill)
        lab.run(story.act(job))
        wait_for(lambda: first.proxy.killed, f"write {number}")
        start()
        lab.run(job.settles(end))

"""The operator is killed after each of its writes, whose answer it never gets.

Whatever is left behind, its successor has to bring the job to where it would have been without the crash:
the same status, the same pods, none made twice, none left over. Killed before a write it leaves what it
leaves when it is killed after the one before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.faults.lab import wait
from tests.cluster.faults.scenarios import SCENARIOS, case
from tests.cluster.faults.together import together

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.cluster.faults.lab import Process, Replica
    from tests.cluster.faults.scenarios import Case, Oracle

KILLS = [
    pytest.param(name, number, id=f"{name}-write-{number}")
    for name, scenario in SCENARIOS.items()
    for number in (0, *scenario.numbers)
]
"""Write 0 is the one before all: the operator is away while something happens to the job."""


@together
@pytest.mark.parametrize(("scenario", "number"), KILLS)
async def test_crash_everywhere(oracle: Oracle, scenario: str, number: int) -> None:
    async with case(oracle.lab) as job:
        await crash(oracle, job, job.replica, scenario, number)


@together
@pytest.mark.parametrize(("scenario", "number"), [("create", 2), ("restart", 4)])
async def test_sigkill(oracle: Oracle, scenario: str, number: int) -> None:
    """The same with real processes, to show that the replicas of the other cases stand for them."""
    async with case(oracle.lab) as job:
        await crash(oracle, job, job.process, scenario, number)


async def crash(
    oracle: Oracle, job: Case, start: Callable[[], Awaitable[Replica | Process]], scenario: str, number: int
) -> None:
    story = SCENARIOS[scenario]
    undisturbed, end = await oracle.undisturbed(scenario), await oracle.end(scenario)
    first = await start()
    await story.prepare(job)
    first.proxy.kill_after(number, first.kill)
    await story.act(job)

    async def killed_or_done() -> bool:
        return first.proxy.killed or await job.is_in(undisturbed)

    await wait(killed_or_done, f"write {number}")
    killed = first.proxy.spare()
    if story.interrupted is not None:
        await story.interrupted(job)
    if killed:
        await start()
    await job.settles(end)

"""The operator is killed after each of its writes in a rollout, whose answer it never gets.

A watch of the API server judges all the while whether the rollout's promises are kept, and in the end there
has to be what there would be without the crash: the same status, the same pods, none made twice, and the same
routing objects.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.cluster.faults.lab import wait
from tests.cluster.faults.rollouts import SIDE_BY_SIDE, Rollout, Site
from tests.cluster.faults.scenarios import difference
from tests.cluster.faults.together import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hack.devcluster import Cluster
    from tests.cluster.faults.lab import Lab
    from tests.cluster.faults.proxy import Object


@pytest.fixture(scope="module")
def site(lab: Lab, control_plane: Cluster) -> Iterator[Site]:
    """Where rollouts take place."""
    made = Site(lab, control_plane)
    lab.run(made.open())
    yield made
    lab.run(made.close())


@pytest.mark.timeout(PATIENCE)
@pytest.mark.usefixtures("alone")
def test_a_crash_after_any_write_of_a_rollout_leads_to_the_same_end(site: Site) -> None:
    site.lab.run(every_crash(site))


async def every_crash(site: Site) -> None:
    """The first crash is the one before all writes: the operator is away when the spec changes."""
    writes, end = await undisturbed(site)
    assert writes > 20
    turns = asyncio.Semaphore(SIDE_BY_SIDE)

    async def one(number: int) -> str:
        async with turns:
            return await crash(site, number, end)

    found = await asyncio.gather(*(one(number) for number in range(writes + 1)))
    problems = [f"killed after write {number}: {text}" for number, text in enumerate(found) if text]
    assert not problems, "\n".join(problems)


async def undisturbed(site: Site) -> tuple[int, Object]:
    """Writes of a rollout, and what there is in the end, when nothing goes wrong."""
    async with site.rollout() as rollout:
        replica = await rollout.lead()
        await rollout.serve()
        before = len(replica.proxy.writes)
        await rollout.change()
        end = await rollout.ends()
        return len(replica.proxy.writes) - before, end


async def crash(site: Site, number: int, end: Object) -> str:
    """A rollout with an operator that is killed after a write; what was wrong with it, empty if nothing."""
    async with site.rollout() as rollout:
        first = await rollout.lead()
        await rollout.serve()
        await asyncio.to_thread(rollout.witness.__enter__)
        try:
            first.proxy.kill_after(number, first.kill)
            await rollout.change()
            await wait(lambda: _killed_or_done(rollout), f"write {number}")
            if first.proxy.spare():
                await rollout.lead()
            found = await rollout.ends()
        except AssertionError as error:
            return f"{error}\n{rollout.story()}"
        finally:
            await asyncio.to_thread(rollout.witness.__exit__)
        wrong = [difference(end, found), *rollout.witness.complaints[:5], *rollout.duplicates()]
        text = "\n".join(line for line in wrong if line)
        return f"{text}\n{rollout.story()}" if text else ""


async def _killed_or_done(rollout: Rollout) -> bool:
    return rollout.replicas[0].proxy.killed or await rollout.is_done()

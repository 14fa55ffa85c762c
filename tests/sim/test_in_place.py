"""Restarts in place, simulated: the pods stay, and an operator that ends counts nothing twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.sim.jobs import Script
from tests.sim.test_regressions import KEY, leader, phase, running, simulate, start

if TYPE_CHECKING:
    from tests.sim.server import Object
    from tests.sim.world import World

POLICY = {"restartStrategy": "InPlace", "maxRestarts": 9, "coalesceSeconds": 10}


def status(world: World) -> Object:
    found: Object = world.server.objects["tpujobs"][KEY].body.get("status", {})
    return found


def uids(world: World) -> set[str]:
    return {pod.meta["uid"] for pod in world.server.all("pods")}


async def attempt(world: World, number: int) -> None:
    """Wait until the job runs that attempt."""
    await world.until(
        lambda: phase(world) == "Running" and status(world)["slices"][0]["attempt"] == number,
        f"attempt {number}",
    )


@pytest.mark.parametrize("kills", [0, 1, 3])
def test_pods_stay_however_often_the_operator_ends(kills: int) -> None:
    async def scenario(world: World) -> None:
        start(world, Script(["UserError", "Hang", "TPUFault"], "run"), failurePolicy=POLICY)
        await running(world)
        before = uids(world)
        for _ in range(kills):
            await asyncio.sleep(7.0)
            for replica in world.replicas:
                if replica.name == leader(world):
                    replica.kill()
        await attempt(world, 3)
        assert uids(world) == before
        assert status(world)["restarts"]["byCause"] == {"UserError": 1, "Hang": 1, "TPUFault": 1}
        assert status(world)["restarts"]["counted"] == 2
        assert status(world)["slices"][0]["restartsInPlace"] == 3

    simulate(scenario, replicas=2)


def test_a_pod_that_is_evicted_takes_all_of_them_along() -> None:
    async def scenario(world: World) -> None:
        start(world, Script(["UserError", "Evicted"], "run"), failurePolicy=POLICY)
        await running(world)
        before = uids(world)
        await attempt(world, 2)
        assert not uids(world) & before
        assert status(world)["restarts"]["byCause"] == {"UserError": 1, "Evicted": 1}
        assert status(world)["slices"][0]["restartsInPlace"] == 1

    simulate(scenario)

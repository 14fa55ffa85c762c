"""A node pool is lost and a spare slice is there, while the operator dies at any of its requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.sim.cluster import POOL, add_pool
from tests.sim.jobs import Script, owner_key
from tests.sim.user import submit
from tests.sim.world import World, play

if TYPE_CHECKING:
    from tests.sim.server import Object

KEY = ("train", "a")
SPARE = {"accelerator": "v5e", "topology": "2x4", "chipsPerHost": 4, "slices": 1, "spareSlices": 1}


def job() -> Object:
    """A slice of two hosts, and a spare."""
    policy = {"maxRestarts": 0, "restartScope": "Job", "coalesceSeconds": 10}
    spec = {"tpu": SPARE, "run": {"command": ["train"]}, "failurePolicy": policy}
    return {"metadata": {"namespace": KEY[0], "name": KEY[1]}, "spec": spec}


def slices(world: World) -> list[dict[str, Any]]:
    """Slices as the status has them."""
    found = world.server.find("tpujobs", KEY)
    return list(found.body.get("status", {}).get("slices", ())) if found else []


def states(world: World) -> list[str]:
    return [each["state"] for each in slices(world)]


def lose(world: World, pool: str) -> None:
    """All nodes of a pool are gone."""
    for node in world.server.all("nodes"):
        if node.labels.get(POOL) == pool:
            for pod in world.server.all("pods"):
                if pod.body["spec"].get("nodeName") == node.key[1] and owner_key(pod) == KEY:
                    world.disturb(pod)
            world.kubelets.down.add(node.key[1])
            world.server.delete("nodes", node.key, "cloud")


@pytest.mark.parametrize("crash", [0, *range(1, 30, 2)])
def test_the_slice_gets_the_pool_of_the_spare(crash: int) -> None:
    async def scenario(world: World) -> None:
        for index in range(2):
            add_pool(world, f"pool-{index}", "2x4")
        world.start_replicas(2)
        submit(world, job(), Script([], "run"))
        await world.until(lambda: states(world) == ["Running", "Spare"], "the spare")
        lost, spare = (each["nodePool"] for each in slices(world))
        if crash:
            name = world.oracle.holder.partition("#")[0]
            (leader,) = [replica for replica in world.replicas if replica.name == name]
            world.faults.crashes = {name: {leader._requests + crash: "after"}}
        lose(world, lost)
        await world.until(
            lambda: states(world) == ["Running", "Pending"] and slices(world)[0]["nodePool"] == spare,
            "the take-over",
        )
        add_pool(world, "pool-2", "2x4")
        await world.until(lambda: states(world) == ["Running", "Spare"], "another spare")
        await world.settle()

    play(f"spares-{crash}", scenario)

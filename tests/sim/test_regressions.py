"""Bugs that the simulation has found, each as the smallest scenario that shows it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.sim.cluster import add_pool
from tests.sim.faults import Fate, Faults
from tests.sim.jobs import Script, is_true, owner_key
from tests.sim.replica import Replica
from tests.sim.user import submit
from tests.sim.world import World, play

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.sim.server import Change, Key, Object

KEY = ("train", "a")


def simulate(scenario: Callable[[World], Awaitable[None]], replicas: int = 1) -> None:
    """Play a scenario in a world with two pools of two hosts, until all is in its place."""

    async def whole(world: World) -> None:
        for index in range(2):
            add_pool(world, f"pool-{index}", "2x4")
        world.start_replicas(replicas)
        await scenario(world)
        await world.settle()

    play(scenario.__name__, whole)


def job(**spec: Any) -> Object:
    """A job of two hosts."""
    tpu = {"accelerator": "v5e", "topology": "2x4", "chipsPerHost": 4}
    policy = {"maxRestarts": 3, "restartScope": "Job", "coalesceSeconds": 10}
    return {
        "metadata": {"namespace": KEY[0], "name": KEY[1]},
        "spec": {"tpu": tpu, "run": {"command": ["train"]}, "failurePolicy": policy} | spec,
    }


def start(world: World, script: Script | None = None, **spec: Any) -> None:
    """Create the job; by default its program runs for ever."""
    submit(world, job(**spec), script or Script([], "run"))


def phase(world: World, key: Key = KEY) -> str:
    """Phase of the job, empty if it has none."""
    found = world.server.find("tpujobs", key)
    return str(found.body.get("status", {}).get("phase", "")) if found else ""


def leader(world: World) -> str:
    """Name of the replica that holds the Lease."""
    return world.oracle.holder.partition("#")[0]


def blocked(world: World) -> bool:
    """Whether the job says that it is blocked."""
    return is_true(world.server.objects["tpujobs"][KEY].body, "Blocked")


async def running(world: World) -> None:
    await world.until(lambda: phase(world) == "Running", "the job to run")


def test_a_create_that_is_refused_twice_is_tried_again() -> None:
    async def scenario(world: World) -> None:
        world.server.quota = 0
        start(world)
        await world.until(
            lambda: is_true(world.server.objects["tpujobs"][KEY].body, "Blocked"), "the refusal"
        )
        await asyncio.sleep(60.0)
        world.server.quota = None
        await running(world)

    simulate(scenario)


def test_a_replica_ends_even_if_its_copy_is_just_being_renewed() -> None:
    async def scenario(world: World) -> None:
        replica = world.replicas[0]

        def freeze(change: Change) -> None:
            """Let it learn that it leads, renew its copy and have to end, all at once."""
            if change.plural == "leases" and not replica.label.endswith("#2"):
                replica.freeze(5.0)
                world.loop.call_later(1.0, replica.kill)

        world.server.listeners.append(freeze)
        await world.until(lambda: replica.label.endswith("#2"), "the next life", limit=20.0)

    simulate(scenario)


class SlowWrites(Faults):
    """The server takes its time for creates, and may finish one after its connection is closed."""

    seconds = 30.0

    def fate(self, who: str, method: str, now: float) -> Fate:
        slow = Fate(self.seconds, 0.0, straggles=0.4)
        return slow if method == "POST" else super().fate(who, method, now)


def test_a_replica_that_stops_lets_go_of_the_lease_after_its_last_write() -> None:
    async def scenario(world: World) -> None:
        await world.until(lambda: leader(world), "a leader")
        world.network.faults = slow = SlowWrites(world.rng("slow"))
        slow.seconds = 0.3
        start(world)
        await asyncio.sleep(0.1)
        world.network.faults = world.faults
        world.replicas[0].terminate()
        await running(world)

    simulate(scenario)


def test_a_write_of_a_frozen_leader_does_not_outlive_its_lease() -> None:
    async def scenario(world: World) -> None:
        await world.until(lambda: leader(world), "a leader")
        name = leader(world)
        world.network.faults = SlowWrites(world.rng("slow"))
        start(world)
        await asyncio.sleep(0.5)
        next(replica for replica in world.replicas if replica.name == name).freeze(40.0)
        world.network.faults = world.faults
        await world.until(lambda: leader(world) != name, "the other one to lead")
        await running(world)

    simulate(scenario, replicas=2)


@pytest.mark.parametrize("after", [0.1, 0.6, 1.1, 1.6])
def test_a_leader_is_succeeded_in_time_whenever_it_goes(after: float) -> None:
    """2 s after it was told to stop, 15 s after it vanished."""

    async def handed_over(world: World, name: str, limit: float) -> None:
        await world.until(lambda: leader(world) not in {"", name}, "the other to lead", limit)

    async def scenario(world: World) -> None:
        await world.until(lambda: leader(world), "a leader")
        for end, limit in ((Replica.terminate, 2.0), (Replica.kill, 15.0)):
            await asyncio.sleep(20.0 + after)
            name = leader(world)
            end(next(replica for replica in world.replicas if replica.name == name))
            await handed_over(world, name, limit)

    simulate(scenario, replicas=2)


def test_an_object_may_be_as_large_as_the_server_lets_it() -> None:
    async def scenario(world: World) -> None:
        large = [{"name": f"LARGE_{index}", "value": "x" * 100_000} for index in range(8)]
        start(world, run={"command": ["train"], "env": large})
        await running(world)

    simulate(scenario)


def test_a_spec_that_cannot_be_read_is_refused_however_large_it_is() -> None:
    """An older CRD may have let it through."""

    async def scenario(world: World) -> None:
        start(world, run={"command": "x" * 100_000})
        await world.until(lambda: blocked(world), "the refusal")
        world.server.delete("tpujobs", KEY, "user")

    simulate(scenario)


class LateJobs(Faults):
    """What becomes of jobs is heard half a minute late, unlike what becomes of their pods."""

    def lag(self, who: str, path: str, now: float) -> float | None:
        return 30.0 if path.endswith("/tpujobs") else super().lag(who, path, now)


def test_a_pod_that_is_taken_away_before_the_operator_sees_its_own_status_is_a_failure() -> None:
    """By the copy of the job its gang had not started: the pod was made again within the same attempt."""

    async def scenario(world: World) -> None:
        await world.until(lambda: leader(world), "a leader")
        start(world)
        await world.until(lambda: pods_of(world, KEY) == 2, "the pods")
        world.network.faults = LateJobs(world.rng("late"))
        await running(world)
        world.server.delete("pods", (KEY[0], "a-0-1"), "user", grace=0)
        await asyncio.sleep(10.0)
        world.network.faults = Faults(world.rng("calm"))
        await world.until(lambda: phase(world) != "Running", "the restart")
        await running(world)
        status = world.server.objects["tpujobs"][KEY].body["status"]
        assert status["restarts"]["byCause"] == {"PodDeleted": 1}

    simulate(scenario)


class LostAnswers(LateJobs):
    """The server's answers to writes of a status are lost as well."""

    def fate(self, who: str, method: str, now: float) -> Fate:
        fate = super().fate(who, method, now)
        return fate._replace(reset="after") if method == "PATCH" else fate


def test_a_status_whose_answer_was_lost_counts() -> None:
    """By the copy of the job its gang had not started: the pod was made again within the same attempt."""

    async def scenario(world: World) -> None:
        await world.until(lambda: leader(world), "a leader")
        start(world)
        await world.until(lambda: pods_of(world, KEY) == 2, "the pods")
        world.network.faults = LostAnswers(world.rng("lost"))
        await running(world)
        world.server.delete("pods", (KEY[0], "a-0-1"), "user", grace=0)
        await asyncio.sleep(10.0)
        world.network.faults = Faults(world.rng("calm"))
        await world.until(lambda: phase(world) != "Running", "the restart")
        await running(world)
        status = world.server.objects["tpujobs"][KEY].body["status"]
        assert status["restarts"]["byCause"] == {"PodDeleted": 1}

    simulate(scenario)


class SteadyWrites(Faults):
    """Every create takes the server the same time."""

    def fate(self, who: str, method: str, now: float) -> Fate:
        return Fate(0.1, 0.1) if method == "POST" else super().fate(who, method, now)


def pods_of(world: World, key: Key) -> int:
    """How many pods a job has."""
    return sum(owner_key(pod) == key for pod in world.server.all("pods"))


async def reaction(world: World) -> float:
    """Seconds from the job's creation to its last pod's."""
    asked = world.loop.time()
    start(world)
    await world.until(lambda: pods_of(world, KEY) == 2, "the pods")
    return world.loop.time() - asked


def test_a_large_gang_leaves_room_for_others() -> None:
    """Pods of another job come less than a second later because 256 hosts are being made."""

    async def scenario(world: World) -> None:
        await world.until(lambda: leader(world), "a leader")
        world.network.faults = SteadyWrites(world.rng("steady"))
        alone = await reaction(world)
        world.server.delete("tpujobs", KEY, "user")
        await world.until(lambda: pods_of(world, KEY) == 0, "the pods to go")
        large = job(tpu={"accelerator": "v5e", "topology": "4x4", "slices": 64})
        large["metadata"]["name"] = "large"
        submit(world, large, Script([], "run"))
        await world.until(lambda: pods_of(world, ("train", "large")) > 10, "the first pods of the large job")
        beside = await reaction(world)
        assert pods_of(world, ("train", "large")) < 256
        assert beside < alone + 1.0
        world.server.delete("tpujobs", ("train", "large"), "user")

    simulate(scenario)

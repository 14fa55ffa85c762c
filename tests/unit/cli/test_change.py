"""Which pods a restart deletes, and when there is none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import NOW, World, job, node_pool, terminated
from tests.unit.cli.scenes import failed, running
from tpu_operator.cli.change import victims
from tpu_operator.cli.command import CommandError

TWO = {"accelerator": "v5e", "topology": "4x4", "slices": 2}


def names(world: World, *slices: int) -> list[str]:
    return [pod.name for pod in victims(world.job, world.pods.values(), slices)]


def test_one_pod_of_a_gang_is_enough() -> None:
    assert names(running(tpu=TWO)) == ["train-0-0"]


def test_what_the_operator_makes_of_it_costs_nothing() -> None:
    world = World(job(failurePolicy={"maxRestarts": 0}), nodes=node_pool("pool-a")).run()
    for name in names(world):
        world.delete_pod(name)
    world.settle()
    status = world.run().job.status
    assert status.phase == "Running"
    assert (status.restarts.total, status.restarts.counted) == (1, 0)
    assert {pod.attempt for pod in world.pods.values()} == {1}


def test_slices_that_restart_alone() -> None:
    world = running(tpu=TWO, failurePolicy={"restartScope": "Slice"})
    assert names(world) == ["train-0-0", "train-1-0"]
    assert names(world, 1) == ["train-1-0"]


def test_pods_that_are_done_or_on_their_way_out_are_left_alone() -> None:
    world = World(job(), nodes=node_pool("pool-a"), keep_deleted=True).run()
    world.set_pod("train-0-0", **terminated(0))
    world.delete_pod("train-0-1")
    assert names(world) == ["train-0-2"]


def suspended() -> World:
    world = running()
    world.patch_spec(suspend=True)
    return world.settle()


def with_rule(action: str) -> World:
    return running(failurePolicy={"rules": [{"onCauses": ["PodDeleted"], "action": action}]})


@pytest.mark.parametrize(
    ("world", "message"),
    [
        (failed(), "has ended \\(Failed\\)"),
        (suspended(), "is suspended"),
        (World(job()).settle(), "has not started yet"),
        (with_rule("FailJob"), "a restart would end TPUJob train as Failed \\(FailureRule\\)"),
        (with_rule("Ignore"), "ignores pods that are deleted"),
    ],
)
def test_when_there_is_no_restart(world: World, message: str) -> None:
    with pytest.raises(CommandError, match=message) as error:
        names(world)
    assert error.value.advice


def test_a_rule_that_charges_is_allowed_while_there_is_budget() -> None:
    assert names(with_rule("Restart")) == ["train-0-0"]
    policy: dict[str, Any] = {"maxRestarts": 0, "rules": [{"onCauses": ["PodDeleted"], "action": "Restart"}]}
    with pytest.raises(CommandError, match="MaxRestartsReached"):
        names(running(failurePolicy=policy))


def test_a_slice_of_a_job_that_restarts_as_a_whole() -> None:
    with pytest.raises(CommandError, match="slices do not restart alone"):
        names(running(tpu=TWO), 1)


def test_no_pods() -> None:
    world = running()
    world.pods.clear()
    with pytest.raises(CommandError, match="there are no pods that could be restarted"):
        names(world)
    assert world.now == NOW

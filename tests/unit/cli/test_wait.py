"""`kubectl tpu wait`: reached, out of reach, or not yet."""

from __future__ import annotations

import argparse

import pytest

from tests.builders import World, job, terminated
from tests.unit.cli.scenes import failed, in_use, running
from tpu_operator.cli.command import Exit
from tpu_operator.cli.wait import goal, verdict


def succeeded() -> World:
    world = running()
    for name in list(world.pods):
        world.set_pod(name, **terminated(0))
    return world.settle()


@pytest.mark.parametrize(
    ("world", "wanted", "code"),
    [
        (running(), "running", Exit.DONE),
        (running(), "succeeded", None),
        (running(), "condition=Ready", Exit.DONE),
        (running(), "condition=Blocked=False", Exit.DONE),
        (running(), "condition=Blocked", None),
        (running(), "deleted", None),
        (in_use(), "running", None),
        (in_use(), "condition=Blocked=True", Exit.DONE),
        (failed(), "failed", Exit.DONE),
        (failed(), "finished", Exit.DONE),
        (failed(), "running", Exit.BAD),
        (failed(), "succeeded", Exit.BAD),
        (failed(), "suspended", Exit.BAD),
        (failed(), "condition=Succeeded", Exit.BAD),
        (succeeded(), "succeeded", Exit.DONE),
        (succeeded(), "failed", Exit.BAD),
    ],
)
def test_goals(world: World, wanted: str, code: Exit | None) -> None:
    assert verdict(world.job, wanted).code is code


def test_what_a_job_waits_for_is_told() -> None:
    assert verdict(in_use().job, "running").message.startswith("is Pending (CapacityInUse: 3 of 4 hosts")
    assert verdict(failed().job, "running").message == "is Failed (MaxRestartsReached)"


def test_a_status_of_an_older_spec_is_not_believed() -> None:
    world = running()
    world.patch_spec(suspend=True)
    assert verdict(world.job, "running").code is None
    assert verdict(World(job()).job, "running").code is None


def test_a_job_that_is_deleted() -> None:
    assert verdict(None, "deleted").code is Exit.DONE
    assert verdict(None, "succeeded").code is Exit.BAD


@pytest.mark.parametrize("text", ["runing", "condition=Redy", "condition=Ready=Maybe", ""])
def test_what_cannot_be_waited_for(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write running, suspended, succeeded"):
        goal(text)

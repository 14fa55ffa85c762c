"""What can be waited for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import job
from tests.inference import InferenceWorld, image
from tpu_operator.api import TPUInference
from tpu_operator.cli.command import Exit
from tpu_operator.client.goals import check_inference, check_job, judge_inference, judge_job


def model(phase: str, *, seen: int = 1, **status: Any) -> TPUInference:
    found = InferenceWorld().inference
    wire = found.wire() | {"status": {"observedGeneration": seen, "phase": phase, **status}}
    return TPUInference.parse(wire)


@pytest.mark.parametrize("goal", ["running", "finished", "condition=Ready", "condition=Ready=False"])
def test_goals_of_jobs(goal: str) -> None:
    check_job(goal)


@pytest.mark.parametrize(
    ("goal", "message"),
    [("runing", "write running"), ("condition=Redy", "TYPE one of Ready"), ("deleted", "wait=True")],
)
def test_goals_that_jobs_do_not_have(goal: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_job(goal)


@pytest.mark.parametrize("goal", ["serving", "available", "stopped", "condition=Degraded"])
def test_goals_of_models(goal: str) -> None:
    check_inference(goal)


@pytest.mark.parametrize("goal", ["running", "condition=Ready", "condition=Degraded=Maybe", "deleted"])
def test_goals_that_models_do_not_have(goal: str) -> None:
    with pytest.raises(ValueError, match="write serving, available, stopped or condition="):
        check_inference(goal)


@pytest.mark.parametrize(
    ("goal", "phase", "code"),
    [
        ("serving", "Serving", Exit.DONE),
        ("serving", "Rolling", None),
        ("available", "Rolling", Exit.DONE),
        ("available", "Unavailable", None),
        ("stopped", "Stopped", Exit.DONE),
        ("condition=Degraded", "Serving", None),
        ("condition=Degraded=False", "Serving", Exit.DONE),
    ],
)
def test_where_a_model_is(goal: str, phase: str, code: Exit | None) -> None:
    assert judge_inference(model(phase), goal).code is code


def test_a_status_of_an_older_spec_says_nothing() -> None:
    found = judge_inference(model("Serving", seen=0), "serving")
    assert found.code is None
    assert "not seen yet" in found.message


def test_what_it_waits_for_is_said() -> None:
    held = model("Rolling", reason="Capacity", message="no nodes")
    assert judge_inference(held, "serving").message == "is Rolling (Capacity: no nodes)"


def test_what_is_deleted_comes_to_nothing() -> None:
    assert judge_inference(None, "serving").code is Exit.BAD
    assert judge_job(None, "running").code is Exit.BAD
    assert judge_job(job(), "running").code is None


def test_serving_is_the_end_of_a_rollout() -> None:
    world = InferenceWorld().run()
    assert judge_inference(world.inference, "serving").code is Exit.DONE
    world.patch_spec(engine=image("v2"))
    assert judge_inference(world.inference, "serving").code is None
    world.step()
    assert judge_inference(world.inference, "serving").code is None
    assert judge_inference(world.inference, "available").code is Exit.DONE
    assert judge_inference(world.run().inference, "serving").code is Exit.DONE

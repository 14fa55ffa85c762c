"""What can be waited for: what `kubectl tpu wait` can, by the same words."""

from __future__ import annotations

import pytest

from tpu_operator.client.goals import check


@pytest.mark.parametrize("goal", ["running", "finished", "condition=Ready", "condition=Ready=False"])
def test_goals_of_jobs(goal: str) -> None:
    check("TPUJob", goal)


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ("runing", "write running"),
        ("serving", "write running"),
        ("condition=Redy", "TYPE one of Ready"),
        ("deleted", "wait=True"),
    ],
)
def test_goals_that_jobs_do_not_have(goal: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check("TPUJob", goal)


@pytest.mark.parametrize("goal", ["serving", "complete", "stopped", "condition=Degraded"])
def test_goals_of_models(goal: str) -> None:
    check("TPUInference", goal)


@pytest.mark.parametrize("goal", ["running", "available", "condition=Ready", "condition=Degraded=Maybe"])
def test_goals_that_models_do_not_have(goal: str) -> None:
    with pytest.raises(ValueError, match="write serving, complete, stopped, deleted or condition="):
        check("TPUInference", goal)

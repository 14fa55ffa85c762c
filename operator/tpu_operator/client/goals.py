"""What can be waited for, and whether an object is there."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from tpu_operator.api import InferenceConditionType
from tpu_operator.cli import wait
from tpu_operator.cli.command import Exit

if TYPE_CHECKING:
    from tpu_operator.api import TPUInference, TPUJob

INFERENCE_GOALS: Final = {
    "serving": frozenset({"Serving"}),
    "available": frozenset({"Serving", "Rolling", "Degraded"}),
    "stopped": frozenset({"Stopped"}),
}
"""Phases that each goal of a TPUInference means."""


def check_job(goal: str) -> None:
    """See that a TPUJob can be waited for so.

    Raises:
        ValueError: it cannot; says what can be.
    """
    try:
        wait.goal(goal)
    except argparse.ArgumentTypeError as error:
        raise ValueError(str(error)) from error
    if goal == wait.DELETED:
        raise ValueError("'deleted': use delete(name, wait=True)")


def judge_job(job: TPUJob | None, goal: str) -> wait.Verdict:
    """Where a TPUJob is on its way; None: it is deleted."""
    return wait.verdict(job, goal)


def check_inference(goal: str) -> None:
    """See that a TPUInference can be waited for so.

    Raises:
        ValueError: it cannot; says what can be.
    """
    kinds = [str(kind) for kind in InferenceConditionType]
    kind, _, status = goal.removeprefix(wait.CONDITION).partition("=")
    if goal in INFERENCE_GOALS:
        return
    if not goal.startswith(wait.CONDITION) or kind not in kinds or status not in {"", "True", "False"}:
        goals = ", ".join(INFERENCE_GOALS)
        raise ValueError(f"{goal!r}: write {goals} or condition=TYPE[=False], TYPE one of {', '.join(kinds)}")


def judge_inference(inference: TPUInference | None, goal: str) -> wait.Verdict:
    """Where a TPUInference is on its way; None: it is deleted. Nothing else puts a goal out of its reach."""
    if inference is None:
        return wait.Verdict(Exit.BAD, "is deleted")
    status = inference.status
    if status.observed_generation != inference.metadata.generation:
        return wait.Verdict(None, "has a spec that the operator has not seen yet")
    why = f" ({status.reason}: {status.message})" if status.reason else ""
    return wait.Verdict(Exit.DONE if _reached(inference, goal) else None, f"is {status.phase}{why}")


def _reached(inference: TPUInference, goal: str) -> bool:
    status = inference.status
    if goal in INFERENCE_GOALS:
        return str(status.phase) in INFERENCE_GOALS[goal]
    return wait.has(status.conditions, goal)

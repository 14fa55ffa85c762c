"""Where the canary of a rollout stands: which share the newest revision may have, and what ends the step.

Like the planner this remembers nothing: what it needs to know of the past is in the status, as the number of
steps that are done and since when the share of the present one is ready.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tpu_operator.api import HoldGate
from tpu_operator.core.inference.goal import Hold, Share

if TYPE_CHECKING:
    from collections.abc import Sequence


class Verdict(StrEnum):
    """What an analysis has found of the newest revision."""

    PASSED = "Pass"
    FAILED = "Fail"
    INCONCLUSIVE = "Inconclusive"


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a canary, as the spec has it.

    Attributes:
        copies: whole copies of the role set; None where `percent` says it.
        percent: of the replicas of every role.
        pause_seconds: how long to stay once the share is ready; None for until a person promotes it, or an
            analysis has passed.
        analysis: whether an analysis decides on what follows.
    """

    copies: int | None = None
    percent: int | None = None
    pause_seconds: float | None = None
    analysis: bool = False


@dataclass(frozen=True, slots=True)
class Position:
    """Where a canary stands.

    Attributes:
        done: steps that are done.
        share: what the newest revision may have; None once it may have all.
        rejected: whether the analysis has failed, so that the revision is to be given up.
        requeue_after: seconds until a pause ends; None where no time is waited for.
    """

    done: int
    share: Share | None = None
    rejected: bool = False
    requeue_after: float | None = None


def position(
    stages: Sequence[Stage], done: int, ready_for: float | None, verdict: Verdict | None = None
) -> Position:
    """Say where the canary stands now.

    Args:
        stages: the steps of the spec.
        done: how many are done, as the status has it; a promotion is one more.
        ready_for: seconds since the share of the present step is there and ready; None while it is not.
        verdict: of the analysis of the present step; None while there is none.
    """
    if done >= len(stages):
        return Position(done)
    stage = stages[done]
    if _over(stage, ready_for, verdict):
        return position(stages, done + 1, None)
    rest = stage.pause_seconds - ready_for if stage.pause_seconds and ready_for is not None else 0.0
    return Position(
        done,
        Share(stage.copies, stage.percent, _hold(stage, done, len(stages), verdict)),
        rejected=stage.analysis and verdict is Verdict.FAILED,
        requeue_after=rest if rest > 0 else None,
    )


def _over(stage: Stage, ready_for: float | None, verdict: Verdict | None) -> bool:
    """A step ends with its pause, and one with an analysis not before that has passed."""
    if ready_for is None or (stage.pause_seconds is None and not stage.analysis):
        return False
    return ready_for >= (stage.pause_seconds or 0.0) and (not stage.analysis or verdict is Verdict.PASSED)


def _hold(stage: Stage, done: int, count: int, verdict: Verdict | None) -> Hold:
    step = f"step {done + 1} of {count} of the canary"
    if stage.analysis:
        found = f"the analysis is {verdict.value.lower()}" if verdict else "the analysis has no result yet"
        return Hold(HoldGate.ANALYSIS, f"{step}: {found}")
    if stage.pause_seconds is None:
        return Hold(HoldGate.PAUSE, f"{step} has no pauseSeconds: promote it, or take the step away")
    return Hold(HoldGate.PAUSE, f"{step} lasts {stage.pause_seconds:.0f} s from when its replicas are ready")

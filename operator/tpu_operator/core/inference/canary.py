"""Where the canary of a rollout stands: which share the newest revision may have, and what ends the step.

Like the planner this remembers nothing: what it needs to know of the past is in the status, as the number of
steps that are done and since when the share of the present one is ready.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpu_operator.api import HoldGate, Verdict
from tpu_operator.core.inference.goal import Hold, Share

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Finding:
    """What the analysis of a step has found of the newest revision.

    Attributes:
        verdict: what follows from it; None while it is not over.
        text: the same in words.
    """

    verdict: Verdict | None = None
    text: str = ""


UNDECIDED: Final = Finding()


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
    stages: Sequence[Stage], done: int, ready_for: float | None, found: Finding = UNDECIDED
) -> Position:
    """Say where the canary stands now.

    Args:
        stages: the steps of the spec.
        done: how many are done, as the status has it; a promotion is one more.
        ready_for: seconds since the share of the present step is there and ready; None while it is not.
        found: by the analysis of the present step.
    """
    if done >= len(stages):
        return Position(done)
    stage = stages[done]
    if _over(stage, ready_for, found.verdict):
        return position(stages, done + 1, None)
    rest = stage.pause_seconds - ready_for if stage.pause_seconds and ready_for is not None else 0.0
    return Position(
        done,
        Share(stage.copies, stage.percent, _hold(stage, done, len(stages), found)),
        rejected=stage.analysis and found.verdict is Verdict.FAILED,
        requeue_after=rest if rest > 0 else None,
    )


def _over(stage: Stage, ready_for: float | None, verdict: Verdict | None) -> bool:
    """A step ends with its pause, and one with an analysis not before that has passed."""
    if ready_for is None or (stage.pause_seconds is None and not stage.analysis):
        return False
    return ready_for >= (stage.pause_seconds or 0.0) and (not stage.analysis or verdict is Verdict.PASSED)


def _hold(stage: Stage, done: int, count: int, found: Finding) -> Hold:
    step = f"step {done + 1} of {count} of the canary"
    if stage.analysis and found.verdict is not Verdict.PASSED:
        failed = "the analysis has failed: " if found.verdict is Verdict.FAILED else ""
        return Hold(HoldGate.ANALYSIS, f"{step}: {failed}{found.text}")
    if stage.pause_seconds is None:
        return Hold(HoldGate.PAUSE, f"{step} has no pauseSeconds: promote it, or take the step away")
    return Hold(HoldGate.PAUSE, f"{step} lasts {stage.pause_seconds:.0f} s from when its replicas are ready")

"""Steps of a canary: what share each gives, and what ends it."""

from __future__ import annotations

import pytest

from tpu_operator.api import HoldGate, Verdict
from tpu_operator.core.inference.canary import Finding, Position, Stage, position

TIMED = (Stage(percent=10, pause_seconds=60), Stage(percent=50, pause_seconds=0))
BY_HAND = (Stage(copies=1), Stage(copies=2))
ANALYSED = (Stage(percent=10, pause_seconds=60, analysis=True),)


def test_without_steps_the_newest_may_have_all() -> None:
    assert position((), 0, None) == Position(0)


def test_a_step_gives_its_share_until_that_is_ready_for_long_enough() -> None:
    for ready_for, left in [(None, None), (0.0, 60.0), (59.0, 1.0)]:
        found = position(TIMED, 0, ready_for)
        assert found.done == 0
        assert found.share
        assert found.share.percent == 10
        assert found.requeue_after == left


def test_the_pause_of_the_next_step_starts_when_its_own_share_is_ready() -> None:
    found = position(TIMED, 0, 60.0)
    assert found.done == 1
    assert found.share
    assert found.share.percent == 50
    assert position(TIMED, 1, 0.0) == Position(2)


def test_a_step_without_a_pause_waits_for_a_person() -> None:
    found = position(BY_HAND, 0, 1e9)
    assert found.done == 0
    assert found.share
    assert found.share.copies == 1
    assert found.share.hold.gate is HoldGate.PAUSE
    assert "step 1 of 2" in found.share.hold.reason
    assert "promote" in found.share.hold.reason


def test_a_promotion_is_one_more_step_that_is_done() -> None:
    promoted = position(BY_HAND, 1, None).share
    assert promoted
    assert promoted.copies == 2
    assert position(BY_HAND, 2, None).share is None


def test_steps_that_have_been_taken_away_are_done() -> None:
    assert position(BY_HAND[:1], 2, None) == Position(2)


@pytest.mark.parametrize(
    ("verdict", "ready_for", "done", "rejected"),
    [
        (None, 100.0, 0, False),
        (Verdict.PASSED, 59.0, 0, False),
        (Verdict.PASSED, 60.0, 1, False),
        (Verdict.INCONCLUSIVE, 100.0, 0, False),
        (Verdict.FAILED, 10.0, 0, True),
    ],
)
def test_an_analysis_has_to_pass_and_its_failure_gives_the_revision_up(
    verdict: Verdict | None, ready_for: float, done: int, rejected: bool
) -> None:
    found = position(ANALYSED, 0, ready_for, Finding(verdict, "errors are 7"))
    assert (found.done, found.rejected) == (done, rejected)
    if found.share is not None:
        passed = verdict is Verdict.PASSED
        assert found.share.hold.gate is (HoldGate.PAUSE if passed else HoldGate.ANALYSIS)
        assert passed != found.share.hold.reason.endswith("errors are 7")

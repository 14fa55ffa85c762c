"""A job's attempts over time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from tests.builders import NOW, stamp
from tests.unit.cli.scenes import LATER, event, failed, restarted, running, seen
from tpu_operator.api import TPUJob
from tpu_operator.cli.dashboard import moments
from tpu_operator.cli.happenings import Happening, happening


def at(minutes: float) -> datetime:
    return NOW + timedelta(minutes=minutes)


def told(reason: str, note: str, minutes: float, count: int = 1) -> Happening:
    more: dict[str, Any] = {"series": {"count": count, "lastObservedTime": stamp(at(minutes))}}
    return happening(event(reason, note, about="TPUJob/train", **more))


def job(attempt: int, phase: str = "Running", **status: Any) -> TPUJob:
    wire = running().job.wire()
    slices = [{"index": 0, "attempt": attempt}]
    wire["status"] = {"phase": phase, "slices": slices, "startTime": stamp(NOW), **status}
    return TPUJob.parse(wire)


STORY = [
    told("AllHostsReady", "Ready: all hosts are ready", 1),
    told("UserError", "Restarting: UserError in pod train-0-2", 3),
    told("AllHostsReady", "Ready: all hosts are ready", 4),
]


def test_a_job_that_runs() -> None:
    one = seen(running()).job
    past = moments.marks(one, [])
    assert [(mark.kind, mark.reason) for mark in past] == [("Ready", "AllHostsReady")]
    assert [span.state for span in moments.spans(one, past, LATER)] == ["Running"]
    (attempt,) = moments.attempts(one, past)
    assert (attempt.number, attempt.end, attempt.outcome) == (0, None, "")


def test_each_restart_is_another_attempt() -> None:
    one = job(1)
    past = moments.marks(one, STORY)
    found = [(span.attempt, span.state, span.start, span.end) for span in moments.spans(one, past, at(5))]
    assert found == [
        (0, "Starting", NOW, at(1)),
        (0, "Running", at(1), at(3)),
        (1, "Restarting", at(3), at(4)),
        (1, "Running", at(4), at(5)),
    ]
    assert moments.attempts(one, past) == [
        moments.Attempt(1, at(3), at(4), None, ""),
        moments.Attempt(0, NOW, at(1), at(3), "UserError: UserError in pod train-0-2"),
    ]


def test_what_events_have_forgotten_is_counted() -> None:
    """The job has restarted five times, and of the last two restarts something is known."""
    past = moments.marks(job(5), [told("UserError", "Restarting: UserError in pod train-0-2", 3, count=2)])
    assert [one.number for one in moments.attempts(job(5), past)] == [5, 3]
    assert moments.attempts(job(5), past)[-1].start is None


def test_a_condition_tells_of_the_same_as_its_event_only_once() -> None:
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "AllHostsReady",
        "lastTransitionTime": stamp(at(4)),
    }
    assert len(moments.marks(job(1, conditions=[ready]), STORY)) == 3
    assert len(moments.marks(job(1, conditions=[ready]), STORY[:2])) == 3
    assert len(moments.marks(job(1, conditions=[ready | {"status": "False"}]), STORY[:2])) == 2


def test_events_of_others_and_other_events_are_none_of_it() -> None:
    other = happening(event("AllHostsReady", "Ready: x", about="TPUJob/other"))
    spare = happening(event("SpareUsed", "slice 0 takes the place of spare slice 2", about="TPUJob/train"))
    assert moments.marks(job(0), [other, spare]) == []


def test_the_end_ends_it() -> None:
    one = seen(failed()).job
    past = moments.marks(one, [])
    assert moments.spans(one, past, LATER)[-1].end <= LATER
    (attempt,) = moments.attempts(one, past)
    assert attempt.outcome.startswith("MaxRestartsReached: ")
    assert attempt.end is not None


def test_the_present_state_is_that_of_the_status() -> None:
    one = seen(restarted()).job
    last = moments.spans(one, moments.marks(one, []), LATER)[-1]
    assert (last.attempt, last.state, last.end) == (1, "Running", LATER)
    pending = job(0, "Pending", startTime=None)
    assert [span.state for span in moments.spans(pending, [], LATER)] == ["Pending"]

"""A job's attempts over time, from what events and conditions tell: a pure function.

Events are forgotten after an hour, and the same one again is told as a number. Conditions remember when they
last became true. So the latest attempts are known, and of earlier ones how many there were.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from tpu_operator.api import TPUJob
    from tpu_operator.cli.happenings import Happening

STATES: Final = {
    "Ready": "Running",
    "Restarting": "Restarting",
    "Suspended": "Suspended",
    "Succeeded": "Succeeded",
    "Failed": "Failed",
}
"""How a job stands once a condition has become true."""
ENDS: Final = frozenset({"Succeeded", "Failed"})
SAME: Final = timedelta(seconds=5)
"""How far apart an event and a condition may be that tell of the same."""


class Mark(NamedTuple):
    """A condition has become true.

    Attributes:
        time: when.
        kind: type of the condition.
        reason: why, in one word.
        message: why, in words.
        times: how often, the last time then.
    """

    time: datetime
    kind: str
    reason: str
    message: str
    times: int = 1


class Span(NamedTuple):
    """How a job stood for a while.

    Attributes:
        state: as in the API.
        attempt: its number.
        start: since when.
        end: until when.
        reason: what began it, in words; empty for the first.
    """

    state: str
    attempt: int
    start: datetime
    end: datetime
    reason: str


class Attempt(NamedTuple):
    """An attempt.

    Attributes:
        number: restarts before it.
        start: since when, None where that is not known any more.
        ready: when all hosts were ready, None if they were not, or it is not known.
        end: when it was over, None if it is not.
        outcome: how it ended, in words; empty while it runs.
    """

    number: int
    start: datetime | None
    ready: datetime | None
    end: datetime | None
    outcome: str


def marks(job: TPUJob, events: Iterable[Happening]) -> list[Mark]:
    """What is known of a job's past, in order."""
    about = f"tpujob/{job.metadata.name}"
    told = [mark for one in events if one.about == about and (mark := _told(one))]
    known = [
        Mark(one.last_transition_time, one.type, one.reason, one.message)
        for one in job.status.conditions
        if one.type in STATES and one.status == "True" and one.last_transition_time
    ]
    new = [mark for mark in known if not any(_same(mark, other) for other in told)]
    return sorted([*told, *new], key=lambda mark: mark.time)


def _told(event: Happening) -> Mark | None:
    """The mark of an event that says "Restarting: why"."""
    kind, colon, message = event.message.partition(": ")
    if not colon or kind not in STATES or event.time is None:
        return None
    return Mark(event.time, kind, event.reason, message, max(1, event.count))


def _same(mark: Mark, other: Mark) -> bool:
    return mark.kind == other.kind and mark.reason == other.reason and abs(mark.time - other.time) <= SAME


def last_attempt(job: TPUJob) -> int:
    """Number of the present attempt; where slices restart alone, of the restarts of all of them."""
    if job.spec.slices_alone:
        return job.status.restarts.total
    return max((one.attempt for one in job.status.slices), default=0)


def spans(job: TPUJob, past: Sequence[Mark], now: datetime) -> list[Span]:
    """How a job stood, without gaps, from its start until now or its end."""
    start = job.status.start_time or job.metadata.creation_timestamp
    restarts = sum(mark.times for mark in past if mark.kind == "Restarting")
    attempt = max(0, last_attempt(job) - restarts)
    first = min([*(mark.time for mark in past), *([start] if start else [])], default=now)
    found: list[Span] = []
    state, since, reason = "Starting" if job.status.start_time else "Pending", first, ""
    for mark in past:
        if mark.time > since:
            found.append(Span(state, attempt, since, mark.time, reason))
        attempt += mark.times if mark.kind == "Restarting" else 0
        state, since, reason = STATES[mark.kind], mark.time, f"{mark.reason}: {mark.message}"
        if mark.kind in ENDS:
            return found
    return [*found, Span(str(job.status.phase), attempt, since, max(now, since), reason)]


def attempts(job: TPUJob, past: Sequence[Mark]) -> list[Attempt]:
    """The attempts that are known of, the latest first."""
    known = max(0, last_attempt(job) - sum(mark.times for mark in past if mark.kind == "Restarting"))
    start = (job.status.start_time or job.metadata.creation_timestamp) if known == 0 else None
    found = [Attempt(known, start, None, None, "")]
    for mark in past:
        one = found[-1]
        if mark.kind == "Ready":
            found[-1] = one._replace(ready=mark.time)
        elif mark.kind in {"Restarting", *ENDS}:
            found[-1] = one._replace(end=mark.time, outcome=f"{mark.reason}: {mark.message}")
        if mark.kind == "Restarting":
            found.append(Attempt(one.number + mark.times, mark.time, None, None, ""))
    return found[::-1]

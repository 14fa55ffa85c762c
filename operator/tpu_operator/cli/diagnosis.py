"""Why a job does not run, or why it failed: one answer, as a pure function of the job, its pods and events.

The first question that has something to say decides, as in `core.job`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tpu_operator.api import ConditionType
from tpu_operator.cli import lastwords
from tpu_operator.cli.advice import BLOCKED, CAUSES, ENDS, Advice
from tpu_operator.cli.hosts import brief, host, place
from tpu_operator.cli.text import duration, flat, moment
from tpu_operator.cli.tree import condition, maintenance
from tpu_operator.core import restart
from tpu_operator.core.pending import counted, some

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from tpu_operator.api import Failure, TPUJob
    from tpu_operator.cli.follow import Seen
    from tpu_operator.cli.happenings import Happening
    from tpu_operator.core.snapshot import Pod

SHOWN: Final = 5
"""Events and kinds of hosts that an answer names."""
LOG_LINES: Final = 20


class Answer(msgspec.Struct, frozen=True, rename="camel"):
    """What is the matter with a job.

    Attributes:
        well: whether nothing is.
        verdict: the answer, in one sentence.
        cause: the root cause, in words; empty where the verdict is all.
        meaning: what that means in general.
        since: since when.
        evidence: what else is known, the most telling first.
        remedies: what to do, the likeliest first.
        log: the last lines of the host that failed first.
    """

    well: bool
    verdict: str
    cause: str = ""
    meaning: str = ""
    since: datetime | None = None
    evidence: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    log: tuple[str, ...] = ()


def diagnose(seen: Seen, events: Sequence[Happening], now: datetime) -> Answer:
    """What is the matter with a job."""
    return (
        _elsewhere(seen.job)
        or _unseen(seen.job)
        or _failed(seen, now)
        or _succeeded(seen.job)
        or _suspended(seen.job)
        or _blocked(seen, events, now)
        or _restarting(seen, now)
        or _starting(seen, events, now)
        or _running(seen.job)
    )


def _elsewhere(job: TPUJob) -> Answer | None:
    manager = job.spec.managed_by
    if manager in {None, "tpu-operator.dev/tpu-operator"}:
        return None
    return Answer(True, f"another controller runs the job: spec.managedBy is {manager}")


def _unseen(job: TPUJob) -> Answer | None:
    status, generation = job.status, job.metadata.generation
    remedies = ("`kubectl tpu doctor` tells whether the operator runs, and in which namespaces",)
    if status.observed_generation is None:
        text = "no operator has looked at the job yet"
        return Answer(False, text, since=job.metadata.creation_timestamp, remedies=remedies)
    if status.observed_generation < generation and not status.completion_time:
        return Answer(False, "the operator has not seen the last change of the spec yet", remedies=remedies)
    return None


def _failed(seen: Seen, now: datetime) -> Answer | None:
    failed = condition(seen.job, ConditionType.FAILED)
    if failed is None:
        return None
    failure = seen.job.status.last_failure
    end = ENDS.get(failed.reason, Advice("", ()))
    if failure is None or failed.reason == "DeadlineExceeded":
        return Answer(
            well=False,
            verdict=f"the job has failed: {failed.reason}: {failed.message}",
            meaning=end.meaning,
            since=failed.last_transition_time,
            remedies=end.remedies,
        )
    known = CAUSES[failure.cause]
    return Answer(
        well=False,
        verdict=f"the job has failed: {failed.reason}",
        cause=root(failure),
        meaning=f"{known.meaning} {end.meaning}".strip(),
        since=failed.last_transition_time,
        evidence=(*_history(seen.job), *_echoes(seen, failure, now)),
        remedies=advised(seen.job.metadata.name, [known, end]),
        log=lastwords.of(seen.pods, failure)[-LOG_LINES:],
    )


def _succeeded(job: TPUJob) -> Answer | None:
    done = condition(job, ConditionType.SUCCEEDED)
    if done is None:
        return None
    return Answer(True, "the job has succeeded", since=done.last_transition_time, evidence=_history(job))


def _suspended(job: TPUJob) -> Answer | None:
    if not job.spec.suspend:
        return None
    found = condition(job, ConditionType.SUSPENDED)
    since = found.last_transition_time if found else None
    return Answer(
        False,
        "the job is suspended: spec.suspend is true",
        since=since,
        remedies=(f"`kubectl tpu resume {job.metadata.name}` lets it run",),
    )


def _blocked(seen: Seen, events: Sequence[Happening], now: datetime) -> Answer | None:
    job = seen.job
    waits, blocked = job.status.pending, condition(job, ConditionType.BLOCKED)
    if waits is None and blocked is None:
        return None
    reason = str(waits.reason) if waits else blocked.reason if blocked else ""
    message = waits.message if waits else blocked.message if blocked else ""
    since = (waits.since if waits else None) or (blocked.last_transition_time if blocked else None)
    does = "runs, but something is in its way" if condition(job, ConditionType.READY) else "does not run"
    known = next((advice for key, advice in BLOCKED.items() if key == reason), Advice("", ()))
    failure = job.status.last_failure
    last = (f"before that: {root(failure)}",) if failure else ()
    return Answer(
        well=False,
        verdict=f"the job {does}: {reason}",
        cause=message,
        meaning=known.meaning,
        since=since,
        evidence=(*laggards(seen.pods, now), *warnings(events), *last),
        remedies=advised(job.metadata.name, [known]),
    )


def _restarting(seen: Seen, now: datetime) -> Answer | None:
    job = seen.job
    found = condition(job, ConditionType.RESTARTING)
    if found is None:
        return None
    failure = job.status.last_failure
    mine = failure if failure is not None and failure.cause == found.reason else None
    wait = restart.pause(job.status.restarts, now)
    pause = (f"the next attempt starts in {duration(wait)}: each pause is twice the last",) if wait else ()
    leaving = [pod.name for pod in seen.pods if pod.deleting]
    old = (f"pods of the last attempt that are still there: {some(leaving)}",) if leaving else ()
    return Answer(
        well=False,
        verdict=f"the job restarts: {found.reason}",
        cause=root(mine) if mine else found.message,
        meaning=CAUSES[mine.cause].meaning if mine else "",
        since=found.last_transition_time,
        evidence=(*pause, *old, *laggards(seen.pods, now), *_history(job)),
        remedies=advised(job.metadata.name, [CAUSES[mine.cause]] if mine else []),
        log=lastwords.of(seen.pods, mine)[-LOG_LINES:] if mine else (),
    )


def _starting(seen: Seen, events: Sequence[Happening], now: datetime) -> Answer | None:
    job = seen.job
    if condition(job, ConditionType.READY) is not None:
        return None
    ready = next((c for c in job.status.conditions if c.type == ConditionType.READY), None)
    hosts = job.status.hosts
    return Answer(
        well=False,
        verdict=f"the job is starting: {hosts.ready} of {hosts.desired} hosts are ready",
        cause=ready.message if ready else "",
        since=job.status.start_time,
        evidence=(*laggards(seen.pods, now), *warnings(events)),
        remedies=(
            f"wait; `kubectl tpu status {job.metadata.name} --watch` shows how far it comes",
            "spec.startupTimeoutSeconds would restart a gang that does not come up",
        ),
    )


def _running(job: TPUJob) -> Answer:
    notice = maintenance(job)
    more = (f"maintenance is ahead: {notice}",) if notice else ()
    hosts = counted(job.status.hosts.desired, "host", "hosts")
    return Answer(
        True,
        f"nothing is wrong: the job runs on {hosts}",
        since=job.status.start_time,
        evidence=(*more, *_history(job)),
    )


def root(failure: Failure) -> str:
    """A failure as the root cause of something: what, where and when."""
    at = f", {moment(failure.time)}" if failure.time else ""
    return f"{brief(failure)} - first on {place(failure)}{at}"


def _history(job: TPUJob) -> tuple[str, ...]:
    """What there was before."""
    restarts = job.status.restarts
    if not restarts.total:
        return ()
    causes = ", ".join(f"{cause} {count}" for cause, count in restarts.by_cause.items()) or "none by failure"
    limit = job.spec.failure_policy.max_restarts
    lines = [
        f"{counted(restarts.total, 'restart', 'restarts')} ({causes}), charged {restarts.counted} of {limit}"
    ]
    failure = job.status.last_failure
    if failure is not None and condition(job, ConditionType.FAILED) is None:
        lines.append(f"last failure: {root(failure)}")
    return tuple(lines)


def _echoes(seen: Seen, root: Failure, now: datetime) -> tuple[str, ...]:
    """Hosts that failed as well: most have lost the first."""
    others = [
        one.pod for pod in seen.pods if (one := host(pod, now)).state == "Failed" and one.pod != root.pod
    ]
    return (f"also failed, later: {some(others)}",) if others else ()


def laggards(pods: Iterable[Pod], now: datetime) -> tuple[str, ...]:
    """Hosts that are not up, grouped by what they wait for."""
    groups: dict[str, list[str]] = {}
    hosts = [host(pod, now) for pod in pods]
    for one in sorted(hosts, key=lambda one: (one.state != "Waiting", one.pod)):
        if one.state in {"Pending", "Waiting", "Starting"}:
            groups.setdefault(f"{one.state}: {flat(one.detail)}".removesuffix(": "), []).append(one.pod)
    return tuple(f"{some(names)}: {text}" for text, names in list(groups.items())[:SHOWN])


def warnings(events: Iterable[Happening]) -> tuple[str, ...]:
    """The latest warnings about pods; what the operator itself says of their owner is in the status."""
    found = {
        f"{one.about}: {one.reason}: {flat(one.message)}": None
        for one in reversed(list(events))
        if one.type == "Warning" and one.about.startswith("pod/") and one.reason != "FailedScheduling"
    }
    return tuple(list(found)[:SHOWN])


def advised(name: str, known: Iterable[Advice]) -> tuple[str, ...]:
    """What to do, by some advice, about an object of that name."""
    return tuple(remedy.replace("{job}", name) for advice in known for remedy in advice.remedies)

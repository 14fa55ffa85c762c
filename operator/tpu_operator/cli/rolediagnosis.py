"""Why a TPUInference does not serve, or its rollout does not go on: one answer, as for jobs.

The first question that has something to say decides.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from tpu_operator.api import GroupState, HoldGate, InferencePhase
from tpu_operator.cli import lastwords
from tpu_operator.cli.advice import BLOCKED, CAUSES, GATES, Advice
from tpu_operator.cli.diagnosis import LOG_LINES, Answer, advised, laggards, root, warnings
from tpu_operator.core.pending import counted, some

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpu_operator.api import Condition, Failure, GroupStatus, TPUInference
    from tpu_operator.cli.follow import Served
    from tpu_operator.cli.happenings import Happening

DOCTOR: Final = "`kubectl tpu doctor` tells whether the operator runs, and in which namespaces"
EVER: Final = datetime.min.replace(tzinfo=UTC)
SERVES: Final = frozenset({InferencePhase.SERVING, InferencePhase.ROLLING, InferencePhase.DEGRADED})


def diagnose_inference(seen: Served, events: Sequence[Happening], now: datetime) -> Answer:
    """What is the matter with a TPUInference."""
    return (
        _unseen(seen.inference)
        or _stopped(seen.inference)
        or _failing(seen, events, now)
        or _blocked(seen, events, now)
        or _held(seen, events, now)
        or _starting(seen, events, now)
        or _serving(seen.inference)
    )


def _unseen(inference: TPUInference) -> Answer | None:
    meta, seen = inference.metadata, inference.status.observed_generation
    if seen is None:
        text = "no operator has looked at the TPUInference yet"
        return Answer(False, text, since=meta.creation_timestamp, remedies=(DOCTOR,))
    if seen < meta.generation:
        return Answer(False, "the operator has not seen the last change of the spec yet", remedies=(DOCTOR,))
    return None


def _stopped(inference: TPUInference) -> Answer | None:
    if inference.status.phase is not InferencePhase.STOPPED:
        return None
    found = _condition(inference, "Available")
    return Answer(
        False,
        "it serves nothing: all roles are scaled to zero",
        since=found.last_transition_time if found else None,
        remedies=(f"`kubectl scale tpui {inference.metadata.name} --replicas=1` starts it",),
    )


def _failing(seen: Served, events: Sequence[Happening], now: datetime) -> Answer | None:
    """Replicas that have failed and are not back."""
    status = seen.inference.status
    bad = [group for group in status.groups if _fails(group)]
    failures = [group.last_failure for group in bad if group.last_failure]
    if not failures:
        return None
    failure = max(failures, key=lambda one: one.time or EVER)
    degraded = _condition(seen.inference, "Degraded")
    known = CAUSES[failure.cause]
    return Answer(
        well=False,
        verdict=f"{_does(seen.inference)}: {some([group.name for group in bad])} failed: {failure.cause}",
        cause=root(failure),
        meaning=known.meaning,
        since=degraded.last_transition_time if degraded and degraded.status == "True" else failure.time,
        evidence=(*_progress(seen.inference), *laggards(seen.pods, now), *warnings(events)),
        remedies=advised(_name(seen.inference), [known, *_way_back(seen.inference)]),
        log=lastwords.of(seen.pods, failure)[-LOG_LINES:],
    )


def _blocked(seen: Served, events: Sequence[Happening], now: datetime) -> Answer | None:
    waits = seen.inference.status.pending
    if waits is None:
        return None
    known = BLOCKED[waits.reason]
    hold = seen.inference.status.rollout.hold
    gates = [GATES[hold.gate]] if hold is not None and hold.gate is HoldGate.CAPACITY else []
    return Answer(
        well=False,
        verdict=f"{_does(seen.inference)}: {waits.reason}",
        cause=waits.message,
        meaning=known.meaning,
        since=waits.since,
        evidence=(*_progress(seen.inference), *laggards(seen.pods, now), *warnings(events), *_last(seen)),
        remedies=advised(_name(seen.inference), [*gates, known]),
    )


def _held(seen: Served, events: Sequence[Happening], now: datetime) -> Answer | None:
    """A rollout that waits."""
    hold = seen.inference.status.rollout.hold
    if hold is None or seen.inference.status.phase in {InferencePhase.STARTING, InferencePhase.PENDING}:
        return None
    known = GATES[hold.gate]
    return Answer(
        well=False,
        verdict=f"the rollout waits: {hold.gate}",
        cause=hold.reason,
        meaning=known.meaning,
        since=hold.since,
        evidence=(*_progress(seen.inference), *laggards(seen.pods, now), *warnings(events), *_last(seen)),
        remedies=advised(_name(seen.inference), [known]),
    )


def _starting(seen: Served, events: Sequence[Happening], now: datetime) -> Answer | None:
    available, degraded = _condition(seen.inference, "Available"), _condition(seen.inference, "Degraded")
    short = degraded if degraded is not None and degraded.status == "True" else None
    if available is not None and available.status == "True" and short is None:
        return None
    told = short or available
    return Answer(
        well=False,
        verdict=f"{_does(seen.inference)}: ready are {seen.inference.status.ready}",
        cause=told.message if told else "",
        since=told.last_transition_time if told else None,
        evidence=(*laggards(seen.pods, now), *warnings(events), *_last(seen)),
        remedies=(f"wait; `kubectl tpu status {_name(seen.inference)} --watch` shows how far it comes",),
    )


def _serving(inference: TPUInference) -> Answer:
    status = inference.status
    available = _condition(inference, "Available")
    more = (f"{counted(status.restarts, 'restart', 'restarts')} of replicas",) if status.restarts else ()
    last = (f"last failure: {root(status.last_failure)}",) if status.last_failure else ()
    return Answer(
        True,
        f"nothing is wrong: it serves by revision {status.updated_revision}, ready are {status.ready}",
        since=available.last_transition_time if available else None,
        evidence=(*more, *last),
    )


def _fails(group: GroupStatus) -> bool:
    """Whether a replica has failed, and is not ready since."""
    return bool(group.restarts_since_ready) and group.state not in {GroupState.READY, GroupState.DRAINING}


def _does(inference: TPUInference) -> str:
    phase = inference.status.phase
    if phase is InferencePhase.ROLLING:
        return "it serves, and the rollout does not go on"
    return "it serves, but not with all replicas" if phase in SERVES else "it does not serve"


def _progress(inference: TPUInference) -> tuple[str, ...]:
    status = inference.status
    if status.current_revision == status.updated_revision or not status.current_revision:
        return ()
    way = f"{status.current_revision} to {status.updated_revision}"
    return (f"rolling out {way}, of which are ready: {status.rollout.step}",)


def _last(seen: Served) -> tuple[str, ...]:
    failure: Failure | None = seen.inference.status.last_failure
    return (f"before that: {root(failure)}",) if failure else ()


def _way_back(inference: TPUInference) -> list[Advice]:
    """Going back, if the revision that fails is the new one."""
    status = inference.status
    failing = {group.revision for group in status.groups if _fails(group)}
    if status.updated_revision not in failing or status.current_revision == status.updated_revision:
        return []
    return [Advice("", ("`kubectl tpu rollout rollback {job}` goes back to the revision before",))]


def _name(inference: TPUInference) -> str:
    return f"tpui/{inference.metadata.name}"


def _condition(inference: TPUInference, kind: str) -> Condition | None:
    return next((c for c in inference.status.conditions if c.type == kind), None)

"""The analysis of a canary step: what to ask when, what the answers mean, and what becomes of the revision.

Queries are asked in rounds, and how many of those have passed or failed is in the status. What is to be asked
is part of a decision, what was answered part of what the next one sees: nothing here waits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from tpu_operator.api import AnalysisStatus, QueryStatus, Rejection, Verdict
from tpu_operator.core import names
from tpu_operator.core.inference.canary import Finding, Position, Stage, position
from tpu_operator.core.inference.revision import digest
from tpu_operator.core.inquiry import Answer, Inquiry

if TYPE_CHECKING:
    from tpu_operator.api import Analysis, AnalysisQuery, CanaryStep, TPUInference
    from tpu_operator.core.inference.draft import Draft
    from tpu_operator.core.inference.view import InferenceView

NO_SERVER: Final = (
    "the operator knows no Prometheus to ask: an administrator names it by the chart's value "
    "prometheus.addresses"
)
UNANSWERED: Final = Answer(problem="it was not answered")
HASH_LENGTH: Final = 8
MOST_DIGITS: Final = 4
"""Of the steps that somebody says are done: no canary has more."""


def stands(view: InferenceView) -> Position:
    """Where the canary stands, with the answers that have come since the status was written."""
    state = view.status.rollout
    stages = [
        Stage(step.copies, step.percent, step.pause_seconds, step.analysis is not None)
        for step in _steps(view.inference)
    ]
    if view.status.updated_revision != view.newest.name:
        # What is on record is about the revision before.
        return position(stages, 0, None)
    if (done := promoted(view.inference)) > state.canary_step:
        # When the share of the next step is ready has nothing to do with when that of this one was.
        return position(stages, done, None)
    since = state.step_ready_since
    ready_for = (view.now - since).total_seconds() if since else None
    return position(stages, state.canary_step, ready_for, _finding(view))


def promoted(inference: TPUInference) -> int:
    """Steps of the canary that somebody has counted as done, for the spec as it is; 0 where nobody has."""
    generation, _, steps = inference.metadata.annotations.get(names.ANNOTATION_PROMOTED, "").partition("/")
    right = generation == str(inference.metadata.generation) and steps.isascii() and steps.isdecimal()
    return min(int(steps[:MOST_DIGITS]), len(_steps(inference))) if right else 0


def _steps(inference: TPUInference) -> list[CanaryStep]:
    canary = inference.spec.rollout.canary
    return list(canary.steps) if canary else []


def standing(view: InferenceView) -> AnalysisStatus | None:
    """The analysis as the status is to have it: the last one of this revision."""
    if view.status.updated_revision != view.newest.name:
        return None
    spec, answers = _spec(view), view.snapshot.answers
    if spec is None or answers is None or answers.name != _name(view):
        return view.status.rollout.analysis
    queries = [judge(query, answers.by_query.get(query.name, UNANSWERED)) for query in spec.queries]
    verdict = _of_round(queries)
    old = _of_step(view)
    return old.model_copy(
        update={
            "verdict": verdict,
            "rounds": old.rounds + 1,
            "passed": 0 if verdict is Verdict.FAILED else old.passed + (verdict is Verdict.PASSED),
            "failed": old.failed + (verdict is Verdict.FAILED),
            "last": view.now,
            "queries": queries,
        }
    )


def decide(draft: Draft) -> None:
    """Ask what is to be asked, now or later; or give the revision up that the analysis has found wanting."""
    view, found = draft.view, stands(draft.view)
    spec = _spec(view)
    if found.rejected and view.before is not None:
        draft.reject(_rejection(view), view.before.name)
    elif spec is not None and draft.step is not None and draft.step.settled:
        left = _until_due(view, spec)
        draft.requeue(left)
        if left is not None and left <= 0:
            draft.inquiry = _inquiry(view, spec)


def rejection(inference: TPUInference, asked: str) -> Rejection | None:
    """The rejection of the revision that the spec asks for; none once it asks for another, or differently."""
    found = inference.status.rollout.rejected
    stands = found is not None and found.revision == asked and found.canary == _canary_hash(inference)
    return found if stands else None


def judge(query: AnalysisQuery, answer: Answer) -> QueryStatus:
    """What the answer to a query means."""
    value, verdict, message = answer.value, Verdict.PASSED, ""
    if value is None or math.isnan(value):
        verdict, message = Verdict.INCONCLUSIVE, answer.problem or "the value is not a number"
    elif query.at_least is not None and value < query.at_least:
        verdict, message = Verdict.FAILED, f"{value:g} is below atLeast {query.at_least:g}"
    elif query.at_most is not None and value > query.at_most:
        verdict, message = Verdict.FAILED, f"{value:g} is above atMost {query.at_most:g}"
    shown = "" if value is None else f"{value:g}"
    return QueryStatus(name=query.name, value=shown, verdict=verdict, message=message)


def _of_round(queries: list[QueryStatus]) -> Verdict:
    verdicts = {query.verdict for query in queries}
    order = (Verdict.FAILED, Verdict.INCONCLUSIVE)
    return next((verdict for verdict in order if verdict in verdicts), Verdict.PASSED)


def _spec(view: InferenceView) -> Analysis | None:
    """The analysis of the present step, if it has one."""
    canary, step = view.inference.spec.rollout.canary, view.status.rollout.canary_step
    known = canary is not None and view.status.updated_revision == view.newest.name
    return canary.steps[step].analysis if canary and known and step < len(canary.steps) else None


def _of_step(view: InferenceView) -> AnalysisStatus:
    """What is on record of the analysis of the present step."""
    step, found = view.status.rollout.canary_step + 1, view.status.rollout.analysis
    return found if found is not None and found.step == step else AnalysisStatus(step=step)


def _finding(view: InferenceView) -> Finding:
    """What the analysis of the present step has found so far."""
    spec, found = _spec(view), standing(view)
    if spec is None or found is None or found.step != view.status.rollout.canary_step + 1:
        return Finding(None, _unasked(view, spec))
    told = "; ".join(f"{query.name}: {query.message}" for query in found.queries if query.message)
    counts = f"{found.passed} of {spec.passes} rounds have passed"
    if found.failed >= spec.failures:
        return Finding(Verdict.FAILED, told or counts)
    if found.passed >= spec.passes:
        return Finding(Verdict.PASSED, counts)
    verdict = Verdict.INCONCLUSIVE if found.verdict is Verdict.INCONCLUSIVE else None
    return Finding(verdict, f"{counts}; the last one: {told}" if told else counts)


def _unasked(view: InferenceView, spec: Analysis | None) -> str:
    """Why there is no answer yet."""
    allowed = view.installation.prometheus
    if not allowed:
        return NO_SERVER
    if spec is not None and _address(view, spec) is None:
        return (
            f"address {spec.address} is none that the operator may ask: take one of {', '.join(allowed)}, or "
            "have an administrator add it to the chart's value prometheus.addresses"
        )
    return "no query has been answered yet"


def _address(view: InferenceView, spec: Analysis) -> str | None:
    """The server to ask, if the installation allows it."""
    allowed = view.installation.prometheus
    if spec.address is None:
        return allowed[0] if allowed else None
    return next((each for each in allowed if each.rstrip("/") == spec.address.rstrip("/")), None)


def _until_due(view: InferenceView, spec: Analysis) -> float | None:
    """Seconds until the next round; None while its time does not pass."""
    since = view.status.rollout.step_ready_since
    found = standing(view)
    if since is None or _address(view, spec) is None:
        return None
    if found is not None and found.step == view.status.rollout.canary_step + 1 and found.last is not None:
        since = max(since, found.last)
    return spec.interval_seconds - (view.now - since).total_seconds()


def _inquiry(view: InferenceView, spec: Analysis) -> Inquiry | None:
    address = _address(view, spec)
    if address is None:
        return None
    meta = view.inference.metadata
    words = {
        "$(revision)": view.newest.name,
        "$(stable)": view.status.current_revision,
        "$(namespace)": meta.namespace,
        "$(name)": meta.name,
    }
    return Inquiry(
        _name(view), address, {each.name: _written_out(each.query, words) for each in spec.queries}
    )


def _written_out(query: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        query = query.replace(word, value)
    return query


def _name(view: InferenceView) -> str:
    """Name of the next round: no round of another revision, step or stay at it has the same."""
    state = view.status.rollout
    since = state.step_ready_since.isoformat() if state.step_ready_since else ""
    return f"{view.newest.name}/{state.canary_step}/{since}/{_of_step(view).rounds}"


def _rejection(view: InferenceView) -> Rejection:
    return Rejection(
        revision=view.newest.name,
        canary=_canary_hash(view.inference),
        reason=_finding(view).text,
        time=view.now,
    )


def _canary_hash(inference: TPUInference) -> str:
    canary = inference.spec.rollout.canary
    return digest(canary.wire(), HASH_LENGTH) if canary else ""

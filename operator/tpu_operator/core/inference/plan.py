"""TPUInference: from what is to what should be done, as one pure function.

Replicas fail and start anew one by one (`repair`); how many there are of which revision is the rollout
planner's business (`rollout`); here both are put together. Whatever loses information, a restart or a replica
that goes, is only ever a new status first; the deletions follow from it in a later pass.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tpu_operator.catalog import CatalogError
from tpu_operator.core import capacity, names, pending
from tpu_operator.core.conditions import refused
from tpu_operator.core.grouping import deletes as grouping_deletes
from tpu_operator.core.inference import (
    analysis,
    conditions,
    goals,
    grouping,
    history,
    placing,
    repair,
    rollout,
    scaling,
)
from tpu_operator.core.inference.draft import Draft
from tpu_operator.core.inference.factory import owner_reference
from tpu_operator.core.inference.groups import GroupKey, free_indexes, victims
from tpu_operator.core.inference.missing import missing_pods
from tpu_operator.core.inference.ratio import one_by_one
from tpu_operator.core.inference.status import status_of
from tpu_operator.core.inference.view import observe
from tpu_operator.core.nodes import with_sightings
from tpu_operator.core.objects import services
from tpu_operator.core.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from tpu_operator.api import TPUInferenceStatus
    from tpu_operator.core.inference.groups import Group
    from tpu_operator.core.inference.missing import Missing
    from tpu_operator.core.inference.snapshot import InferenceSnapshot
    from tpu_operator.core.inference.view import InferenceView, Installation
    from tpu_operator.core.pending import Hold
    from tpu_operator.core.plan import Manifest, Patch
    from tpu_operator.core.snapshot import Pod, PodGroup

REQUESTS: Final = "http"
"""Name of the Service's port."""


def plan(snapshot: InferenceSnapshot, now: datetime, installation: Installation) -> Plan:
    """What to do about a TPUInference now."""
    inference = snapshot.inference
    if inference.metadata.deletion_timestamp is not None:
        return Plan()
    try:
        view = observe(snapshot, now, installation)
    except CatalogError as error:
        status, generation = inference.status, inference.metadata.generation
        return refused(status, generation, now, str(error), conditions.phase)
    draft = Draft(view)
    repair.restarts(draft)
    decided = _written(draft) if draft.changed else _converge(draft)
    # Homes are kept whatever is decided: a replica that fails takes none from those that have no pods yet.
    kept = replace(decided, reserved=placing.reserved(view))
    return with_sightings(kept, snapshot.pods.values(), view.losses, snapshot.nodes)


def _converge(draft: Draft) -> Plan:
    """Make what is missing, remove what is left over, and say how far things are."""
    view = draft.view
    for group in view.groups:
        if group.leaving and group.gone:
            draft.forget(group)
    problems = _problems(view)
    if not problems:
        draft.step = rollout.plan(goals.goal(view), goals.revisions(view))
        _carry_out(draft, draft.step.wanted)
    analysis.decide(draft)
    unused = grouping.leftovers(view)
    missing = missing_pods(draft, {group.metadata.name for group in unused})
    children = _children(draft, missing, unused)
    problems = list(dict.fromkeys([*problems, *missing.conflicts]))
    told = pending.conflicting(problems) if problems else missing.shortage
    draft.hold = told or _hold(view, _refusal(view, children))
    _look_again(draft)
    return _written(draft, replace(children, inquiry=draft.inquiry))


def _children(draft: Draft, missing: Missing, unused: Iterable[PodGroup]) -> Plan:
    """What is to be done about objects other than itself."""
    view = draft.view
    patches, creates = _service(view)
    return Plan(
        applies=(*history.applies(view), *_unrouted(view), *view.routing.applies),
        deletes=(
            *repair.leftovers(view),
            *repair.leaving(view),
            *grouping_deletes(unused),
            *history.deletes(view),
            *scaling.deletes(view),
            *view.routing.deletes,
        ),
        creates=(
            *history.creates(view),
            *creates,
            *scaling.creates(view),
            *grouping.absent(view, missing.grouped),
            *missing.lists.values(),
            *missing.pods,
        ),
        patches=(*patches, *scaling.reports(view)),
        claimed=missing.demand,
    )


def _refusal(view: InferenceView, children: Plan) -> str:
    """What the API server last refused, as long as there is anything that it could refuse again."""
    writes = children.applies or children.deletes or children.creates or children.patches
    return view.snapshot.refusal if writes else ""


def _written(draft: Draft, children: Plan | None = None) -> Plan:
    """The status that goes with what was decided, with its events, beside what is done about children."""
    old, new = draft.view.status, status_of(draft)
    told = conditions.events(old.conditions, new.conditions)
    return replace(
        children or Plan(),
        status=new.wire() if new != old else None,
        progress=_progress(new) if _only_progress(old, new) else "",
        events=(*draft.events, *told),
        requeue_after=draft.requeue_after,
    )


def _progress(status: TPUInferenceStatus) -> str:
    return " ".join(f"{group.name}:{group.ready}" for group in status.groups)


def _only_progress(old: TPUInferenceStatus, new: TPUInferenceStatus) -> bool:
    """Whether all that is new in a status is how many hosts of replicas are ready."""
    return old != new and _without_progress(old) == _without_progress(new)


def _without_progress(status: TPUInferenceStatus) -> TPUInferenceStatus:
    groups = [group.model_copy(update={"ready": ""}) for group in status.groups]
    return status.model_copy(update={"groups": groups})


def _problems(view: InferenceView) -> list[str]:
    """What keeps pods of the newest revision from being made."""
    factories = (view.factories[view.newest.name, role.name] for role in view.newest.spec.roles)
    return [problem for factory in factories for problem in factory.problems]


def _carry_out(draft: Draft, wanted: Mapping[tuple[str, str], int]) -> None:
    """Have as many replicas of every role and revision as the planner wants."""
    taken: defaultdict[tuple[str, str], list[Group]] = defaultdict(list, draft.view.by_role)
    for (revision, role), count in wanted.items():
        groups = taken[revision, role]
        kept = [group for group in groups if not group.leaving]
        for group in victims(kept, len(kept) - count, draft.view.available) if count < len(kept) else ():
            draft.drain(group)
        for index in free_indexes((group.key.index for group in groups), max(0, count - len(kept))):
            draft.add(GroupKey(role, revision, index))


def _unrouted(view: InferenceView) -> list[Manifest]:
    """Labels by which routers leave the host 0 of a replica alone that is on its way out."""
    again = [group.leader for group in view.kept if group.routed and group.leader in group.gang.stale]
    leaving = (group for group in view.groups if group.leaving and group.routed)
    staying = [group for group in view.kept if group.gang.pods]
    going = (group.leader for group in one_by_one(leaving, staying, goals.targets(view), down=True))
    return [_unrouting(leader) for leader in (*again, *going) if leader]


def _unrouting(leader: Pod) -> Manifest:
    meta = leader.metadata
    labels = {names.LABEL_LLMD_SERVING: names.NOT_SERVING}
    metadata = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def _service(view: InferenceView) -> tuple[tuple[Patch, ...], tuple[Manifest, ...]]:
    """The headless Service, as changes of it and as a manifest to create."""
    meta = view.inference.metadata
    desired = services.headless_service(
        meta.name,
        meta.namespace,
        view.selector,
        owner_reference(view.inference),
        {REQUESTS: view.inference.spec.engine.port},
    )
    return services.kept(desired, view.snapshot.services)


def _hold(view: InferenceView, refusal: str) -> Hold | None:
    """The first thing that keeps a replica from being there."""
    current = [pod for group in view.kept for pod in group.gang.current]
    stale = [pod for group in view.kept for pod in group.gang.stale]
    return (
        pending.refused(refusal)
        or pending.foreign_pods(view.strangers)
        or pending.waiting_for_old([*stale, *view.surplus], view.now)
        or pending.not_started(current)
        or goals.shortage(view, view.kept)
        or pending.gated(current, view.admissions)
        or pending.neglected(current, view.now)
    )


def _look_again(draft: Draft) -> None:
    """Come back when time alone has changed something."""
    view = draft.view
    pods = [pod for group in view.kept for pod in group.gang.current]
    draft.requeue(view.until_lost)
    draft.requeue(pending.late_in(pods, view.now))
    draft.requeue(pending.stuck_in([p for group in view.kept for p in group.gang.stale], view.now))
    spec = view.inference.spec.rollout
    for group in view.kept:
        left = group.until_available(spec.min_ready_seconds, view.now)
        draft.requeue(left if left and left > 0 else None)
    if draft.hold is not None and draft.hold.reason in goals.NO_ROOM:
        draft.requeue(capacity.LOOK_AGAIN)
    left = spec.progress_deadline_seconds - goals.stalled(view)
    if draft.step is not None and not draft.step.done and left > 0:
        draft.requeue(left)

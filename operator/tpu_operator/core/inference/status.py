"""The next status of a TPUInference, from what there is and what was decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpu_operator.api import (
    GroupState,
    InferencePending,
    RevisionStatus,
    RoleCount,
    RoleStatus,
    RolloutHold,
    RolloutState,
    RolloutStatus,
    TPUInferenceStatus,
)
from tpu_operator.api.tpuinference_status import MAX_REVISIONS
from tpu_operator.core import pending
from tpu_operator.core.inference import analysis, conditions, goals, scaling

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from tpu_operator.api import GroupStatus
    from tpu_operator.core.inference.draft import Draft
    from tpu_operator.core.inference.groups import Group, GroupKey
    from tpu_operator.core.inference.rollout import Step
    from tpu_operator.core.inference.view import InferenceView


def status_of(draft: Draft) -> TPUInferenceStatus:
    """The status that goes with what was decided."""
    view = draft.view
    groups = [_group(draft, key, group, record) for key, group, record in draft.records]
    targets = goals.targets(view)
    new = view.status.model_copy(
        update={
            "observed_generation": view.inference.metadata.generation,
            "current_revision": _current(draft),
            "updated_revision": view.newest.name,
            "revisions": _revisions(view, groups),
            "roles": _roles(view, groups, targets),
            "groups": groups,
            "rollout": _rollout(draft, groups),
            "replicas": _copies(view, groups),
            "selector": scaling.selector(view.name),
            "restarts": draft.restarts,
            "last_failure": draft.last_failure,
            "pending": _pending(draft),
        }
    )
    new = new.model_copy(update={"ready": _ready(new.roles)})
    return conditions.summed_up(new, view)


def _group(draft: Draft, key: GroupKey, group: Group | None, record: GroupStatus) -> GroupStatus:
    """What is on record of one replica from now on."""
    view = draft.view
    if group is None or draft.decided(key):
        factory = view.factory(key)
        hosts = group.hosts if group else factory.shape.hosts if factory else 0
        return record.model_copy(update={"ready": f"0/{hosts}"})
    pool = pending.node_pool(group.gang.current, view.snapshot.nodes.by_name) or record.node_pool
    update: dict[str, Any] = {"ready": f"{group.hosts_ready}/{group.hosts}", "node_pool": pool}
    if not group.leaving:
        update |= {"state": _state(group, record), "since": group.ready_since}
    if group.ready:
        update["restarts_since_ready"] = 0
    return record.model_copy(update=update)


def _state(group: Group, record: GroupStatus) -> GroupState:
    if group.ready:
        return GroupState.READY
    if group.gang.scheduled:
        was_ready = record.state in {GroupState.READY, GroupState.NOT_READY}
        return GroupState.NOT_READY if was_ready else GroupState.STARTING
    return GroupState.RESTARTING if record.state is GroupState.RESTARTING else GroupState.PENDING


def _kept(groups: Iterable[GroupStatus]) -> list[GroupStatus]:
    return [group for group in groups if group.state is not GroupState.DRAINING]


def _is_ready(group: GroupStatus) -> bool:
    return group.state is GroupState.READY


def _revisions(view: InferenceView, groups: list[GroupStatus]) -> list[RevisionStatus]:
    """Revisions that have replicas, the newest first."""
    names = {group.revision for group in groups} | {view.newest.name}
    known = view.revisions
    order = sorted(names, key=lambda name: (name != view.newest.name, -_number(view, name), name))
    return [
        RevisionStatus(
            name=name,
            kv_compat=known[name].kv_compat if name in known else "",
            roles=(roles := _counts(view, name, groups)),
            servable=bool(roles) and all(role.ready for role in roles),
        )
        for name in order[:MAX_REVISIONS]
    ]


def _number(view: InferenceView, name: str) -> int:
    return view.revisions[name].number if name in view.revisions else 0


def _counts(view: InferenceView, revision: str, groups: list[GroupStatus]) -> list[RoleCount]:
    """Replicas of every role that a revision has."""
    known = view.revisions.get(revision)
    roles = {role.name for role in known.spec.roles} if known else set()
    roles |= {group.role for group in groups if group.revision == revision}
    kept = [group for group in _kept(groups) if group.revision == revision]
    return [
        RoleCount(
            name=role,
            replicas=sum(group.role == role for group in kept),
            ready=sum(group.role == role and _is_ready(group) for group in kept),
        )
        for role in sorted(roles)
    ]


def _roles(view: InferenceView, groups: list[GroupStatus], targets: dict[str, int]) -> list[RoleStatus]:
    """Replicas of every role, also of those that the spec has no more, while they last."""
    available = {group.key.name for group in view.groups if view.available(group)}
    former = sorted({group.role for group in groups} - targets.keys())
    found = []
    for role in [*targets, *former]:
        kept = [group for group in _kept(groups) if group.role == role]
        found.append(
            RoleStatus(
                name=role,
                desired=targets.get(role, 0),
                replicas=len(kept),
                ready=sum(map(_is_ready, kept)),
                updated=sum(group.revision == view.newest.name for group in kept),
                available=sum(group.name in available for group in kept),
            )
        )
    return found


def _ready(roles: Iterable[RoleStatus]) -> str:
    return ", ".join(f"{role.name} {role.ready}/{role.desired}" for role in roles)


def _copies(view: InferenceView, groups: list[GroupStatus]) -> int:
    """Whole copies of the role set that there are, ready or not."""
    kept = _kept(groups)
    each = {role.name: role.replicas for role in view.inference.spec.roles if role.scaling == "Static"}
    there = {role: sum(group.role == role for group in kept) for role in each}
    if not each:
        return int(bool(kept))
    return min(there[role] // max(1, replicas) for role, replicas in each.items())


def _current(draft: Draft) -> str:
    """The last revision that all replicas were of."""
    done = draft.step is not None and draft.step.done
    return draft.view.newest.name if done else draft.view.status.current_revision


def _pending(draft: Draft) -> InferencePending | None:
    hold, old = draft.hold, draft.view.status.pending
    if hold is None:
        return None if draft.step else old
    since = old.since if old is not None and old.reason == hold.reason else draft.view.now
    return InferencePending(reason=hold.reason, message=hold.message, since=since)


def _rollout(draft: Draft, groups: list[GroupStatus]) -> RolloutStatus:
    """How far the rollout is."""
    view, step = draft.view, draft.step
    old = view.status.rollout
    standing = RolloutState.HELD if draft.hold else old.state
    begins = goals.rested(view) and step is not None and not step.done
    begun = begins or view.status.updated_revision != view.newest.name
    done, since = _canary(draft)
    return RolloutStatus(
        state=step.state if step else standing,
        step=_progress(view, groups),
        canary_step=done,
        step_ready_since=since,
        analysis=analysis.standing(view),
        rejected=draft.rejected,
        last_progress=view.now if begun or _progressed(draft, groups) else old.last_progress,
        hold=_hold(draft, step),
    )


def _progress(view: InferenceView, groups: list[GroupStatus]) -> str:
    """Replicas of the newest revision that are ready, of those that the spec asks for."""
    targets = goals.targets(view)
    counts = {role.name: role.ready for role in _counts(view, view.newest.name, groups)}
    return ", ".join(f"{role} {counts.get(role, 0)}/{target}" for role, target in targets.items())


def _progressed(draft: Draft, groups: list[GroupStatus]) -> bool:
    """Whether more replicas of the newest revision are ready than before, or it goes on after a pause."""
    view, newest = draft.view, draft.view.newest.name
    before = sum(g.revision == newest and _is_ready(g) for g in view.status.groups)
    now = sum(g.revision == newest and _is_ready(g) for g in groups)
    old, hold = view.status.rollout.hold, draft.step.hold if draft.step else None
    resumed = old is not None and old.gate in goals.BY_PEOPLE
    return now > before or (resumed and (hold is None or hold.gate not in goals.BY_PEOPLE))


def _hold(draft: Draft, step: Step | None) -> RolloutHold | None:
    old = draft.view.status.rollout.hold
    if step is None:
        return old
    if step.hold is None:
        return None
    since = old.since if old is not None and old.gate == step.hold.gate else draft.view.now
    return RolloutHold(gate=step.hold.gate, reason=step.hold.reason, since=since)


def _canary(draft: Draft) -> tuple[int, datetime | None]:
    """Steps of the canary that are done, and since when the present one has its share."""
    view, old = draft.view, draft.view.status.rollout
    stands = analysis.stands(view)
    draft.requeue(stands.requeue_after)
    if stands.share is None or draft.step is None or not draft.step.settled:
        return stands.done, None
    same = stands.done == old.canary_step and view.status.updated_revision == view.newest.name
    return stands.done, (old.step_ready_since if same else None) or view.now

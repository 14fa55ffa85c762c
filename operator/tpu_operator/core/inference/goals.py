"""What the rollout planner is asked: goals from the spec, and counts from replicas as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpu_operator.api import BlockedReason, HoldGate, RolloutState
from tpu_operator.core import capacity, pending
from tpu_operator.core.inference import analysis, rollout, scaling

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpu_operator.api import InferencePending, RoleSpec
    from tpu_operator.core.inference.groups import Group
    from tpu_operator.core.inference.view import InferenceView

NO_ROOM: Final = capacity.REASONS | {BlockedReason.NO_MATCHING_NODES, BlockedReason.AWAITING_ADMISSION}
BY_PEOPLE: Final = frozenset({HoldGate.PAUSE, HoldGate.PARTITION, HoldGate.ANALYSIS})
"""Gates at which a rollout stands because somebody wants it so: that time is no lack of progress."""
CRASHES: Final = 3
"""Restarts in a row after which a replica counts as one that does not become ready."""


def goal(view: InferenceView) -> rollout.Goal:
    """What the spec asks for."""
    spec, status = view.inference.spec.rollout, view.status
    known = {role.name: role for role in (*view.newest.spec.roles, *view.inference.spec.roles)}
    return rollout.Goal(
        newest=view.newest.name,
        roles=tuple(_role(view, known[name], target) for name, target in targets(view).items()),
        current=status.current_revision,
        copies=view.inference.spec.replicas,
        strategy=spec.strategy,
        on_capacity_shortage=spec.on_capacity_shortage,
        allow_downtime=spec.allow_downtime,
        paused=spec.paused,
        partition=spec.partition,
        canary=analysis.stands(view).share,
        stalled_seconds=stalled(view),
        progress_deadline_seconds=spec.progress_deadline_seconds,
    )


def revisions(view: InferenceView) -> list[rollout.Revision]:
    """All revisions that have replicas, and the newest."""
    present = {group.key.revision for group in view.groups} | {view.newest.name}
    return [_revision(view, name) for name in sorted(present)]


def targets(view: InferenceView) -> dict[str, int]:
    """Replicas that each role of the newest revision should have, over all copies.

    Where the spec's is rejected, roles that it lacks keep what they have: what they had before is not known.
    """
    asked = scaling.targets(view.inference, view.snapshot.scalers)
    if view.rejected is None:
        return asked
    there = [group.key.role for group in view.kept if group.key.revision == view.newest.name]
    return {role.name: asked.get(role.name, there.count(role.name)) for role in view.newest.spec.roles}


def rested(view: InferenceView) -> bool:
    """Whether there was nothing to wait for so far."""
    state = view.status.rollout
    return state.state is RolloutState.IDLE and state.hold is None


def stalled(view: InferenceView) -> float:
    """Seconds since there is something to wait for, or since something of it came to be."""
    state = view.status.rollout
    since = state.last_progress
    held = state.hold is not None and state.hold.gate in BY_PEOPLE
    if since is None or held or rested(view) or view.status.updated_revision != view.newest.name:
        return 0.0
    return (view.now - since).total_seconds()


def shortage(view: InferenceView, groups: Iterable[Group]) -> pending.Hold | None:
    """Why there are no nodes for some of these replicas, which are of one role and revision."""
    for group in groups:
        if factory := view.factory(group.key):
            nodes, pools = view.snapshot.nodes, view.snapshot.pools
            found = capacity.unschedulable(group.gang.current, nodes, pools, factory.demand)
            if found:
                return found
    return None


def broken(group: Group) -> bool:
    """Whether a replica is known not to become ready as it is."""
    if group.ready:
        return False
    crashes = group.record.restarts_since_ready if group.record else 0
    return crashes >= CRASHES or pending.not_started(group.gang.current) is not None


def _role(view: InferenceView, role: RoleSpec, target: int) -> rollout.RoleGoal:
    common, own = view.inference.spec.rollout, role.rollout
    waiting = [group for group in view.by_role.get((view.newest.name, role.name), []) if not group.leaving]
    found = (
        shortage(view, waiting)
        or pending.refused(view.snapshot.refusal)
        or _quota(view, waiting)
        or _gated(view, waiting)
    )
    return rollout.RoleGoal(
        name=role.name,
        target=target,
        max_surge=common.max_surge if own.max_surge is None else own.max_surge,
        max_unavailable=common.max_unavailable if own.max_unavailable is None else own.max_unavailable,
        shortage=found.message if found and found.reason in NO_ROOM else "",
    )


def _quota(view: InferenceView, groups: Iterable[Group]) -> InferencePending | None:
    """The quota that had no room for the pods of some of these replicas, as the last pass has found."""
    told = view.status.pending
    if told is None or told.reason is not BlockedReason.QUOTA_EXCEEDED:
        return None
    return told if any(group.gang.absent for group in groups) else None


def _gated(view: InferenceView, groups: Iterable[Group]) -> pending.Hold | None:
    """Pods of some of these replicas that others, such as Kueue, have not let the scheduler look at."""
    pods = [pod for group in groups for pod in group.gang.current]
    return pending.gated(pending.held_back(pods, view.now), view.admissions)


def _revision(view: InferenceView, name: str) -> rollout.Revision:
    known = view.revisions.get(name)
    roles = {role.name for role in known.spec.roles} if known else set()
    roles |= {group.key.role for group in view.groups if group.key.revision == name}
    groups = [group for group in view.kept if group.key.revision == name]
    return rollout.Revision(
        name=name,
        number=known.number if known else 0,
        roles={role: _count(view, view.by_role.get((name, role), [])) for role in sorted(roles)},
        broken=any(map(broken, groups)) or (view.rejected is not None and view.rejected.revision == name),
    )


def _count(view: InferenceView, groups: Iterable[Group]) -> rollout.Count:
    kept, leaving, ready = 0, 0, 0
    for group in groups:
        if group.leaving:
            leaving += not group.gone
        else:
            kept += 1
            ready += view.available(group)
    return rollout.Count(kept=kept, ready=ready, leaving=leaving)

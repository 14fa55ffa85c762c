"""Announced maintenance, met ahead: the job says so, its pods are told, and it moves while there is time.

What is announced for when is read off the nodes, since when the job knows off its condition, and what its
pods were told off their annotations: an operator that starts anew goes on where the last one was.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tpu_operator.api import Cause, ConditionType, MaintenanceAction, RuleAction
from tpu_operator.core import failures, homes, names, notices, restart, spares
from tpu_operator.core.notices import Notice, Told
from tpu_operator.core.numbers import whole
from tpu_operator.core.pending import some

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpu_operator.api import Failure
    from tpu_operator.core.jobstatus import Draft
    from tpu_operator.core.jobview import JobView
    from tpu_operator.core.objects.pods import PodFactory
    from tpu_operator.core.plan import Manifest, Plan
    from tpu_operator.core.slicegroup import Gang
    from tpu_operator.core.snapshot import Pod

LOOK_AGAIN: Final = 10.0
"""Seconds after which to look for room again: nobody tells a job that runs of pools that get free."""
REASONS: Final = {True: "Ongoing", False: "Announced"}


class Affected(NamedTuple):
    """Pods of a gang on nodes with notices.

    Attributes:
        pods: the pods.
        notice: the one that comes first.
    """

    pods: list[Pod]
    notice: Notice


def announce(view: JobView, draft: Draft) -> None:
    """Say what is announced for the nodes of a job, or that it is over."""
    affected = [found for gang in view.gangs if (found := _affected(view, gang))]
    draft.requeue(_until_notice(view))
    if affected:
        first = min((found.notice for found in affected), key=_order)
        pods = [pod for found in affected for pod in found.pods]
        message = f"{_where(view, pods)}: {_when(first)}; {_what_follows(view, first)}"
        draft.conditions.set(ConditionType.MAINTENANCE_SCHEDULED, True, REASONS[first.active], message)
    elif view.job.spec.maintenance.on_notice == MaintenanceAction.IGNORE or _settled(view):
        draft.clear(ConditionType.MAINTENANCE_SCHEDULED, "Over")


def tell(view: JobView) -> tuple[Manifest, ...]:
    """The annotations that pods lack, or that are over and so empty, as manifests to apply."""
    manifests: list[Manifest] = []
    for gang in view.gangs:
        affected = _affected(view, gang)
        text = msgspec.json.encode(_told(view, affected.notice)).decode() if affected else ""
        manifests += [
            _annotated(pod, text)
            for pod in gang.current
            if pod.metadata.annotations.maintenance != text and not (pod.deleting or pod.finished)
        ]
    return tuple(manifests)


def move(view: JobView, draft: Draft, factory: PodFactory) -> Plan | None:
    """Restart a gang elsewhere, once it is time for that and there is room."""
    for gang in view.gangs:
        affected = _affected(view, gang)
        first = _first(gang, affected.pods) if affected and not gang.absent else None
        if not (affected and first and (failure := _reason_to_move(view, gang, factory, first))):
            continue
        left = (_move_time(view, gang.notices[first.name]) - view.now).total_seconds()
        if left > 0:
            draft.requeue(left)
        elif (pools := _room(view, gang, factory, _due(view, gang, affected))) is not None:
            _take(view, draft, gang, factory, pools)
            held = {pool: homes.slice_id(view, index) for index, pool in pools.items()}
            return replace(draft.restart(gang, failure), reserved=held)
        else:
            draft.requeue(LOOK_AGAIN)
    return None


def _affected(view: JobView, gang: Gang) -> Affected | None:
    if not gang.notices or view.job.spec.maintenance.on_notice == MaintenanceAction.IGNORE:
        return None
    pods = [p for p in gang.current if p.name in gang.notices and p.spec.node_name and not p.finished]
    if not pods:
        return None
    return Affected(pods, min((gang.notices[pod.name] for pod in pods), key=_order))


def _order(notice: Notice) -> tuple[bool, bool, float, str]:
    start = notice.start
    return (not notice.active, start is not None, start.timestamp() if start else 0.0, notice.text)


def _settled(view: JobView) -> bool:
    """Whether all pods are on nodes, so that it is known that nothing is announced for these."""
    return all(gang.scheduled for gang in view.gangs)


def _until_notice(view: JobView) -> float | None:
    """Seconds until the end of one of the job's nodes counts as announced."""
    nodes = (view.snapshot.nodes.of(pod) for pod in view.current)
    mortal = (node for node in nodes if node and node.metadata.annotations.machine_end)
    left = [seconds for node in mortal if (seconds := notices.until_notice(node, view.now, view.ahead))]
    return min(left, default=None)


# When.


def _known_since(view: JobView) -> datetime:
    conditions = view.status.conditions
    known = (ConditionType.MAINTENANCE_SCHEDULED, "True")
    since = next((c.last_transition_time for c in conditions if (c.type, c.status) == known), None)
    return since or view.now.replace(microsecond=0)


def _move_time(view: JobView, notice: Notice) -> datetime:
    """When to move: `leadSeconds` before it begins, or when half of the time is over that there was."""
    since, maintenance = _known_since(view), view.job.spec.maintenance
    if notice.start is None or notice.start <= since or maintenance.on_notice == MaintenanceAction.RESTART:
        return since
    early = min(timedelta(seconds=maintenance.lead_seconds), (notice.start - since) / 2)
    return (notice.start - early).replace(microsecond=0)


def _told(view: JobView, notice: Notice) -> Told:
    """What to tell the pods: the last moment to save something is `leadSeconds` before they move."""
    lead = timedelta(seconds=view.job.spec.maintenance.lead_seconds)
    return Told(notice.start, max(_known_since(view), _move_time(view, notice) - lead))


# Where.


def _due(view: JobView, gang: Gang, affected: Affected) -> set[int]:
    """Slices for which it is time to move; others stay where they are for now, even with a notice."""
    due = [pod for pod in affected.pods if _move_time(view, gang.notices[pod.name]) <= view.now]
    slices = {whole(pod.metadata.labels.get(names.LABEL_SLICE)) for pod in due}
    return {index for index in slices if index is not None}


def _room(view: JobView, gang: Gang, factory: PodFactory, due: set[int]) -> Mapping[int, str] | None:
    """Node pools for the slices of a gang of which some have to move; None if there is no room for these.

    Spares make up for pools that are lacking. Where the scheduler chooses nodes there is nothing to name.
    """
    more = len(spares.usable(view, factory))
    if not factory.chooses_pools:
        free = spares.free_nodes(view, factory) // factory.demand.hosts
        return {} if len(due) <= free + more else None
    known, shunned = homes.recorded(view), homes.shunned(view)
    stay = {known.get(index) for index in gang.slices if index not in due}
    found = homes.choose(
        view, factory, gang.slices, lambda pool: pool not in stay and shunned(pool), strict=True
    )
    return found if len(gang.slices) <= len(found) + more else None


def _take(view: JobView, draft: Draft, gang: Gang, factory: PodFactory, pools: Mapping[int, str]) -> None:
    """Make the pools, and those of spares for slices that lack one, the homes of the slices.

    They are theirs from now on, or two jobs could move for the sake of the same one, and slices that can wait
    could get what those that have to go need.
    """
    draft.assign(pools)
    if factory.chooses_pools:
        lacking = [index for index in gang.slices if index not in pools]
        for index, spare in zip(lacking, spares.usable(view, factory), strict=False):
            draft.hand_over(spare.slices[0], index, spares.home(spare))


def _reason_to_move(view: JobView, gang: Gang, factory: PodFactory, pod: Pod) -> Failure | None:
    """The restart that a move is, as a failure; None if the job may not, or already did for this notice."""
    text = f"{gang.notices[pod.name].text}: moved ahead of it"
    found = gang.numbered(failures.outside(pod, Cause.MAINTENANCE, text, view.now))
    policy = view.job.spec.failure_policy
    allowed = restart.action_for(found, policy) in {RuleAction.RESTART, RuleAction.RESTART_UNCOUNTED}
    if not allowed or _moved(gang, factory, found) or restart.fatal(found, policy, view.status.restarts):
        return None
    return found


def _first(gang: Gang, pods: Iterable[Pod]) -> Pod | None:
    """The host with the notice that comes first; heads do not make a gang move."""
    workers = [pod for pod in pods if names.LABEL_SLICE in pod.metadata.labels]
    return min(workers, key=lambda pod: _order(gang.notices[pod.name]), default=None)


def _moved(gang: Gang, factory: PodFactory, found: Failure) -> bool:
    """Whether a gang has moved for this notice before, and is back: it would come back again.

    An attempt that we have put there ourselves, since the pool it was to go to was lost in between, has not
    moved yet.
    """
    last = gang.last
    if last is None or (last.cause, last.message) != (found.cause, found.message):
        return False
    return not factory.chooses_pools or last.attempt != gang.number - 1


# In words.


def _where(view: JobView, pods: Iterable[Pod]) -> str:
    """The slices, and the node pools that they are in."""
    nodes = [node for pod in pods if (node := view.snapshot.nodes.of(pod))]
    places = sorted({f"node pool {n.pool}" if n.pool else f"node {n.metadata.name}" for n in nodes})
    slices = {whole(pod.metadata.labels.get(names.LABEL_SLICE)) for pod in pods}
    who = [f"slice {index}" for index in sorted(s for s in slices if s is not None)] or ["head"]
    return f"{some(who)} in {some(places)}" if places else some(who)


def _when(notice: Notice) -> str:
    if notice.active:
        return "maintenance is under way"
    return f"maintenance at {notices.stamp(notice.start)}" if notice.start else "maintenance at any time"


def _what_follows(view: JobView, notice: Notice) -> str:
    time = _move_time(view, notice)
    when = f"from {notices.stamp(time)} on" if time > _known_since(view) else "at once"
    return f"it moves to other nodes {when}, if there is room"


def _annotated(pod: Pod, text: str) -> Manifest:
    """A pod as server-side apply wants it, with all that we have to say of it after its creation."""
    meta = pod.metadata
    identity = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
    told = {"annotations": {names.ANNOTATION_MAINTENANCE: text}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": identity | told}

"""Spare slices: they hold node pools, with the image there, until one of the job's slices needs theirs.

A spare is a gang of its own that counts for nothing: its pods wait, its failures are charged to nobody. When
a slice has lost its node pool, a spare gives its own up: the attempt of the spare is over, and the slice has
the pool as its home (docs/adr/0008-spares-give-their-pool-up.md).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from tpu_operator.api import Cause
from tpu_operator.core import failures, names, pending, placement
from tpu_operator.core.notices import notice_of

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
LONGEST_PAUSE: Final = 300.0
"""Seconds between two attempts of a spare that keeps failing."""


def give_up(view: JobView, draft: Draft, factory: PodFactory) -> Plan | None:
    """End the attempts of spares that are taken over, or of no use as they are."""
    taken = _takeovers(view, factory)
    for gang in view.spares:
        (index,) = gang.slices
        if index in taken:
            draft.hand_over(index, taken[index], home(gang))
        elif failure := _failure(view, gang):
            draft.replace_spare(index, failure)
        elif gang.outdated(factory.revision):
            draft.replace_spare(index, None)
    return draft.plan() if draft.spares_changed else None


def vacating(view: JobView) -> list[Pod]:
    """Pods of spares that still are in pools which were given to slices without pods."""
    homes = {s.node_pool for s in view.status.slices if s.index in _without_pods(view)}
    return [pod for gang in view.spares for pod in gang.stale if _pool(view, pod) in homes]


def reserved(view: JobView) -> Mapping[str, str]:
    """Pools that slices have been given and whose spares still have to leave, with the slices' IDs."""
    leaving = {_pool(view, pod) for pod in vacating(view)}
    uid, bare = view.job.metadata.uid, _without_pods(view)
    return {
        s.node_pool: names.slice_id(uid, s.index)
        for s in view.status.slices
        if s.index in bare and s.node_pool in leaving
    }


def creates(view: JobView, draft: Draft, factory: PodFactory) -> tuple[Manifest, ...]:
    """Pods that spares lack, where there is room for them, once all slices have theirs on nodes."""
    if not view.spares or not all(gang.scheduled for gang in view.gangs):
        return ()
    manifests: list[Manifest] = []
    lacking = [gang for gang in view.spares if gang.absent and not gang.stale]
    due = [gang for gang in lacking if not _pause(view, gang)]
    for gang in lacking:
        draft.requeue(_pause(view, gang) or None)
    pools = _pools(view, factory, due)
    for gang in due:
        (index,) = gang.slices
        if index in pools:
            manifests += [
                factory.spare(index, member.host or 0, gang.attempt, pools[index]) for member in gang.absent
            ]
        else:
            draft.requeue(LOOK_AGAIN)
    if view.snapshot.quotas.shortage(manifests):
        draft.requeue(LOOK_AGAIN)
        return ()
    return tuple(manifests)


def only_these_lack(view: JobView) -> bool:
    """Whether all pods are there but some of spares, so that a refusal is about these."""
    return bool(view.spares) and not any(gang.absent for gang in view.gangs)


def usable(view: JobView, factory: PodFactory) -> list[Gang]:
    """Spares that stand ready in a node pool that is well, and of which no maintenance is announced."""
    fits, shunned = view.snapshot.pools.fits, placement.shunned(view.snapshot.pools, view.now)
    uid = view.job.metadata.uid
    found = []
    for gang in view.spares:
        if not gang.scheduled or gang.stale or _failure(view, gang):
            continue
        if factory.chooses_pools:
            pool, slice_id = home(gang), names.slice_id(uid, gang.slices[0])
            if not pool or shunned(pool) or not fits(pool, factory.demand, slice_id):
                continue
        found.append(gang)
    return found


def home(gang: Gang) -> str:
    """The node pool that was chosen for a spare; empty where none was."""
    return next((pod.spec.node_selector.pool for pod in gang.current), "")


def has_room(view: JobView, factory: PodFactory) -> bool:
    """Whether one more slice would find nodes of which no maintenance is announced."""
    if not factory.exclusive:
        return free_nodes(view, factory) >= factory.demand.hosts
    pools = view.snapshot.pools
    shunned = placement.shunned(pools, view.now)
    return bool(placement.choose(pools, factory.demand, {"": None}, shunned, strict=True))


def free_nodes(view: JobView, factory: PodFactory) -> int:
    """Nodes of the kind that are free and of which no maintenance is announced."""
    pools, demand = view.snapshot.pools, factory.demand
    return sum(
        demand.suits(node) and not pools.tenants_on(node.metadata.name) and notice_of(node, view.now) is None
        for pool in pools.of(demand.selector)
        for node in pools.nodes(pool)
    )


def _takeovers(view: JobView, factory: PodFactory) -> dict[int, int]:
    """Spares that give their place up, each with the slice that gets it."""
    if not view.spares or not (needy := _needy(view, factory)):
        return {}
    return dict(zip((gang.slices[0] for gang in usable(view, factory)), needy, strict=False))


def _needy(view: JobView, factory: PodFactory) -> list[int]:
    """Slices that have lost their node pool, or for whose pods the scheduler finds no room."""
    by_slice = {index: pods for gang in view.gangs for index, pods in gang.by_slice.items()}
    waiting = {index for index, pods in by_slice.items() if any(map(pending.unscheduled, pods))}
    leaving = {_pool(view, pod) for gang in view.spares for pod in gang.stale}
    # Where there is room, or soon will be, the scheduler only has to look again.
    found = set() if leaving or (waiting and has_room(view, factory)) else waiting
    if factory.chooses_pools:
        fits, shunned = view.snapshot.pools.fits, placement.shunned(view.snapshot.pools, view.now)
        uid, bare = view.job.metadata.uid, _without_pods(view)
        found |= {
            s.index
            for s in view.status.slices
            if s.index in bare and s.node_pool and s.node_pool not in leaving
            if shunned(s.node_pool) or not fits(s.node_pool, factory.demand, names.slice_id(uid, s.index))
        }
    return sorted(found)


def _without_pods(view: JobView) -> set[int]:
    """Slices of which no pod of the present attempt is there."""
    return {
        index
        for gang in view.gangs
        for index, pods in gang.by_slice.items()
        if not pods and index not in gang.done
    }


def _failure(view: JobView, gang: Gang) -> Failure | None:
    """What makes a spare useless."""
    found = failures.root(gang.failures(view.now))
    if found is not None:
        return found
    ended = next((pod for pod in gang.current if pod.finished), None)
    if ended is not None:
        return failures.outside(ended, Cause.LAUNCHER_ERROR, "the spare has ended", view.now)
    if gang.current and pending.pinned_in_vain(gang.current, view.now):
        return failures.outside(
            gang.current[0], Cause.PLACEMENT_MISMATCH, "its node pool has no room after all", view.now
        )
    return None


def _pause(view: JobView, gang: Gang) -> float:
    """Seconds to wait before a spare that has failed is made again."""
    (index,) = gang.slices
    last = next((s.last_failure for s in view.status.slices if s.index == index), None)
    if last is None or last.time is None:
        return 0.0
    wait = timedelta(seconds=min(2.0 ** min(gang.attempt, 16), LONGEST_PAUSE))
    return max(0.0, (last.time + wait - view.now).total_seconds())


def _pools(view: JobView, factory: PodFactory, due: Iterable[Gang]) -> dict[int, str]:
    """Node pools for spares, empty ones where the scheduler chooses; spares without room are left out."""
    begun = {gang.slices[0]: home(gang) for gang in due if gang.current}
    wanted = [gang.slices[0] for gang in due if not gang.current]
    if not factory.chooses_pools:
        fixed = factory.exclusive or not wanted
        room = 0 if fixed else free_nodes(view, factory) // factory.demand.hosts
        return begun | dict.fromkeys(wanted[:room], "")
    pools, uid = view.snapshot.pools, view.job.metadata.uid
    by_id = {names.slice_id(uid, index): index for index in wanted}
    shunned = placement.shunned(pools, view.now)
    found = placement.choose(pools, factory.demand, dict.fromkeys(by_id), shunned, strict=True)
    return begun | {by_id[slice_id]: pool for slice_id, pool in found.items()}


def _pool(view: JobView, pod: Pod) -> str:
    """The node pool that a pod is in, or is to be."""
    node = view.snapshot.nodes.of(pod)
    return node.pool if node else pod.spec.node_selector.pool

"""Spare slices: they hold node pools, with the image there, until one of the job's slices needs theirs.

A spare is a gang of its own that counts for nothing: its pods wait, its failures are charged to nobody. When
a slice has lost its node pool, a spare gives its own up: the attempt of the spare is over, and the slice has
the pool as its home (docs/adr/0008-spares-give-their-pool-up.md).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from tpu_operator.api import Cause
from tpu_operator.core import failures, homes, pending, placement
from tpu_operator.core.notices import notice_of
from tpu_operator.core.quota import demand

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
    """End the attempts of spares that are taken over, or of no use as they are.

    One that was made from another template, or by another version of the operator, is of use: it holds its
    node pool, and whatever takes it over is made anew.
    """
    taken = _takeovers(view, factory)
    for gang in view.spares:
        (index,) = gang.slices
        if index in taken:
            draft.hand_over(index, taken[index], home(gang))
        elif failure := _failure(view, gang):
            draft.replace_spare(index, failure)
    return draft.plan() if draft.spares_changed else None


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
    if not all(pools.values()):
        factory = homes.away_from_maintenance(view, factory)
    for gang in due:
        (index,) = gang.slices
        if index in pools:
            manifests += [
                factory.spare(index, member.host or 0, gang.attempt, pools[index]) for member in gang.absent
            ]
        else:
            draft.requeue(LOOK_AGAIN)
    if view.snapshot.quotas.shortage(demand(manifests)):
        draft.requeue(LOOK_AGAIN)
        return ()
    return tuple(manifests)


def only_these_lack(view: JobView) -> bool:
    """Whether all pods are there but some of spares, so that a refusal is about these."""
    return bool(view.spares) and not any(gang.absent for gang in view.gangs)


def usable(view: JobView, factory: PodFactory) -> list[Gang]:
    """Spares that stand ready in a node pool that is well, and of which no maintenance is announced."""
    fits, shunned = view.snapshot.pools.fits, homes.shunned(view)
    found = []
    for gang in view.spares:
        if not gang.scheduled or gang.stale or _failure(view, gang):
            continue
        if factory.chooses_pools:
            pool, slice_id = home(gang), homes.slice_id(view, gang.slices[0])
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
    shunned = homes.shunned(view)
    return bool(placement.choose(pools, factory.demand, {"": None}, shunned, strict=True))


def free_nodes(view: JobView, factory: PodFactory) -> int:
    """Nodes of the kind that are free and of which no maintenance is announced."""
    pools, demand = view.snapshot.pools, factory.demand
    return sum(
        not pools.tenants_on(node.metadata.name) and notice_of(node, view.now, view.ahead) is None
        for pool in pools.of(demand.selector)
        for node in pools.usable(pool, demand)
    )


def _takeovers(view: JobView, factory: PodFactory) -> dict[int, int]:
    """Spares that give their place up, each with the slice that gets it."""
    if not view.spares or not (needy := _needy(view, factory)):
        return {}
    return dict(zip((gang.slices[0] for gang in usable(view, factory)), needy, strict=False))


def _needy(view: JobView, factory: PodFactory) -> list[int]:
    """Slices that have lost their node pool, or for whose pods the scheduler finds no room."""
    by_slice = {index: pods for gang in view.gangs for index, pods in gang.by_slice.items()}
    waiting = {index for index, pods in by_slice.items() if _without_room(view, factory, index, pods)}
    leaving = {homes.pool_of(view, pod) for gang in view.spares for pod in gang.stale}
    # Where there is room, or soon will be, the scheduler only has to look again.
    found = set() if leaving or (waiting and has_room(view, factory)) else waiting
    if factory.chooses_pools:
        fits, shunned = view.snapshot.pools.fits, homes.shunned(view)
        bare = homes.without_pods(view)
        found |= {
            s.index
            for s in view.status.slices
            if s.index in bare and s.node_pool and s.node_pool not in leaving
            if shunned(s.node_pool) or not fits(s.node_pool, factory.demand, homes.slice_id(view, s.index))
        }
    return sorted(found)


def _without_room(view: JobView, factory: PodFactory, index: int, pods: Sequence[Pod]) -> bool:
    """Whether another place would help the pods of a slice.

    What waits for a volume would wait there as well. And in a pool that looks well to us, the scheduler has
    as much time to find room as it has without spares.
    """
    if not any(pending.wants_room(pod) for pod in pods):
        return False
    pool = pods[0].spec.node_selector.pool if factory.chooses_pools else ""
    well = bool(pool) and view.snapshot.pools.fits(pool, factory.demand, homes.slice_id(view, index))
    return not well or pending.pinned_in_vain(pods, view.now)


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
    return begun | homes.choose(view, factory, wanted, homes.shunned(view), strict=True)

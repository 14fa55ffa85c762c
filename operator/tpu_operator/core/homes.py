"""Homes: the node pools that slices were in, or were given, and that are kept for them until they have pods.

A slice that restarts has no pods for a while: its old ones end at different times, and there may be a pause.
Were its pool free meanwhile, another job could take it, and two jobs of several slices could wait for each
other's for ever (docs/adr/0005-the-operator-chooses-node-pools.md).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tpu_operator.core import names, notices, placement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tpu_operator.core.jobview import JobView
    from tpu_operator.core.objects.pods import PodFactory
    from tpu_operator.core.snapshot import Pod

MOST_AVOIDED: Final = 64
"""Nodes that a pod names, those that end first: its size is limited, and every pod of a job names them."""


def slice_id(view: JobView, index: int) -> str:
    """The ID by which a slice holds its node pool."""
    return names.slice_id(view.job.metadata.uid, index)


def recorded(view: JobView) -> Mapping[int, str | None]:
    """The home of each slice, by its index."""
    return {s.index: s.node_pool for s in view.status.slices}


def shunned(view: JobView) -> Callable[[str], bool]:
    """Tells node pools that a job had better not go to, as maintenance is ahead, from others."""
    return placement.shunned(view.snapshot.pools, view.now, view.ahead)


def choose(
    view: JobView,
    factory: PodFactory,
    indexes: Iterable[int],
    avoid: Callable[[str], bool],
    *,
    strict: bool = False,
) -> dict[int, str]:
    """A node pool for each of these slices that there is one for; the homes of others stay theirs.

    Args:
        view: the job.
        factory: what makes its pods.
        indexes: the slices.
        avoid: tells pools that are taken only where there is no other.
        strict: not even then.
    """
    by_id = {slice_id(view, index): index for index in sorted(indexes)}
    known, others = recorded(view), held(view).items()
    found = placement.choose(
        view.snapshot.pools,
        factory.demand,
        {key: known.get(index) for key, index in by_id.items()},
        avoid,
        strict=strict,
        kept={home for index, home in others if slice_id(view, index) not in by_id},
    )
    return {by_id[key]: pool for key, pool in found.items()}


def without_pods(view: JobView) -> set[int]:
    """Slices of which no pod of the present attempt is there."""
    return {
        index
        for gang in view.gangs
        for index, pods in gang.by_slice.items()
        if not pods and index not in gang.done
    }


def vacating(view: JobView) -> list[Pod]:
    """Pods of spares that still are in pools which were given to slices without pods."""
    leaving = [pod for gang in view.spares for pod in gang.stale]
    if not leaving:
        return []
    known, bare = recorded(view), without_pods(view)
    given = {known.get(index) for index in bare}
    return [pod for pod in leaving if pool_of(view, pod) in given]


def held(view: JobView) -> Mapping[int, str]:
    """Homes of the slices that nothing else holds one for: their pods have ended, or are not made yet."""
    known = recorded(view)
    return {
        index: home
        for gang in view.gangs
        for index, pods in gang.by_slice.items()
        if index not in gang.done and all(pod.finished for pod in pods) and (home := known.get(index))
        # A slice that has succeeded needs none any more.
        if not (pods and all(map(gang.is_done, pods)))
    }


def reserved(view: JobView, factory: PodFactory, homes: Mapping[int, str]) -> Mapping[str, str]:
    """Homes to keep from others, with the IDs of their slices: those that are whole, and free but for these.

    A spare that has given its pool up may still be in it.
    """
    if not factory.exclusive:
        return {}
    fits, leaving = view.snapshot.pools.fits, {pool_of(view, pod) for pod in vacating(view)}
    return {
        home: slice_id(view, index)
        for index, home in homes.items()
        if home in leaving or fits(home, factory.demand, slice_id(view, index))
    }


def away_from_maintenance(view: JobView, factory: PodFactory) -> PodFactory:
    """The same factory, which keeps what the scheduler places off nodes that are to go, as far as it can.

    Those whose maintenance is scheduled are told by their label.
    """
    pools, demand = view.snapshot.pools, factory.demand
    ends = [
        (notice.start or view.now, node.metadata.name)
        for pool in pools.of(demand.selector)
        for node in pools.nodes(pool)
        if notices.SCHEDULED not in node.metadata.labels
        and (notice := notices.notice_of(node, view.now, view.ahead))
    ]
    return (
        replace(factory, avoided=tuple(name for _, name in sorted(ends)[:MOST_AVOIDED])) if ends else factory
    )


def pool_of(view: JobView, pod: Pod) -> str:
    """The node pool that a pod is in, or is to be."""
    node = view.snapshot.nodes.of(pod)
    return node.pool if node else pod.spec.node_selector.pool

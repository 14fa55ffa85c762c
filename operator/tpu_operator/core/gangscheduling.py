"""Which slices are scheduled as PodGroups, and what becomes of PodGroups (docs/adr/0007).

A PodGroup costs one write. It helps where a slice might get some of its nodes and hold them for ever while it
waits for the rest. A slice for which the operator sees a free node pool gets all of them, so that Auto makes
no PodGroup for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpu_operator.api import BlockedReason, GangPolicy
from tpu_operator.core import names
from tpu_operator.core.grouping import Grouping
from tpu_operator.core.objects import podgroups
from tpu_operator.core.objects.pods import owner_reference
from tpu_operator.core.pending import Hold

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpu_operator.core.jobview import JobView
    from tpu_operator.core.objects.pods import PodFactory
    from tpu_operator.core.plan import Manifest
    from tpu_operator.core.slicegroup import Gang
    from tpu_operator.core.snapshot import PodGroup

UNSERVED: Final = Hold(
    BlockedReason.CREATE_REFUSED,
    "spec.scheduling.gang is PodGroup, and this cluster serves no PodGroups: its API server and scheduler "
    "need the feature gate GenericWorkload and the API scheduling.k8s.io/v1beta1 (Kubernetes 1.37); or set "
    "gang to Auto or None",
)


def unserved(view: JobView) -> Hold | None:
    """What is said when the job insists on PodGroups and the cluster has none."""
    asked = view.job.spec.scheduling.gang is GangPolicy.POD_GROUP
    return UNSERVED if asked and view.snapshot.pod_groups is None else None


def choose(
    view: JobView, factory: PodFactory, gangs: Iterable[Gang], pools: Mapping[int, str]
) -> dict[int, str]:
    """Names of the PodGroups that new pods join, by slice; a slice that has pods goes on as it is.

    Args:
        view: the job.
        factory: makes its pods.
        gangs: those that lack pods.
        pools: the node pools that their slices are pinned to.
    """
    found = {}
    for gang in gangs:
        for index in {m.slice_index for m in gang.absent if m.slice_index is not None}:
            pods = gang.by_slice[index]
            joined = bool(pods and pods[0].spec.scheduling_group.pod_group_name)
            if joined or (not pods and _wanted(view, factory, index, pools.get(index, ""))):
                found[index] = names.slice_name(view.job.metadata.name, index)
    return found


def _wanted(view: JobView, factory: PodFactory, index: int, pool: str) -> bool:
    gang = view.job.spec.scheduling.gang
    if gang is not GangPolicy.AUTO:
        return gang is GangPolicy.POD_GROUP
    if view.snapshot.pod_groups is None or view.spec.shape.hosts == 1:
        return False
    return not (pool or _has_room(view, factory, index))


def _has_room(view: JobView, factory: PodFactory, index: int) -> bool:
    """Whether the node pool that the job itself names is free for a slice."""
    pool = factory.demand.selector.get(names.NODE_POOL, "")
    slice_id = names.slice_id(view.job.metadata.uid, index)
    return factory.exclusive and view.snapshot.pools.fits(pool, factory.demand, slice_id)


def absent(view: JobView, factory: PodFactory, joined: Mapping[int, str]) -> list[Manifest]:
    """PodGroups to make: those that pods of a present attempt are in, or are about to be."""
    return [_manifest(view, factory, name) for name in _grouping(view).absent(joined.values())]


def leftovers(view: JobView, factory: PodFactory) -> list[PodGroup]:
    """PodGroups of ours that no pod of a present attempt is in, and that none could join as they are."""
    hosts, priority = view.spec.shape.hosts, factory.priority_class
    return _grouping(view).leftovers(lambda group: podgroups.fits(group, hosts, priority))


def in_the_way(view: JobView, groups: Iterable[PodGroup]) -> bool:
    """Whether one of these has a name that pods which are to be made may need."""
    return bool(_grouping(view).in_the_way(groups))


def mine(view: JobView) -> list[PodGroup]:
    """The job's PodGroups."""
    return _grouping(view).mine


def _grouping(view: JobView) -> Grouping:
    meta = view.job.metadata
    slices = ((index, pods) for gang in view.gangs for index, pods in gang.by_slice.items())
    idle = {names.slice_name(meta.name, index) for index, pods in slices if not pods}
    return Grouping(view.snapshot.pod_groups, meta.uid, view.current, idle)


def _manifest(view: JobView, factory: PodFactory, name: str) -> Manifest:
    meta = view.job.metadata
    metadata = {"name": name, "namespace": meta.namespace, "labels": view.selector}
    return podgroups.pod_group(
        metadata, owner_reference(view.job), view.spec.shape.hosts, factory.priority_class
    )

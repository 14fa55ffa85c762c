"""Which replicas are scheduled as PodGroups: those that no node pool was seen free for (docs/adr/0007)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpu_operator.core import names
from tpu_operator.core.grouping import Grouping
from tpu_operator.core.inference.factory import owner_reference
from tpu_operator.core.objects import podgroups

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpu_operator.core.inference.factory import RoleFactory
    from tpu_operator.core.inference.groups import Group, GroupKey
    from tpu_operator.core.inference.view import InferenceView
    from tpu_operator.core.plan import Manifest
    from tpu_operator.core.snapshot import PodGroup


def name_of(view: InferenceView, key: GroupKey) -> str:
    """Name of the PodGroup of a replica."""
    return names.slice_name(names.role_name(view.name, key.role, key.revision), key.index)


def joined(view: InferenceView, group: Group, factory: RoleFactory, pool: str) -> str:
    """Name of the PodGroup that new pods of a replica join; empty for none. They follow those there are.

    Args:
        view: the object.
        group: the replica.
        factory: makes its pods.
        pool: the node pool that they are pinned to; empty if the scheduler chooses.
    """
    if pods := group.gang.current:
        return pods[0].spec.scheduling_group.pod_group_name
    if view.snapshot.pod_groups is None or group.hosts == 1 or pool or _has_room(view, group, factory):
        return ""
    return name_of(view, group.key)


def absent(view: InferenceView, new: Mapping[str, RoleFactory]) -> list[Manifest]:
    """PodGroups to make.

    Args:
        view: the object.
        new: what makes the pods that are about to be in PodGroups, by the names of these.
    """
    made_by = {**_factories(view, view.groups), **new}
    return [_manifest(view, name, made_by[name]) for name in _grouping(view).absent(new) if name in made_by]


def leftovers(view: InferenceView) -> list[PodGroup]:
    """PodGroups of ours that no pod is in, and that none could join as they are."""
    made_by = _factories(view, view.kept)

    def fits(group: PodGroup) -> bool:
        factory = made_by.get(group.metadata.name)
        return factory is not None and podgroups.fits(group, factory.shape.hosts, factory.priority_class)

    return _grouping(view).leftovers(fits)


def _has_room(view: InferenceView, group: Group, factory: RoleFactory) -> bool:
    """Whether the node pool that the role itself names is free for a replica."""
    pool = factory.demand.selector.get(names.NODE_POOL, "")
    slice_id = factory.slice_id(group.key.index)
    return factory.exclusive and view.snapshot.pools.fits(pool, factory.demand, slice_id)


def _grouping(view: InferenceView) -> Grouping:
    pods = [pod for group in view.groups for pod in group.gang.current]
    idle = {name_of(view, group.key) for group in view.kept if not group.gang.current}
    return Grouping(view.snapshot.pod_groups, view.inference.metadata.uid, pods, idle)


def _factories(view: InferenceView, groups: Iterable[Group]) -> dict[str, RoleFactory]:
    """What makes the pods of replicas, by the names of their PodGroups."""
    return {name_of(view, group.key): factory for group in groups if (factory := view.factory(group.key))}


def _manifest(view: InferenceView, name: str, factory: RoleFactory) -> Manifest:
    namespace = view.inference.metadata.namespace
    metadata = {"name": name, "namespace": namespace, "labels": view.selector}
    owner = owner_reference(view.inference)
    return podgroups.pod_group(metadata, owner, factory.shape.hosts, factory.priority_class)

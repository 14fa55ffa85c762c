"""Which node pool each replica goes to, and the pools that are kept for replicas which have no pods."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tpu_operator.core import notices, placement
from tpu_operator.core.inference.view import LEAD_SECONDS
from tpu_operator.core.missing import LEFT_TO_SCHEDULER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tpu_operator.core.inference.factory import RoleFactory
    from tpu_operator.core.inference.groups import Group, GroupKey
    from tpu_operator.core.inference.view import InferenceView


def pools(view: InferenceView, groups: Iterable[Group]) -> dict[GroupKey, str]:
    """Node pools of replicas that lack pods; those that are not named are left to the scheduler."""
    found: dict[GroupKey, str] = {}
    wanted: defaultdict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in groups:
        if group.gang.current:
            found[group.key] = group.gang.current[0].spec.node_selector.pool
        elif not _left_to_scheduler(group):
            wanted[group.key.revision, group.key.role].append(group)
    for key, waiting in wanted.items():
        if factory := _choosing(view, key):
            found |= _choose(view, factory, waiting, {pool for pool in found.values() if pool})
    return found


def reserved(view: InferenceView) -> Mapping[str, str]:
    """Homes to keep from others, with the IDs of their replicas: those whose old pods have ended."""
    fits, held = view.snapshot.pools.fits, {}
    for group in view.kept:
        home, factory = _home(group), view.factory(group.key)
        if not (home and factory and factory.exclusive and _bare(group)):
            continue
        slice_id = factory.slice_id(group.key.index)
        if fits(home, factory.demand, slice_id):
            held[home] = slice_id
    return held


def _choosing(view: InferenceView, key: tuple[str, str]) -> RoleFactory | None:
    factory = view.factories.get(key)
    return factory if factory is not None and factory.chooses_pools else None


def _choose(
    view: InferenceView, factory: RoleFactory, groups: list[Group], taken: set[str]
) -> dict[GroupKey, str]:
    by_id = {factory.slice_id(group.key.index): group for group in groups}
    others = {home for group in view.kept if group not in groups and _bare(group) and (home := _home(group))}
    vacated = _vacated(view, factory.role.name)
    homes = {slice_id: _home(group) or next(vacated, None) for slice_id, group in by_id.items()}
    chosen = placement.choose(
        view.snapshot.pools,
        factory.demand,
        {slice_id: None if home in taken else home for slice_id, home in homes.items()},
        placement.shunned(view.snapshot.pools, view.now, notices.horizon(LEAD_SECONDS)),
        kept=taken | others,
    )
    return {by_id[slice_id].key: pool for slice_id, pool in chosen.items()}


def _vacated(view: InferenceView, role: str) -> Iterator[str]:
    """Node pools of replicas of a role that have just gone: their successors find images and caches there."""
    gone = (group for group in view.groups if group.leaving and group.gone and group.key.role == role)
    return (home for group in gone if (home := _home(group)))


def _home(group: Group) -> str | None:
    return group.record.node_pool if group.record else None


def _bare(group: Group) -> bool:
    return all(pod.finished for pod in group.gang.current)


def _left_to_scheduler(group: Group) -> bool:
    """Whether the last choice of a pool did not work out."""
    return group.record is not None and group.record.reason == LEFT_TO_SCHEDULER

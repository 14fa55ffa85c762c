"""The pods that replicas lack."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpu_operator.core.inference import goals, grouping, placing, repair
from tpu_operator.core.inference.groups import Group
from tpu_operator.core.inference.ratio import one_by_one
from tpu_operator.core.missing import AT_ONCE
from tpu_operator.core.quota import demand
from tpu_operator.core.slicegroup import Gang, workers

if TYPE_CHECKING:
    from collections.abc import Container

    from tpu_operator.core.inference.draft import Draft
    from tpu_operator.core.inference.factory import RoleFactory
    from tpu_operator.core.inference.groups import GroupKey
    from tpu_operator.core.inference.view import InferenceView
    from tpu_operator.core.pending import Hold
    from tpu_operator.core.plan import Manifest
    from tpu_operator.core.quota import Use
    from tpu_operator.core.slicegroup import Member


@dataclass(slots=True)
class Missing:
    """Pods to make.

    Attributes:
        lists: ConfigMaps that they refer to, by name.
        grouped: what makes those that join PodGroups, by the names of these.
        pods: their manifests.
        demand: what these use of quotas.
        conflicts: what stands against making some of them.
        shortage: the quota that has no room for all hosts of some replica, of which then none is made.
    """

    lists: dict[str, Manifest] = field(default_factory=dict)
    grouped: dict[str, RoleFactory] = field(default_factory=dict)
    pods: list[Manifest] = field(default_factory=list)
    demand: Counter[Use] = field(default_factory=Counter)
    conflicts: list[str] = field(default_factory=list)
    shortage: Hold | None = None


def missing_pods(draft: Draft, taken: Container[str] = ()) -> Missing:
    """The pods that replicas lack, those just decided on included; of many, those that come first.

    Args:
        draft: what has been decided.
        taken: names of PodGroups that have to be gone first, as others of these names may be needed.
    """
    view = draft.view
    found = Missing()
    groups = [
        group
        for group in _candidates(draft)
        if _may_start(draft, group) and grouping.name_of(view, group.key) not in taken
    ]
    pools = placing.pools(view, groups)
    for group in groups:
        if len(found.pods) >= AT_ONCE:
            break  # a later decision makes the others
        _add(view, group, pools.get(group.key, ""), found)
    return found


def _candidates(draft: Draft) -> list[Group]:
    """Replicas to stay, and those to come: first what was there before, then the others in ratio."""
    view = draft.view
    begun: list[Group] = []
    new: list[Group] = []
    for group in view.kept:
        if not draft.decided(group.key):
            (begun if group.gang.pods or group.gang.attempt else new).append(group)
    for key, known, record in draft.records:
        if known is None:
            gang = Gang(_members(view, key), attempt=record.attempt, pods={}, started=False)
            new.append(Group(key, gang, record))
    return [*begun, *one_by_one(new, begun, goals.targets(view))]


def _members(view: InferenceView, key: GroupKey) -> tuple[Member, ...]:
    factory = view.factory(key)
    if factory is None:
        return ()
    return workers(factory.base, (key.index,), factory.shape.hosts)


def _may_start(draft: Draft, group: Group) -> bool:
    """Whether a replica lacks pods, and none is in their way."""
    if not group.gang.absent or group.gang.stale:
        return False
    wait = repair.pause(group, draft.view)
    draft.requeue(wait or None)
    return not wait and not any(member.name in draft.view.foreign for member in group.gang.absent)


def _add(view: InferenceView, group: Group, pool: str, found: Missing) -> None:
    """The pods of one replica, all of them or none."""
    factory = view.factory(group.key)
    if factory is None:
        return
    if factory.problems:
        found.conflicts += factory.problems
        return
    gang = grouping.joined(view, group, factory, pool)
    built = [
        factory.pod(group.key.index, member.host or 0, group.gang.attempt, pool, gang)
        for member in group.gang.absent
    ]
    pods = [each.manifest for each in built]
    needed = found.demand + demand(pods)
    if short := view.snapshot.quotas.shortage(needed):
        found.shortage = found.shortage or short
        return
    if gang:
        found.grouped[gang] = factory
    found.pods += pods
    found.demand = needed
    found.lists |= {each.lists["metadata"]["name"]: each.lists for each in built if each.lists}

"""The pods that a job lacks: where they go, and how they look."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tpu_operator.core import gangscheduling, homes, quota
from tpu_operator.core.objects.template import problem, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tpu_operator.api import TPUJob
    from tpu_operator.core.jobview import JobView
    from tpu_operator.core.objects.pods import PodFactory
    from tpu_operator.core.plan import Manifest
    from tpu_operator.core.quota import Use
    from tpu_operator.core.slicegroup import Gang, Member

AT_ONCE: Final = 1024
"""Pods that one decision makes: it takes 0.3 ms and 20 KB for each, and the lease is lost after 8 s."""
COPIED: Final = 250_000
"""Values of the user's that one decision copies into pods, which takes a microsecond for each."""
LEFT_TO_SCHEDULER: Final = "NodePoolUnavailable"
"""Reason of an attempt for which no node pools are chosen, since the last choice did not work out."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Pods to make.

    Attributes:
        lists: ConfigMaps that they refer to.
        groups: PodGroups that they are scheduled with.
        pods: manifests of those that come first.
        demand: what all of them use of the namespace's quotas, those that come later included.
        reserved: node pools of slices that come later, with their IDs.
        conflicts: what stands against making them; there are no pods then.
        overrides: variables of ours that the user has set differently; the user's values stand.
    """

    lists: Sequence[Manifest] = ()
    groups: Sequence[Manifest] = ()
    pods: Sequence[Manifest] = ()
    demand: Counter[Use] = field(default_factory=Counter)
    reserved: Mapping[str, str] = field(default_factory=dict)
    conflicts: list[str] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)


def template_faults(job: TPUJob) -> list[str]:
    """Faults of form in a job's templates, from which then nothing can be made."""
    templates = {"spec.template": job.spec.template, "spec.head": job.spec.head}
    return [fault for name, template in templates.items() if (fault := problem(template, name))]


def missing_pods(view: JobView, factory: PodFactory, gangs: Sequence[Gang]) -> Missing:
    """The pods that these gangs lack; of many, those that come first.

    They are alike, so that the first conflict is the last.
    """
    absent = [(gang, member) for gang in gangs for member in gang.absent]
    first = _at_once(view.job)
    pods: list[Manifest] = []
    lists: dict[str, Manifest] = {}
    overrides: set[str] = set()
    pools = _pools(view, factory, gangs)
    groups = gangscheduling.choose(view, factory, gangs, pools)
    if any(m.slice_index is not None and not pools.get(m.slice_index) for _, m in absent):
        factory = homes.away_from_maintenance(view, factory)
    for gang, member in absent[:first]:
        if member.slice_index is None or member.host is None:
            built = factory.head(gang.attempt)
        else:
            index = member.slice_index
            pool, group = pools.get(index, ""), groups.get(index, "")
            built = factory.worker(index, member.host, gang.attempt, pool, group)
        if built.conflicts:
            return Missing(conflicts=list(built.conflicts))
        pods.append(built.manifest)
        overrides.update(built.overrides)
        if built.lists:
            lists.setdefault(built.lists["metadata"]["name"], built.lists)
    made = gangscheduling.absent(view, factory, groups)
    later = [member for _, member in absent[first:]]
    needed = quota.demand(pods) + _demand(factory, later)
    waiting = {member.slice_index for member in later if member.slice_index is not None}
    reserved = {home: homes.slice_id(view, index) for index in waiting if (home := pools.get(index))}
    return Missing(list(lists.values()), made, pods, needed, reserved, [], sorted(overrides))


def _at_once(job: TPUJob) -> int:
    """How many pods of a job are built by one decision.

    Nothing else is decided meanwhile, and they are all in memory: neither may depend on what a user asks for.
    """
    own = 3 * len(job.spec.run.env) + size(job.spec.template) + size(job.spec.head)
    return max(1, min(AT_ONCE, COPIED // max(1, own)))


def _demand(factory: PodFactory, members: Iterable[Member]) -> Counter[Use]:
    """What pods will use of quotas that are not built yet: workers are alike."""
    found: Counter[Use] = Counter()
    for head, count in Counter(member.slice_index is None for member in members).items():
        one = factory.head(0) if head else factory.worker(0, 0, 0)
        found += Counter({use: amount * count for use, amount in quota.demand([one.manifest]).items()})
    return found


def _pools(view: JobView, factory: PodFactory, gangs: Iterable[Gang]) -> Mapping[int, str]:
    """Node pools of slices that lack pods; those that are not named are left to the scheduler."""
    if not factory.chooses_pools:
        return {}
    known: dict[int, str] = {}
    wanted: list[int] = []
    for gang in gangs:
        for index in {m.slice_index for m in gang.absent if m.slice_index is not None}:
            if pods := gang.by_slice[index]:
                known[index] = pods[0].spec.node_selector.pool
            else:
                wanted.append(index)
    if wanted and not view.restarting_for(LEFT_TO_SCHEDULER):
        known |= homes.choose(view, factory, wanted, homes.shunned(view))
    return known

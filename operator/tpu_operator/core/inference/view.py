"""A TPUInference and its pods, sorted into replicas: what the decisions about it read."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tpu_operator.api import GroupState
from tpu_operator.core import failures, kueue, names, notices
from tpu_operator.core.inference.analysis import rejection
from tpu_operator.core.inference.factory import RoleFactory, owner_reference
from tpu_operator.core.inference.groups import Group, GroupKey, key_of
from tpu_operator.core.inference.picking import Serving
from tpu_operator.core.inference.revision import Revision, asked_for, remembered, shape_of
from tpu_operator.core.inference.routing import RoutingPlan, plan_routing
from tpu_operator.core.numbers import whole
from tpu_operator.core.slicegroup import Gang, workers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from tpu_operator.api import Failure, GroupStatus, Rejection, TPUInference, TPUInferenceStatus
    from tpu_operator.core.inference.images import Images
    from tpu_operator.core.inference.snapshot import ControllerRevision, InferenceSnapshot
    from tpu_operator.core.nodes import Loss
    from tpu_operator.core.notices import Notice
    from tpu_operator.core.settings import PodSettings
    from tpu_operator.core.snapshot import Pod

LEAD_SECONDS: Final = 300
"""How long before announced maintenance it counts: replicas avoid such node pools, where there are others."""
SEEN_ON_NODES: Final = frozenset({GroupState.STARTING, GroupState.READY, GroupState.NOT_READY})
"""States of replicas that have had all their pods on nodes in their present attempt."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The installation's choices."""

    pods: PodSettings
    images: Images
    prometheus: tuple[str, ...] = ()
    """URLs that analyses may ask, the one for those that name none first."""


@dataclass(frozen=True)
class InferenceView:
    """One TPUInference as decisions see it.

    Attributes:
        snapshot: what it was made from.
        now: the time of the decision.
        installation: the installation's choices.
        newest: the revision that replicas are to be of: the one that the spec asks for, unless rejected.
        revisions: all that are known, by name, the newest one too.
        groups: its replicas, of all revisions.
        foreign: names of pods that others own.
        surplus: pods of ours that belong to no replica.
        losses: by pod, the nodes that are lost.
        until_lost: seconds until another node may count as lost, None if all are well.
        rejected: why the revision that the spec asks for is not the newest.
    """

    snapshot: InferenceSnapshot
    now: datetime
    installation: Installation
    newest: Revision
    revisions: Mapping[str, Revision]
    groups: tuple[Group, ...]
    foreign: frozenset[str]
    surplus: tuple[Pod, ...]
    losses: Mapping[str, Loss]
    until_lost: float | None
    rejected: Rejection | None = None

    @property
    def inference(self) -> TPUInference:
        """The object."""
        return self.snapshot.inference

    @property
    def status(self) -> TPUInferenceStatus:
        """The status that was last written."""
        return self.snapshot.inference.status

    @property
    def name(self) -> str:
        """Name of the object."""
        return self.inference.metadata.name

    @property
    def before(self) -> Revision | None:
        """The last revision that all replicas were of, if it is another than the newest and remembered."""
        found = self.revisions.get(self.status.current_revision)
        return found if found is not None and found.name != self.newest.name else None

    @property
    def selector(self) -> dict[str, str]:
        """Labels that all its pods share."""
        return {names.LABEL_INFERENCE: self.name}

    @property
    def strangers(self) -> list[Pod]:
        """Pods with names that we need and owners that we are not."""
        wanted = (member.name for group in self.kept for member in group.gang.members)
        return [self.snapshot.pods[name] for name in wanted if name in self.foreign]

    @property
    def kept(self) -> list[Group]:
        """Replicas that have not been told to go."""
        return [group for group in self.groups if not group.leaving]

    @cached_property
    def by_role(self) -> Mapping[tuple[str, str], list[Group]]:
        """Replicas by revision and role."""
        found: defaultdict[tuple[str, str], list[Group]] = defaultdict(list)
        for group in self.groups:
            found[group.key.revision, group.key.role].append(group)
        return found

    @cached_property
    def factories(self) -> Mapping[tuple[str, str], RoleFactory]:
        """What makes pods, by revision and role."""
        return {
            (revision.name, role.name): RoleFactory(self.inference, revision, role, self.installation.pods)
            for revision in self.revisions.values()
            for role in revision.spec.roles
        }

    @cached_property
    def admissions(self) -> Mapping[str, str]:
        """What Kueue says of pods that it has not admitted, by their UIDs."""
        waiting = (found for found in self.snapshot.workloads.values() if not found.admitted)
        return {found.metadata.labels.get(kueue.LABEL_UID, ""): kueue.told(found, "pod") for found in waiting}

    @cached_property
    def routing(self) -> RoutingPlan:
        """What to do about the objects that bring requests to it."""
        owner, images = owner_reference(self.inference), self.installation.images
        return plan_routing(self.inference, owner, images, self.snapshot.routing, self._serving())

    def _serving(self) -> list[Serving]:
        """Revisions that have replicas to stay, and the newest, which is the first."""
        others = {group.key.revision for group in self.kept} & self.revisions.keys() - {self.newest.name}
        older = sorted((self.revisions[name] for name in others), key=lambda found: -found.number)
        return [
            Serving(
                types=frozenset(role.type for role in revision.spec.roles),
                servable=all(self._has_ready(revision.name, role.name) for role in revision.spec.roles),
            )
            for revision in (self.newest, *older)
        ]

    def _has_ready(self, revision: str, role: str) -> bool:
        return any(map(self.available, self.by_role.get((revision, role), ())))

    def factory(self, key: GroupKey) -> RoleFactory | None:
        """What makes the pods of a replica; None if its revision is not remembered any more."""
        return self.factories.get((key.revision, key.role))

    def available(self, group: Group) -> bool:
        """Whether a replica has been ready for long enough to count."""
        left = group.until_available(self.inference.spec.rollout.min_ready_seconds, self.now)
        return left is not None and left <= 0


def observe(snapshot: InferenceSnapshot, now: datetime, installation: Installation) -> InferenceView:
    """Sort the pods of a TPUInference into replicas.

    Raises:
        CatalogError: the `tpu` of a role names no shape that the catalog can make sense of.
    """
    inference = snapshot.inference
    uid = inference.metadata.uid
    ours = {name: pod for name, pod in snapshot.pods.items() if pod.metadata.owner_uid == uid}
    newest, revisions, rejected = _revisions(snapshot, installation.images)
    for role in newest.spec.roles:
        shape_of(role)
    running = [pod for pod in ours.values() if not pod.finished]
    losses = {pod.name: loss for pod in running if (loss := snapshot.nodes.loss(pod, now))}
    waits = [left for pod in running if (left := snapshot.nodes.until_lost(pod, now)) and left > 0]
    groups = _groups(snapshot, ours, revisions, losses, now)
    wanted = {member.name for group in groups for member in group.gang.members}
    return InferenceView(
        snapshot=snapshot,
        now=now,
        installation=installation,
        newest=newest,
        revisions=revisions,
        groups=tuple(groups),
        foreign=frozenset(snapshot.pods.keys() - ours.keys()),
        surplus=tuple(pod for name, pod in ours.items() if name not in wanted),
        losses=losses,
        until_lost=min(waits, default=None),
        rejected=rejected,
    )


def _revisions(
    snapshot: InferenceSnapshot, images: Images
) -> tuple[Revision, Mapping[str, Revision], Rejection | None]:
    """The newest revision, all by name, and why the one that the spec asks for is not the newest.

    One that is remembered keeps the images that it had.
    """
    asked = asked_for(snapshot.inference, images)
    known = {
        revision.name: revision
        for stored in snapshot.revisions.values()
        if (revision := _known(snapshot.inference, stored, images))
    }
    newest = known.get(asked.name, asked)
    rejected = rejection(snapshot.inference, asked.name)
    before = known.get(snapshot.inference.status.current_revision)
    if rejected is None or before is None:
        return newest, {**known, newest.name: newest}, None
    return before, known, rejected


def _known(inference: TPUInference, stored: ControllerRevision, images: Images) -> Revision | None:
    meta = stored.metadata
    prefix = names.revision_name(inference.metadata.name, "")
    if meta.owner_uid != inference.metadata.uid or not meta.name.startswith(prefix):
        return None
    return remembered(meta.name.removeprefix(prefix), stored, images)


def _groups(
    snapshot: InferenceSnapshot,
    ours: Mapping[str, Pod],
    revisions: Mapping[str, Revision],
    losses: Mapping[str, Loss],
    now: datetime,
) -> list[Group]:
    """Replicas that are on record, or have pods, or both."""
    by_key: defaultdict[GroupKey, dict[str, Pod]] = defaultdict(dict)
    for name, pod in ours.items():
        if key := key_of(pod):
            by_key[key][name] = pod
    records = {GroupKey(g.role, g.revision, g.index): g for g in snapshot.inference.status.groups}
    found = []
    for key in sorted({*by_key, *records}):
        hosts = _hosts(key, revisions, by_key[key].values())
        base = names.role_name(snapshot.inference.metadata.name, key.role, key.revision)
        members = workers(base, (key.index,), hosts)
        pods = {m.name: by_key[key][m.name] for m in members if m.name in by_key[key]}
        record = records.get(key)
        if not (record or pods):
            continue
        attempt = record.attempt if record else max((pod.attempt for pod in pods.values()), default=0)
        present = [pod for pod in pods.values() if pod.attempt == attempt]
        gang = Gang(
            members,
            attempt=attempt,
            pods=pods,
            started=record is not None and record.state in SEEN_ON_NODES,
            faults={
                **_spread(snapshot, () if _has_served(record) else present, now),
                **{p.name: failures.node_lost(p, losses[p.name]) for p in present if p.name in losses},
            },
            notices=_notices(snapshot, pods.values(), now),
            gone={m.name: snapshot.gone[m.name] for m in members if m.name in snapshot.gone},
            last=record.last_failure if record else None,
        )
        found.append(Group(key, gang, record))
    return found


def _notices(snapshot: InferenceSnapshot, pods: Iterable[Pod], now: datetime) -> Mapping[str, Notice]:
    """By pod, the maintenance that is announced for its node, which what becomes of it is put down to."""
    ahead = notices.horizon(LEAD_SECONDS)
    return {
        pod.name: notice
        for pod in pods
        if (node := snapshot.nodes.of(pod)) and (notice := notices.notice_of(node, now, ahead))
    }


def _hosts(key: GroupKey, revisions: Mapping[str, Revision], pods: Iterable[Pod]) -> int:
    """Hosts of a replica; of one whose revision is not remembered, those that are seen."""
    revision = revisions.get(key.revision)
    role = revision.role(key.role) if revision else None
    if role is not None:
        return shape_of(role).hosts
    seen = [whole(pod.metadata.labels.get(names.LABEL_HOST)) or 0 for pod in pods]
    return max(seen, default=0) + 1


def _has_served(record: GroupStatus | None) -> bool:
    """Whether the hosts of a replica belong together, whatever the labels of their nodes say later on."""
    return record is not None and record.state in {GroupState.READY, GroupState.NOT_READY}


def _spread(snapshot: InferenceSnapshot, pods: Iterable[Pod], now: datetime) -> Mapping[str, Failure]:
    """The failure of a replica that is spread over several node pools."""
    by_pool = {node.pool: pod for pod in pods if (node := snapshot.nodes.of(pod))}
    if len(by_pool) <= 1:
        return {}
    where = ", ".join(sorted(pool or "(none)" for pool in by_pool))
    last = max(by_pool.values(), key=lambda pod: pod.name)
    message = f"the replica is spread over the node pools {where}"
    return {last.name: failures.misplaced(last, message, now)}

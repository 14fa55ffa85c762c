"""A TPUJob and its pods, sorted into gangs: what the decisions about it read."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpu_operator import catalog
from tpu_operator.api import ConditionType, Launcher, RestartStrategy, RuleAction, SliceState
from tpu_operator.core import failures, inplace, names, notices, restart
from tpu_operator.core.environment import GangSpec
from tpu_operator.core.slicegroup import Gang, Member, workers

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping
    from datetime import datetime

    from tpu_operator.api import Condition, Failure, SliceStatus, TPUJob, TPUJobStatus
    from tpu_operator.core.nodes import Loss
    from tpu_operator.core.notices import Notice
    from tpu_operator.core.snapshot import JobSnapshot, Pod

GATE_SECONDS: Final = 24 * 3600
"""How long a launcher waits for its peers; nodes for them may take hours to come."""
FINAL: Final = frozenset({ConditionType.SUCCEEDED, ConditionType.FAILED})
SEEN_ON_NODES: Final = frozenset(
    {SliceState.STARTING, SliceState.RUNNING, SliceState.SUCCEEDED, SliceState.SPARE}
)


@dataclass(frozen=True, slots=True)
class JobView:
    """One TPUJob as decisions see it.

    Attributes:
        snapshot: what it was made from.
        now: the time of the decision.
        spec: its slices.
        gangs: the gangs that restart as one: all slices together, or each of them, and the head.
        spares: slices that wait to take over, each a gang that counts for nothing.
        strangers: pods with names that we need and owners that we are not.
        surplus: pods of ours for which the spec, changed while the job was suspended, has no place any more.
        losses: by pod, the nodes that are lost.
        until_lost: seconds until another node of the job's may count as lost, None if all are well.
    """

    snapshot: JobSnapshot
    now: datetime
    spec: GangSpec
    gangs: tuple[Gang, ...]
    spares: tuple[Gang, ...]
    strangers: tuple[Pod, ...]
    surplus: tuple[Pod, ...]
    losses: Mapping[str, Loss]
    until_lost: float | None

    @property
    def job(self) -> TPUJob:
        """The job."""
        return self.snapshot.job

    @property
    def status(self) -> TPUJobStatus:
        """The status that was last written."""
        return self.snapshot.job.status

    @property
    def pods(self) -> list[Pod]:
        """All pods of the job, of any attempt."""
        gangs = (*self.gangs, *self.spares)
        return [*(pod for gang in gangs for pod in gang.pods.values()), *self.surplus]

    @property
    def engaged(self) -> list[Gang]:
        """Gangs that have something of their present attempt to lose: pods, or slices that are done alone."""
        waiting = [gang for gang in self.spares if gang.current]
        return [g for g in self.gangs if (g.current or g.done) and not g.succeeded] + waiting

    @property
    def current(self) -> list[Pod]:
        """Pods of the present attempts."""
        return [pod for gang in self.gangs for pod in gang.current]

    @property
    def stale(self) -> list[Pod]:
        """Pods that have to go: of other attempts than the present one, and surplus."""
        return [*(pod for gang in self.gangs for pod in gang.stale), *self.surplus]

    @property
    def leaving(self) -> list[Pod]:
        """The same, with those of spares."""
        return [*self.stale, *(pod for gang in self.spares for pod in gang.stale)]

    @property
    def selector(self) -> dict[str, str]:
        """Labels that all pods of the job share."""
        return {names.LABEL_JOB: self.job.metadata.name}

    @property
    def ahead(self) -> float:
        """Seconds before the end of a machine of limited life from which on it counts as announced."""
        return notices.horizon(self.job.spec.maintenance.lead_seconds)

    @property
    def ended(self) -> datetime | None:
        """When the job finished, None while it has not, and where that is not on record."""
        return next((c.last_transition_time for c in self.final), None)

    @property
    def finished(self) -> bool:
        """Whether the job has succeeded or failed, for good."""
        return bool(self.final)

    @property
    def final(self) -> list[Condition]:
        """The conditions that say that the job is over."""
        return [c for c in self.status.conditions if c.type in FINAL and c.status == "True"]

    @property
    def leader(self) -> Pod | None:
        """The head, or else host 0 of slice 0, of the present attempt."""
        meta = self.job.metadata
        headed = any(member.slice_index is None for gang in self.gangs for member in gang.members)
        name = names.head_name(meta.name) if headed else names.worker_name(meta.name, 0, 0)
        return next((pod for gang in self.gangs for pod in gang.current if pod.name == name), None)

    def incident(self, gang: Gang) -> Failure | None:
        """The failure on record for the gang's present attempt."""
        last = self.status.last_failure
        return last if last and last.attempt == gang.number and gang.has_member(last.pod) else None

    def restarting_for(self, reason: str) -> bool:
        """Whether that is why a restart is under way."""
        why = (ConditionType.RESTARTING, "True", reason)
        return any((c.type, c.status, c.reason) == why for c in self.status.conditions)

    def restarted(self, failure: Failure) -> Gang | None:
        """The gang that is being restarted because of that failure, if one is."""
        if not self.restarting_for(failure.cause):
            return None
        gangs = (g for g in self.gangs if g.number == failure.attempt + 1 and g.has_member(failure.pod))
        return next(gangs, None)


def observe(snapshot: JobSnapshot, now: datetime) -> JobView:
    """Sort a job's pods into gangs.

    Raises:
        CatalogError: `spec.tpu` names no shape that the catalog can make sense of, or too many hosts.
    """
    job = snapshot.job
    spec = gang_spec(job)
    ours = {name: pod for name, pod in snapshot.pods.items() if pod.metadata.owner_uid == job.metadata.uid}
    running = [pod for pod in ours.values() if not pod.finished]
    losses = {pod.name: loss for pod in running if (loss := snapshot.nodes.loss(pod, now))}
    waits = [left for pod in running if (left := snapshot.nodes.until_lost(pod, now)) and left > 0]
    gangs, spares = (
        tuple(_gang(snapshot, members, ours, now, losses) for members in memberships)
        for memberships in (_memberships(job, spec), _spares(job, spec))
    )
    wanted = {member.name for gang in gangs for member in gang.members}
    strangers = [pod for name, pod in snapshot.pods.items() if name in wanted and name not in ours]
    wanted |= {member.name for gang in spares for member in gang.members}
    surplus = [pod for name, pod in ours.items() if name not in wanted]
    waiting = min(waits, default=None)
    return JobView(snapshot, now, spec, gangs, spares, tuple(strangers), tuple(surplus), losses, waiting)


def gang_spec(job: TPUJob) -> GangSpec:
    """The slices that a job asks for.

    Raises:
        CatalogError: `spec.tpu` names no shape that the catalog can make sense of, or too many hosts.
    """
    tpu, run, meta = job.spec.tpu, job.spec.run, job.metadata
    shape = catalog.resolve(tpu.accelerator, tpu.topology, tpu.chips_per_host)
    if (hosts := shape.hosts * (tpu.slices + tpu.spare_slices)) > catalog.MAX_HOSTS:
        raise catalog.CatalogError(f"{hosts} hosts are more than the {catalog.MAX_HOSTS} that a job may have")
    each_device, ray = run.launcher is Launcher.TORCHRUN, run.launcher is Launcher.RAY
    return GangSpec(
        kind="TPUJob",
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        shape=shape,
        num_slices=tpu.slices,
        subdomain=_subdomain(job),
        launcher=run.launcher,
        processes_per_host=run.processes_per_host or (shape.devices_per_host if each_device else 1),
        gate_seconds=GATE_SECONDS,
        alone=tpu.slices > 1 and job.spec.slices_alone,
        in_place=job.spec.failure_policy.restart_strategy == RestartStrategy.IN_PLACE,
        headed=ray and bool(job.spec.head),
    )


def _subdomain(job: TPUJob) -> str:
    """Name of the headless Service: the job's, unless the template chooses another subdomain."""
    chosen = ((job.spec.template or {}).get("spec") or {}).get("subdomain")
    return chosen if isinstance(chosen, str) and chosen else job.metadata.name


def _memberships(job: TPUJob, spec: GangSpec) -> list[tuple[Member, ...]]:
    """Members of each gang, with the head that the job may have."""
    name, hosts = job.metadata.name, spec.shape.hosts
    head = (Member(names.head_name(name)),)
    if spec.alone:
        slices = [workers(name, (index,), hosts) for index in range(spec.num_slices)]
        return [slices[0] + head, *slices[1:]]
    return [workers(name, range(spec.num_slices), hosts) + head]


def _spares(job: TPUJob, spec: GangSpec) -> list[tuple[Member, ...]]:
    """Members of each spare slice, whose indexes follow those of the others."""
    first = spec.num_slices
    indexes = range(first, first + job.spec.tpu.spare_slices)
    return [workers(job.metadata.name, (index,), spec.shape.hosts) for index in indexes]


def _gang(
    snapshot: JobSnapshot,
    members: tuple[Member, ...],
    ours: Mapping[str, Pod],
    now: datetime,
    losses: Mapping[str, Loss],
) -> Gang:
    job = snapshot.job
    pods = {member.name: ours[member.name] for member in members if member.name in ours}
    gone = {m.name: pod for m in members if (pod := _gone(snapshot, m.name))}
    slices = {member.slice_index for member in members}
    recorded = [s for s in job.status.slices if s.index in slices]
    # A status that was lost, by a restore from backup for instance, is read off the pods again.
    known = [s.attempt - s.restarts_in_place for s in recorded] or [pod.attempt for pod in pods.values()]
    attempt = max([0, *known])
    ignored = frozenset(_ignored(job, (gone | pods).values(), now))
    pods |= {
        name: pod
        for name, pod in gone.items()
        if name not in pods and pod.attempt == attempt and _is_over(pod, ignored)
    }
    present = [pod for pod in pods.values() if pod.attempt == attempt]
    in_place = max(s.restarts_in_place for s in recorded) if recorded else inplace.restarts(present, now)
    # Slices that restarted one by one catch up when the scope becomes the job: nobody took their pods away.
    started = all(
        (s.state in SEEN_ON_NODES or s.in_place_since) and s.attempt - s.restarts_in_place == attempt
        for s in recorded
    )
    if not _headed(job, present):
        members = tuple(member for member in members if member.slice_index is not None)
        pods = {member.name: pods[member.name] for member in members if member.name in pods}
    return Gang(
        members,
        attempt=attempt,
        pods=pods,
        started=bool(recorded) and started,
        done=frozenset(s.index for s in recorded if s.state == SliceState.SUCCEEDED),
        ignored=ignored,
        faults={
            **_misplaced(snapshot, _unproven(present, recorded), now),
            **{name: failures.node_lost(pod, losses[name]) for name, pod in pods.items() if name in losses},
        },
        notices={name: n for name, pod in (gone | pods).items() if (n := _notice(snapshot, pod, now))},
        gone=gone,
        in_place=in_place,
        in_place_since=min((s.in_place_since for s in recorded if s.in_place_since), default=None),
        last=_last(job.status, recorded, members, attempt + in_place),
    )


def _gone(snapshot: JobSnapshot, name: str) -> Pod | None:
    """What was last seen of a pod of ours that is gone."""
    pod = snapshot.gone.get(name)
    return pod if pod and pod.metadata.owner_uid == snapshot.job.metadata.uid else None


def _is_over(pod: Pod, ignored: Container[str]) -> bool:
    """Whether a pod that is gone had done what was expected of it: nobody needs to have taken it away.

    Ended pods go with their nodes, and where there are many.
    """
    return pod.succeeded or (pod.failed and pod.name in ignored and pod.told_to_go is None)


def _last(
    status: TPUJobStatus, recorded: Iterable[SliceStatus], members: Iterable[Member], number: int
) -> Failure | None:
    """The last failure of a gang of that number that has led to another attempt."""
    newest = status.last_failure
    ours = newest is not None and any(member.name == newest.pod for member in members)
    told = [newest if ours else None, *(s.last_failure for s in recorded)]
    return max((f for f in told if f and f.attempt < number), key=lambda f: f.attempt, default=None)


def _notice(snapshot: JobSnapshot, pod: Pod, now: datetime) -> Notice | None:
    """The maintenance that is announced for a pod's node; of a node that is gone, what the pod was told."""
    node = snapshot.nodes.of(pod)
    if node is None:
        return notices.remembered(pod)
    return notices.notice_of(node, now, notices.horizon(snapshot.job.spec.maintenance.lead_seconds))


def _unproven(pods: Iterable[Pod], recorded: Iterable[SliceStatus]) -> list[Pod]:
    """Pods of slices that have not run yet.

    Once one runs its hosts belong together, whatever the labels of their nodes say later on.
    """
    proven = {str(s.index) for s in recorded if s.state in {SliceState.RUNNING, SliceState.SUCCEEDED}}
    return [pod for pod in pods if pod.metadata.labels.get(names.LABEL_SLICE) not in proven]


def _misplaced(snapshot: JobSnapshot, pods: Iterable[Pod], now: datetime) -> dict[str, Failure]:
    """Failures of slices that are spread over several node pools: no chip reaches all the others there."""
    if snapshot.job.spec.scheduling.placement != "Exclusive":
        return {}
    pools: defaultdict[str, dict[str, Pod]] = defaultdict(dict)
    for pod in pods:
        node, index = snapshot.nodes.of(pod), pod.metadata.labels.get(names.LABEL_SLICE)
        if node is not None and index is not None:
            pools[index].setdefault(node.pool, pod)
    found = {}
    for index, by_pool in pools.items():
        if len(by_pool) > 1:
            where = ", ".join(sorted(pool or "(none)" for pool in by_pool))
            last = max(by_pool.values(), key=lambda pod: pod.name)
            message = f"slice {index} is spread over the node pools {where}"
            found[last.name] = failures.misplaced(last, message, now)
    return found


def _headed(job: TPUJob, current: list[Pod]) -> bool:
    """Whether the present attempt should have a head: not one that was asked for after its pods were made."""
    made_with = not current or any(names.LABEL_HEADED in pod.metadata.labels for pod in current)
    return bool(job.spec.head) and made_with


def _ignored(job: TPUJob, pods: Iterable[Pod], now: datetime) -> Iterable[str]:
    """Names of failed pods that a rule of the failure policy leaves alone."""
    policy = job.spec.failure_policy
    if not any(rule.action is RuleAction.IGNORE for rule in policy.rules):
        return
    for pod in pods:
        failure = failures.failure_of(pod, now)
        if failure is not None and restart.action_for(failure, policy) is RuleAction.IGNORE:
            yield pod.name

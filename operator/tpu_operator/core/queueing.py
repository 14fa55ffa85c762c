"""A job's place in a queue of Kueue's: asked for, waited for, used, given back.

The Workload is the whole protocol. Nothing is made before it is admitted. When the admission is taken away,
the attempt is given up as by a suspension; once no pod runs any more, the quota is given back, by which Kueue
knows that it may queue the job again. A job whose pods run goes on when Kueue itself is gone, and so it does
when only its Workload is: whoever removes Kueue removes the Workloads first, and what is not there says
nothing. The job asks for another one, and heeds what becomes of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tpu_operator.api import BlockedReason
from tpu_operator.core import kueue, names, pending, workloadstatus
from tpu_operator.core.missing import template_faults
from tpu_operator.core.objects import workloads
from tpu_operator.core.objects.pods import PodFactory, owner_reference
from tpu_operator.core.pending import Hold
from tpu_operator.core.plan import Delete

if TYPE_CHECKING:
    from tpu_operator.core.jobview import JobView
    from tpu_operator.core.kueue import Grant, PodSetAssignment, Queues, Workload
    from tpu_operator.core.plan import Manifest, Patch
    from tpu_operator.core.settings import PodSettings

UNSERVED: Final = (
    "spec.scheduling.queueName is set, and this cluster does not serve kueue.x-k8s.io/v1beta2: install Kueue "
    "0.15 or newer, or remove the field"
)
NOT_ADMITTED: Final = "NotAdmitted"


@dataclass(frozen=True, slots=True)
class Turn:
    """What a job in a queue does now, apart from its pods.

    Attributes:
        hold: why it may not run; None if it may.
        why: the same in one word, for a job that ran.
        creates: its Workload, where there is none; also that of a job that runs, and goes on.
        deletes: its Workload, where it is about something else.
        patches: its Workload's status, to give back quota that nobody uses any more, or needs.
    """

    hold: Hold | None = None
    why: str = NOT_ADMITTED
    creates: tuple[Manifest, ...] = ()
    deletes: tuple[Delete, ...] = ()
    patches: tuple[Patch, ...] = ()


def turn(view: JobView, settings: PodSettings) -> Turn:
    """Where the job stands in its queue."""
    queues, found = view.snapshot.queues, mine(view)
    if queues is None:
        return Turn() if view.engaged else _waits(UNSERVED)
    runs = bool(view.engaged) and (found is None or found.admitted)
    whole = runs and not any(gang.absent for gang in view.gangs)
    if found and whole:
        return Turn()
    wanted = _workload(view, queues, settings)
    if runs and found and (isinstance(wanted, Hold) or not _outdated(view, found, wanted)):
        return Turn()
    if isinstance(wanted, Hold):
        return Turn(None if whole else wanted)
    if found is None:
        return Turn(creates=(wanted,)) if whole else _asks(view, wanted)
    return _admitted(view, found, wanted) if found.admitted else _refused(view, found, wanted)


def _asks(view: JobView, wanted: Manifest) -> Turn:
    queue = view.job.spec.scheduling.queue_name
    return _waits(f"asks LocalQueue {queue} for admission", creates=(wanted,))


def _admitted(view: JobView, found: Workload, wanted: Manifest) -> Turn:
    """It may run as it was admitted; before pods of another spec are made, it queues for that."""
    if _outdated(view, found, wanted):
        text = "the spec has changed since the job was admitted; it asks for admission again"
        return _waits(text, deletes=leave(view))
    if missing := _unknown_flavors(view, found):
        return _waits(f"admitted with ResourceFlavor {missing}, which does not exist")
    if any(assignment.topology_assignment for assignment in _assignments(found)):
        return _waits(
            "admitted to a ResourceFlavor with a topology, by which Kueue places pods itself; the slices of "
            "TPUJobs have node pools: use a ResourceFlavor without spec.topologyName"
        )
    return Turn()


def _refused(view: JobView, found: Workload, wanted: Manifest) -> Turn:
    taken = found.holds(kueue.EVICTED)
    deletes: tuple[Delete, ...] = ()
    patches: tuple[Patch, ...] = ()
    if _outdated(view, found, wanted):
        deletes = leave(view)
    elif found.reserved and taken and not workloadstatus.running(view):
        patches = (workloadstatus.release(found, taken, view.now),)
    else:
        patches = workloadstatus.waiting(view, found)
    hold = Hold(BlockedReason.AWAITING_ADMISSION, kueue.told(found, "job")[: pending.QUOTE])
    why = taken.reason if taken else NOT_ADMITTED if found.spec.active else "Deactivated"
    return Turn(hold, why, deletes=deletes, patches=patches)


def _waits(text: str, **effects: Any) -> Turn:
    return Turn(Hold(BlockedReason.AWAITING_ADMISSION, text), **effects)


def mine(view: JobView) -> Workload | None:
    """The job's Workload."""
    queues = view.snapshot.queues
    found = queues.workloads.get(workloads.name_of(view.job.metadata.name)) if queues else None
    return found if found and found.metadata.owner_uid == view.job.metadata.uid else None


def leave(view: JobView) -> tuple[Delete, ...]:
    """The deletion of the Workload of a job that wants no quota, or another, once nothing of it runs."""
    found = mine(view)
    return _deletes(found) if found and not workloadstatus.running(view) else ()


def left_over(view: JobView) -> tuple[Delete, ...]:
    """The deletion of the Workload of a job that has left its queue, once what ran by its quota is gone."""
    found = mine(view)
    left = found is not None and not view.job.spec.scheduling.queue_name
    return _deletes(found) if found and left and all(pod.finished for pod in view.leaving) else ()


def _deletes(found: Workload) -> tuple[Delete, ...]:
    meta = found.metadata
    return () if found.going else (Delete("Workload", meta.namespace, meta.name, meta.uid),)


def _outdated(view: JobView, found: Workload, wanted: Manifest) -> bool:
    """Whether a Workload is about something else, or lacks quota that was given back and is needed again."""
    if workloadstatus.reclaimed(found) > workloadstatus.reclaimable(view):
        return True
    revision: str = wanted["metadata"]["labels"][names.LABEL_REVISION]
    return found.metadata.labels.get(names.LABEL_REVISION) != revision


# What is asked for.


def _workload(view: JobView, queues: Queues, settings: PodSettings) -> Manifest | Hold:
    """The Workload that the job should have, or what stands against making one."""
    if faults := template_faults(view.job):
        return pending.conflicting(faults)
    factory, job = PodFactory(view.job, view.spec, settings), view.job
    worker = factory.worker(0, 0, 0)
    head = factory.head(0) if job.spec.head else None
    conflicts = (*worker.conflicts, *(head.conflicts if head else ()))
    if conflicts:
        return pending.conflicting(conflicts)
    priority = _priority(view, queues, str(worker.manifest["spec"].get("priorityClassName") or ""))
    if isinstance(priority, Hold):
        return priority
    gangs = (*view.gangs, *view.spares)
    hosts = sum(member.slice_index is not None for gang in gangs for member in gang.members)
    sets = [workloads.pod_set(workloadstatus.WORKERS, hosts, worker.manifest)]
    if head:
        sets.append(workloads.pod_set(names.HEAD, 1, head.manifest))
    meta = job.metadata
    metadata = {"name": workloads.name_of(meta.name), "namespace": meta.namespace, "labels": view.selector}
    queue = job.spec.scheduling.queue_name or ""
    return workloads.workload(metadata, owner_reference(job), queue, sets, priority)


def _priority(view: JobView, queues: Queues, pods: str) -> workloads.Priority | Hold:
    """By Kueue's label on the job, or else as that of its pods, or else the cluster's default."""
    label = view.job.metadata.labels.get(kueue.LABEL_PRIORITY, "")
    kind, classes = (
        ("WorkloadPriorityClass", queues.workload_priorities)
        if label
        else (
            "PriorityClass",
            queues.priorities,
        )
    )
    named = label or pods
    name = named or next((n for n, c in classes.items() if c.global_default), "")
    if not name:
        return workloads.Priority()
    found = classes.get(name)
    if found is None:
        return Hold(BlockedReason.AWAITING_ADMISSION, f"{kind} {name}, which the job names, does not exist")
    return workloads.Priority(found.value, kind, name, bool(named))


# What an admission brings.


def factory(view: JobView, settings: PodSettings) -> PodFactory:
    """What makes the job's pods, with what its admission adds to them."""
    found = mine(view)
    if found is None or not view.job.spec.scheduling.queue_name:
        return PodFactory(view.job, view.spec, settings)
    grants = {a.name: _grant(view, found, a) for a in _assignments(found)}
    none = kueue.Grant()
    return PodFactory(
        view.job, view.spec, settings, grants.get(workloadstatus.WORKERS, none), grants.get(names.HEAD, none)
    )


def _assignments(found: Workload) -> list[PodSetAssignment]:
    return found.status.admission.pod_set_assignments if found.status.admission else []


def _flavors(assignment: PodSetAssignment) -> list[str]:
    return sorted(set(assignment.flavors.values()))


def _unknown_flavors(view: JobView, found: Workload) -> str:
    known = view.snapshot.queues.flavors if view.snapshot.queues else {}
    asked = {name for assignment in _assignments(found) for name in _flavors(assignment)}
    return ", ".join(sorted(asked - known.keys()))


def _grant(view: JobView, found: Workload, assignment: PodSetAssignment) -> Grant:
    """Labels and tolerations of the flavors, and what the admission checks add."""
    known = view.snapshot.queues.flavors if view.snapshot.queues else {}
    grant = kueue.Grant(labels={kueue.LABEL_POD_SET: assignment.name})
    for name in _flavors(assignment):
        if flavor := known.get(name):
            grant = grant.and_(kueue.Grant(flavor.spec.node_labels, tuple(flavor.spec.tolerations)))
    for check in found.status.admission_checks:
        for update in check.pod_set_updates:
            if update.name == assignment.name:
                tolerations = tuple(update.tolerations)
                more = kueue.Grant(update.node_selector, tolerations, update.labels, update.annotations)
                grant = grant.and_(more)
    return grant


def report(view: JobView) -> tuple[Patch, ...]:
    """What Kueue is told of the job while it runs."""
    found = mine(view)
    return workloadstatus.progress(view, found) if found and found.admitted else ()


def finish(view: JobView) -> tuple[Patch, ...]:
    """What Kueue is told of the job once it is over."""
    found = mine(view)
    return workloadstatus.end(view, found) if found else ()

"""What Kueue is told of a job that it has admitted: ready, done in part, over, gone.

As Kueue's own integrations tell it, in the status of the Workload. Conditions are a list that several write
to; they are changed on top of the version that was seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tpu_operator.core import kueue
from tpu_operator.core.pending import QUOTE
from tpu_operator.core.plan import Patch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tpu_operator.core.jobview import JobView
    from tpu_operator.core.kueue import Condition, Workload
    from tpu_operator.core.plan import Manifest

WORKERS: Final = "workers"
"""Name of the set of pods that hold chips."""
REQUEUED_BY: Final = frozenset({"Preempted", "NodeFailures"})
"""Evictions after which Kueue queues a job at once, and not when something else has happened."""


def running(view: JobView) -> bool:
    """Whether anything of the job still runs."""
    return any(not pod.finished for pod in view.pods)


def progress(view: JobView, found: Workload) -> tuple[Patch, ...]:
    """How far an admitted job is: whether its pods are ready, and which of them are done for good."""
    status = _given_back(view, found)
    if (condition := _pods_ready(view, found)) is not None:
        status["conditions"] = _with(found, view.now, condition)
    return (_patch(found, status),) if status else ()


def waiting(view: JobView, found: Workload) -> tuple[Patch, ...]:
    """What a job that waits does not need, since it is done already."""
    status = _given_back(view, found)
    return (_patch(found, status),) if status else ()


def _given_back(view: JobView, found: Workload) -> dict[str, Any]:
    done = reclaimable(view)
    return {"reclaimablePods": [{"name": WORKERS, "count": done}]} if done > reclaimed(found) else {}


def _pods_ready(view: JobView, found: Workload) -> Manifest | None:
    """The change of the condition by which Kueue takes back quota that nothing comes of.

    Only where it is set up to wait for pods, which nobody but Kueue can see.
    """
    old = found.condition(kueue.PODS_READY)
    was = old is not None and old.status == "True"
    if all(gang.ready for gang in view.gangs) == was:
        return None
    if was:
        return _condition(kueue.PODS_READY, "False", "WaitForRecovery", "not all pods are ready any more")
    reason = "Recovered" if old and old.reason == "WaitForRecovery" else "Started"
    return _condition(kueue.PODS_READY, "True", reason, "all pods are ready or have succeeded")


def reclaimed(found: Workload) -> int:
    """Hosts for which quota was given back."""
    return next((p.count for p in found.status.reclaimable_pods if p.name == WORKERS), 0)


def reclaimable(view: JobView) -> int:
    """Hosts that will not be needed again: of slices that are done, unless they restart with the others."""
    if not view.job.spec.slices_alone:
        return 0
    done = (gang for gang in view.gangs if gang.succeeded)
    return sum(member.slice_index is not None for gang in done for member in gang.members)


def end(view: JobView, found: Workload) -> tuple[Patch, ...]:
    """Tell Kueue that the job is over, once nothing of it runs any more."""
    if found.going or found.holds(kueue.FINISHED) or running(view):
        return ()
    last = view.final[0]
    # Kueue's reasons of an end are called like our conditions.
    condition = _condition(kueue.FINISHED, "True", last.type, last.message)
    return (_patch(found, {"conditions": _with(found, view.now, condition)}),)


def release(found: Workload, taken: Condition, now: datetime) -> Patch:
    """Give the quota back after an eviction, as Kueue's own integrations do."""
    again = "True" if taken.reason in REQUEUED_BY else "False"
    conditions = [
        _condition(kueue.REQUEUED, again, taken.reason, taken.message),
        _condition(kueue.QUOTA_RESERVED, "False", "Pending", taken.message),
        _condition(kueue.ADMITTED, "False", "NoReservation", "The workload has no reservation"),
    ]
    if found.holds(kueue.PODS_READY):
        conditions.append(_condition(kueue.PODS_READY, "False", "WaitForStart", "the job was evicted"))
    return _patch(found, {"admission": None, "conditions": _with(found, now, *conditions)})


def _condition(kind: str, status: str, reason: str, message: str) -> Manifest:
    return {"type": kind, "status": status, "reason": reason, "message": message[:QUOTE]}


def _with(found: Workload, now: datetime, *changes: Manifest) -> list[Manifest]:
    """All conditions of a Workload, some of them changed; a list is replaced as a whole."""
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    old = {condition.type: _wire(condition) for condition in found.status.conditions}
    for change in changes:
        before = old.get(change["type"], {})
        same = before.get("status") == change["status"]
        time = before["lastTransitionTime"] if same else stamp
        generation = {"observedGeneration": found.metadata.generation}
        old[change["type"]] = change | generation | {"lastTransitionTime": time}
    return list(old.values())


def _wire(condition: Condition) -> Manifest:
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": condition.last_transition_time,
        "observedGeneration": condition.observed_generation,
    }


def _patch(found: Workload, status: Mapping[str, Any]) -> Patch:
    meta = found.metadata
    return Patch("Workload", meta.namespace, meta.name, meta.resource_version, {"status": status}, "status")

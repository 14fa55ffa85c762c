"""Kueue's objects as decisions see them (kueue.x-k8s.io/v1beta2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tpu_operator.core.snapshot import Metadata, View

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP: Final = "kueue.x-k8s.io"
API_VERSION: Final = f"{GROUP}/v1beta2"
LABEL_PRIORITY: Final = f"{GROUP}/priority-class"
"""On a job: the WorkloadPriorityClass by which it is queued, in place of the PriorityClass of its pods."""
LABEL_UID: Final = f"{GROUP}/job-uid"
LABEL_POD_SET: Final = f"{GROUP}/podset"

QUOTA_RESERVED: Final = "QuotaReserved"
ADMITTED: Final = "Admitted"
EVICTED: Final = "Evicted"
REQUEUED: Final = "Requeued"
PODS_READY: Final = "PodsReady"
FINISHED: Final = "Finished"


class Condition(View, frozen=True):
    """A condition of a Workload, kept so that it can be written back."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class PodSetAssignment(View, frozen=True):
    """What a set of pods was admitted with: by resource, the ResourceFlavor."""

    name: str = ""
    flavors: dict[str, str] = msgspec.field(default_factory=dict)
    topology_assignment: dict[str, Any] | None = None


class Admission(View, frozen=True):
    """An admission."""

    cluster_queue: str = ""
    pod_set_assignments: list[PodSetAssignment] = msgspec.field(default_factory=list)


class PodSetUpdate(View, frozen=True):
    """What an admission check wants pods to have."""

    name: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    tolerations: list[dict[str, Any]] = msgspec.field(default_factory=list)


class AdmissionCheck(View, frozen=True):
    """State of an admission check."""

    name: str = ""
    state: str = ""
    message: str = ""
    pod_set_updates: list[PodSetUpdate] = msgspec.field(default_factory=list)


class ReclaimablePod(View, frozen=True):
    """Pods of a set that need no quota any more."""

    name: str = ""
    count: int = 0


class WorkloadSpec(View, frozen=True):
    """The part of WorkloadSpec that decisions read."""

    active: bool = True
    queue_name: str = ""


class WorkloadStatus(View, frozen=True):
    """The part of WorkloadStatus that decisions read."""

    conditions: list[Condition] = msgspec.field(default_factory=list)
    admission: Admission | None = None
    admission_checks: list[AdmissionCheck] = msgspec.field(default_factory=list)
    reclaimable_pods: list[ReclaimablePod] = msgspec.field(default_factory=list)


class Workload(View, frozen=True):
    """A place in a queue: a job's, by our hand, or a pod's, by Kueue's."""

    metadata: Metadata
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type, or None."""
        return next((c for c in self.status.conditions if c.type == kind), None)

    def holds(self, kind: str) -> Condition | None:
        """The condition of that type if it is true."""
        condition = self.condition(kind)
        return condition if condition and condition.status == "True" else None

    @property
    def going(self) -> bool:
        """Whether it is being deleted."""
        return self.metadata.deletion_timestamp is not None

    @property
    def reserved(self) -> bool:
        """Whether it holds quota."""
        return self.holds(QUOTA_RESERVED) is not None

    @property
    def admitted(self) -> bool:
        """Whether the pods may run."""
        return (
            self.spec.active
            and not self.going
            and self.holds(ADMITTED) is not None
            and self.holds(EVICTED) is None
        )


def told(found: Workload, thing: str) -> str:
    """What Kueue says of something that it does not let run.

    Args:
        found: its Workload.
        thing: what it is, such as `job`.
    """
    queue = f"LocalQueue {found.spec.queue_name}"
    taken, reserved = found.holds(EVICTED), found.condition(QUOTA_RESERVED)
    if found.going:
        return f"{queue}: the Workload {found.metadata.name} is being deleted"
    if taken and found.reserved:
        return f"{queue} has taken the {thing} back: {taken.reason}: {taken.message}"
    if not found.spec.active:
        why = f" ({taken.message})" if taken and taken.message else ""
        what = f"spec.active of Workload {found.metadata.name} is false{why}"
        return f"{queue}: {what}; set it to true to queue the {thing} again"
    if found.reserved:
        checks = [c for c in found.status.admission_checks if c.state != "Ready"]
        said = ", ".join(f"{c.name} is {c.state}" + (f": {c.message}" if c.message else "") for c in checks)
        return f"{queue}: quota is reserved, the admission check {said or 'is to come'}"
    if reserved and reserved.message:
        return f"{queue}: {reserved.message}"
    return f"{queue} has not looked at the {thing} yet: does Kueue run?"


class FlavorSpec(View, frozen=True):
    """The part of ResourceFlavorSpec that ends up in pods."""

    node_labels: dict[str, str] = msgspec.field(default_factory=dict)
    tolerations: list[dict[str, Any]] = msgspec.field(default_factory=list)


class ResourceFlavor(View, frozen=True):
    """A kind of nodes that there is quota for."""

    metadata: Metadata
    spec: FlavorSpec = FlavorSpec()


class PriorityClass(View, frozen=True):
    """A PriorityClass of Kubernetes', or a WorkloadPriorityClass of Kueue's."""

    metadata: Metadata
    value: int = 0
    global_default: bool = False


@dataclass(frozen=True, slots=True)
class Queues:
    """What a decision sees of Kueue.

    Attributes:
        workloads: Workloads with the job's label, by name.
        flavors: all ResourceFlavors, by name.
        priorities: all PriorityClasses, by name.
        workload_priorities: all WorkloadPriorityClasses, by name.
    """

    workloads: Mapping[str, Workload] = field(default_factory=dict)
    flavors: Mapping[str, ResourceFlavor] = field(default_factory=dict)
    priorities: Mapping[str, PriorityClass] = field(default_factory=dict)
    workload_priorities: Mapping[str, PriorityClass] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Grant:
    """What an admission adds to the pods of a set."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def and_(self, other: Grant) -> Grant:
        """Both together."""
        return Grant(
            {**self.node_selector, **other.node_selector},
            (*self.tolerations, *(t for t in other.tolerations if t not in self.tolerations)),
            {**self.labels, **other.labels},
            {**self.annotations, **other.annotations},
        )

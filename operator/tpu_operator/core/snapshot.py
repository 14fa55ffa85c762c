"""What a decision sees: small typed views of the cluster's objects.

Each view names only the fields that some decision reads. The informer decodes straight into them and
drops the rest, which is what keeps memory flat with ten thousand pods, whatever their users write into them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tpu_operator.core import names
from tpu_operator.core.nodes import Nodes
from tpu_operator.core.numbers import quantity, whole
from tpu_operator.core.placement import Pools
from tpu_operator.core.quota import Quotas
from tpu_operator.core.report import read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpu_operator.api import TPUJob
    from tpu_operator.core.kueue import Queues


MAX_GRACE: Final = 366 * 24 * 3600
"""Seconds; no grace period is meant to be longer."""


class View(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base of all views: immutable, decoded from Kubernetes' camelCase."""


class OwnerReference(View, frozen=True):
    """Who owns an object."""

    uid: str = ""
    controller: bool = False


class Metadata(View, frozen=True):
    """The part of ObjectMeta that decisions read."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = "0"
    generation: int = 0
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int = 0
    owner_references: list[OwnerReference] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        kept = {key: value for key, value in self.labels.items() if key.startswith(names.READ)}
        if len(kept) != len(self.labels):
            msgspec.structs.force_setattr(self, "labels", kept)

    @property
    def owner_uid(self) -> str:
        """UID of the controlling owner, empty when there is none."""
        return next((o.uid for o in self.owner_references if o.controller), "")


class PodAnnotations(View, frozen=True):
    """The annotations of a pod that decisions read."""

    maintenance: str = msgspec.field(default="", name=names.ANNOTATION_MAINTENANCE)


class PodMetadata(Metadata, frozen=True):
    """Metadata of a pod."""

    annotations: PodAnnotations = PodAnnotations()


class NodeAnnotations(View, frozen=True):
    """The annotations of a node that decisions read."""

    machine_end: str = msgspec.field(default="", name=names.NODE_MACHINE_END)


class NodeMetadata(Metadata, frozen=True):
    """Metadata of a node, with all of its labels: pods may ask for any."""

    annotations: NodeAnnotations = NodeAnnotations()

    def __post_init__(self) -> None:
        pass


class Terminated(View, frozen=True):
    """How a container ended."""

    exit_code: int = 0
    signal: int | None = None
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class Waiting(View, frozen=True):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class Running(View, frozen=True):
    """Since when a container runs."""

    started_at: datetime | None = None


class ContainerState(View, frozen=True):
    """One of waiting, running, terminated."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(View, frozen=True):
    """State of one container."""

    name: str
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    ready: bool = False
    restart_count: int = 0


class PodCondition(View, frozen=True):
    """A condition of a pod."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class PodStatus(View, frozen=True):
    """The part of PodStatus that decisions read."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: list[PodCondition] = msgspec.field(default_factory=list)
    container_statuses: list[ContainerStatus] = msgspec.field(default_factory=list)
    init_container_statuses: list[ContainerStatus] = msgspec.field(default_factory=list)


class Limits(View, frozen=True):
    """The part of a container's limits that decisions read."""

    tpu: str | int = msgspec.field(default="", name=names.TPU_RESOURCE)


class Resources(View, frozen=True):
    """The part of a container's resources that decisions read."""

    limits: Limits = Limits()


class Container(View, frozen=True):
    """A container of a pod."""

    name: str
    resources: Resources = Resources()


class NodeSelector(View, frozen=True):
    """The part of a node selector that decisions read."""

    pool: str = msgspec.field(default="", name=names.NODE_POOL)


class SchedulingGroup(View, frozen=True):
    """The group with which the scheduler places a pod."""

    pod_group_name: str = ""


class PodSpec(View, frozen=True):
    """The part of PodSpec that decisions read."""

    node_name: str = ""
    scheduling_group: SchedulingGroup = SchedulingGroup()
    node_selector: NodeSelector = NodeSelector()
    restart_policy: str = ""
    termination_grace_period_seconds: int = 30
    containers: list[Container] = msgspec.field(default_factory=list)


class Pod(View, frozen=True):
    """A pod, as a rule of ours."""

    metadata: PodMetadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def name(self) -> str:
        """Name of the pod."""
        return self.metadata.name

    @property
    def chips(self) -> int:
        """Chips that its containers take, which a quota of its namespace counts."""
        return sum(int(quantity(each.resources.limits.tpu) or 0) for each in self.spec.containers)

    @property
    def attempt(self) -> int:
        """Attempt it was created for; -1 when the label is missing or no number."""
        number = whole(self.metadata.labels.get(names.LABEL_ATTEMPT))
        return -1 if number is None else number

    @property
    def deleting(self) -> bool:
        """Whether it has been asked to go."""
        return self.metadata.deletion_timestamp is not None

    @property
    def deletion_requested(self) -> datetime | None:
        """When it was asked to go; the server stores that moment plus the grace period."""
        stamp, grace = self.metadata.deletion_timestamp, self.metadata.deletion_grace_period_seconds
        return stamp - timedelta(seconds=min(grace, MAX_GRACE)) if stamp else None

    @property
    def disruption_target(self) -> PodCondition | None:
        """The condition by which Kubernetes says that it takes the pod away."""
        condition = self.condition("DisruptionTarget")
        return condition if condition is not None and condition.status == "True" else None

    @property
    def told_to_go(self) -> datetime | None:
        """When the pod was first told to go, by whomever; None if it never was."""
        target = self.disruption_target
        times = (target.last_transition_time if target else None, self.deletion_requested)
        return min((time for time in times if time is not None), default=None)

    @property
    def stopped(self) -> bool:
        """Whether the user's command ended only because the pod was told to go, whatever its exit code.

        The launcher says so, and says nothing of a command that is done; a head has no launcher.
        """
        told, ended = self.told_to_go, self.terminated
        if told is None or ended is None:
            return False
        if (report := read(ended.message)) is not None:
            return report.terminated
        is_head = self.metadata.labels.get(names.LABEL_COMPONENT) == names.HEAD
        return is_head and ended.finished_at is not None and ended.finished_at > told

    @property
    def main(self) -> ContainerStatus | None:
        """Status of the container that runs the user's command: `main`, or else the first of the spec."""
        statuses = self.status.container_statuses
        for status in statuses:
            if status.name == names.MAIN_CONTAINER:
                return status
        first = self.spec.containers[0].name if self.spec.containers else ""
        return next((status for status in statuses if status.name == first), None)

    @property
    def terminated(self) -> Terminated | None:
        """How the main container ended, if it did."""
        main = self.main
        return main.state.terminated if main else None

    @property
    def succeeded(self) -> bool:
        """Whether the user's command ended with 0, by itself, whatever becomes of its sidecars."""
        ended = self.terminated
        if ended is None:
            return self.status.phase == "Succeeded"
        return ended.exit_code == 0 and not self.stopped

    @property
    def restartable(self) -> bool:
        """Whether its kubelet starts containers of it again that have failed."""
        ended = self.deleting or self.status.phase in {"Succeeded", "Failed"}
        return self.spec.restart_policy == "OnFailure" and not ended

    @property
    def failed(self) -> bool:
        """Whether the user's command failed for good, or the pod without it."""
        ended = (self.terminated is not None and not self.restartable) or self.status.phase == "Failed"
        return ended and not self.succeeded

    @property
    def finished(self) -> bool:
        """Whether nothing of it runs any more; the phase may say so later than the containers do."""
        statuses = self.status.container_statuses
        ended = bool(statuses) and all(map(self._is_over, statuses))
        return ended or self.status.phase in {"Succeeded", "Failed"}

    def _is_over(self, status: ContainerStatus) -> bool:
        ended = status.state.terminated
        return ended is not None and (ended.exit_code == 0 or not self.restartable)

    @property
    def ready(self) -> bool:
        """Whether its Ready condition is true."""
        condition = self.condition("Ready")
        return condition is not None and condition.status == "True"

    @property
    def bound_since(self) -> datetime | None:
        """When it was bound to its node, or at least made; None if that is not known."""
        scheduled = self.condition("PodScheduled")
        time = scheduled.last_transition_time if scheduled and scheduled.status == "True" else None
        return time or self.metadata.creation_timestamp

    def condition(self, kind: str) -> PodCondition | None:
        """The condition of that type, or None."""
        for condition in self.status.conditions:
            if condition.type == kind:
                return condition
        return None


class ServicePort(View, frozen=True):
    """A port of a Service."""

    name: str = ""
    port: int = 0


class ServiceSpec(View, frozen=True):
    """The part of ServiceSpec that we set."""

    selector: dict[str, str] = msgspec.field(default_factory=dict)
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    publish_not_ready_addresses: bool = False
    ports: list[ServicePort] = msgspec.field(default_factory=list)


class Service(View, frozen=True):
    """A headless Service of ours."""

    metadata: Metadata
    spec: ServiceSpec = ServiceSpec()


class GangPolicy(View, frozen=True):
    """How many pods of a group have to find nodes at the same time."""

    min_count: int = 0


class SchedulingPolicy(View, frozen=True):
    """How the pods of a group are scheduled."""

    gang: GangPolicy = GangPolicy()


class PodGroupSpec(View, frozen=True):
    """The part of PodGroupSpec that we set."""

    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    priority_class_name: str = ""


class PodGroup(View, frozen=True):
    """A PodGroup of ours."""

    metadata: Metadata
    spec: PodGroupSpec = PodGroupSpec()


class Taint(View, frozen=True):
    """What keeps pods off a node."""

    key: str
    value: str = ""
    effect: str = ""


class NodeSpec(View, frozen=True):
    """The part of NodeSpec that decisions read."""

    taints: list[Taint] = msgspec.field(default_factory=list)
    unschedulable: bool = False


class NodeCondition(View, frozen=True):
    """A condition of a node."""

    type: str
    status: str = "Unknown"
    last_heartbeat_time: datetime | None = None
    last_transition_time: datetime | None = None


class Allocatable(View, frozen=True):
    """What pods may use of a node."""

    chips: str = msgspec.field(default="0", name=names.TPU_RESOURCE)


class NodeStatus(View, frozen=True):
    """The part of NodeStatus that decisions read."""

    conditions: list[NodeCondition] = msgspec.field(default_factory=list)
    allocatable: Allocatable = Allocatable()


class Node(View, frozen=True):
    """A machine."""

    metadata: NodeMetadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def pool(self) -> str:
        """The node pool that it belongs to, empty when it has none."""
        return self.metadata.labels.get(names.NODE_POOL, "")

    @property
    def ready(self) -> NodeCondition:
        """Its Ready condition; one of status Unknown while its kubelet has not said anything."""
        for condition in self.status.conditions:
            if condition.type == "Ready":
                return condition
        return NodeCondition("Ready")

    @property
    def chips(self) -> int:
        """Chips that pods may ask for; a node is of no use before its device plugin has counted them."""
        return whole(self.status.allocatable.chips) or 0


class ScopeRequirement(View, frozen=True):
    """What a quota asks of pods; a scope by its name alone asks that it exists."""

    scope_name: str
    operator: str = "Exists"
    values: list[str] = msgspec.field(default_factory=list)


class ScopeSelector(View, frozen=True):
    """What a quota asks of pods, all of it."""

    match_expressions: list[ScopeRequirement] = msgspec.field(default_factory=list)


class QuotaSpec(View, frozen=True):
    """Which pods a quota is about."""

    scopes: list[str] = msgspec.field(default_factory=list)
    scope_selector: ScopeSelector = ScopeSelector()


class QuotaStatus(View, frozen=True):
    """What a quota allows, and how much of that is used: by resource, as quantities."""

    hard: dict[str, str] = msgspec.field(default_factory=dict)
    used: dict[str, str] = msgspec.field(default_factory=dict)


class Quota(View, frozen=True):
    """A ResourceQuota."""

    metadata: Metadata
    spec: QuotaSpec = QuotaSpec()
    status: QuotaStatus = QuotaStatus()


class _Shaped(View, frozen=True):
    """The part of a spec that says what the TPUs are."""

    tpu: dict[str, Any] = msgspec.field(default_factory=dict)


class CustomAnnotations(View, frozen=True):
    """The annotations of an object of our kinds that decisions read."""

    promoted: str = msgspec.field(default="", name=names.ANNOTATION_PROMOTED)


class CustomMetadata(Metadata, frozen=True):
    """Metadata of an object of our kinds."""

    annotations: CustomAnnotations = CustomAnnotations()


class Custom(View, frozen=True):
    """An object of one of our kinds, undecoded: pydantic reads it when it is reconciled.

    The spec is as it came, since a megabyte of a template would be many of dictionaries.
    """

    metadata: CustomMetadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        # Else it would keep all of the answer that it was in.
        msgspec.structs.force_setattr(self, "spec", self.spec.copy())

    @property
    def tpu(self) -> dict[str, Any]:
        """What `spec.tpu` says; nothing where that makes no sense."""
        try:
            return msgspec.json.decode(self.spec, type=_Shaped).tpu
        except (msgspec.MsgspecError, RecursionError):
            return {}


class Scaler(View, frozen=True):
    """A TPUInferenceScaler."""

    metadata: Metadata
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """All that the decision about one TPUJob may depend on, apart from the time.

    Attributes:
        job: the TPUJob.
        pods: every pod with the job's label in its namespace, by name, whoever owns it.
        services: Services with the job's label, by name.
        nodes: the nodes.
        pools: node pools and who holds them.
        refusal: what the API server said when it last refused to create a child, empty when it did not.
        pod_groups: PodGroups with the job's label, by name; None where the cluster serves no PodGroups.
        quotas: of the job's namespace.
        queues: what there is of Kueue's; None where the cluster does not serve it.
        gone: pods that are gone, as they were last seen, until there are others of their names.
    """

    job: TPUJob
    pods: Mapping[str, Pod]
    services: Mapping[str, Service]
    nodes: Nodes = field(default_factory=Nodes)
    refusal: str = ""
    pools: Pools = field(default_factory=Pools)
    pod_groups: Mapping[str, PodGroup] | None = None
    quotas: Quotas = field(default_factory=Quotas)
    queues: Queues | None = None
    gone: Mapping[str, Pod] = field(default_factory=dict)

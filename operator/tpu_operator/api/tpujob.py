"""TPUJob: a training or batch job on one or more TPU slices."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from tpu_operator.api.common import (
    Condition,
    EnvVar,
    MicroTime,
    Model,
    ObjectMeta,
    ObjectName,
    ResourceRequirements,
    Time,
)
from tpu_operator.api.extensions import (
    ATOMIC_LIST,
    POD_TEMPLATE,
    SET_LIST,
    map_list,
    rule,
    validations,
)
from tpu_operator.api.tpu import MAX_SLICES, TPUSpec
from tpu_operator.api.tpujob_rules import job_rules, spec_rules

MAX_SECONDS = 10 * 365 * 24 * 3600
MAX_ATTEMPT = 999_999_999
"""Nine digits are what the operator reads back from a pod's label."""


class Phase(StrEnum):
    """Where a job stands, in one word; derived from its conditions."""

    PENDING = "Pending"
    SUSPENDED = "Suspended"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ConditionType(StrEnum):
    """Types of a job's conditions."""

    READY = "Ready"
    SUSPENDED = "Suspended"
    RESTARTING = "Restarting"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    BLOCKED = "Blocked"
    MAINTENANCE_SCHEDULED = "MaintenanceScheduled"


class BlockedReason(StrEnum):
    """Why a job cannot go on at the moment: reason of the condition Blocked and of status.pending."""

    NO_MATCHING_NODES = "NoMatchingNodes"
    CAPACITY_IN_USE = "CapacityInUse"
    UNSCHEDULABLE = "Unschedulable"
    QUOTA_EXCEEDED = "QuotaExceeded"
    AWAITING_ADMISSION = "AwaitingAdmission"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CREATE_REFUSED = "CreateRefused"
    PLACEMENT_MISMATCH = "PlacementMismatch"
    ENVIRONMENT_CONFLICT = "EnvironmentConflict"
    WAITING_FOR_OLD_PODS = "WaitingForOldPods"


class Cause(StrEnum):
    """What made a host fail."""

    USER_ERROR = "UserError"
    OUT_OF_MEMORY = "OutOfMemory"
    PREEMPTED = "Preempted"
    EVICTED = "Evicted"
    NODE_LOST = "NodeLost"
    MAINTENANCE = "Maintenance"
    POD_DELETED = "PodDeleted"
    TPU_FAULT = "TPUFault"
    HANG = "Hang"
    STARTUP_TIMEOUT = "StartupTimeout"
    PLACEMENT_MISMATCH = "PlacementMismatch"
    LAUNCHER_ERROR = "LauncherError"


class SliceState(StrEnum):
    """Where one slice stands."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    SPARE = "Spare"


class Launcher(StrEnum):
    """How the command is started on every host."""

    TORCHRUN = "torchrun"
    RAY = "ray"
    JAX = "jax"
    NONE = "none"


class RestartScope(StrEnum):
    """What restarts when a host fails."""

    SLICE = "Slice"
    JOB = "Job"


class RestartStrategy(StrEnum):
    """How it restarts."""

    RECREATE = "Recreate"
    IN_PLACE = "InPlace"


class RuleAction(StrEnum):
    """What a failure rule does."""

    RESTART = "Restart"
    RESTART_UNCOUNTED = "RestartUncounted"
    FAIL_JOB = "FailJob"
    IGNORE = "Ignore"


class SuccessPolicy(StrEnum):
    """Whose success is the job's."""

    ALL = "All"
    LEADER = "Leader"


class GangPolicy(StrEnum):
    """How the pods of the job are scheduled together."""

    AUTO = "Auto"
    POD_GROUP = "PodGroup"
    NONE = "None"


class Placement(StrEnum):
    """Whether slices share node pools."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"


class MaintenanceAction(StrEnum):
    """What to do when maintenance of a node is announced."""

    CHECKPOINT = "Checkpoint"
    RESTART = "Restart"
    IGNORE = "Ignore"


class CompileCache(Model):
    """Where compiled programs are kept, so that a restart does not compile again."""

    model_config = ConfigDict(
        json_schema_extra=validations(
            rule(
                "[has(self.persistentVolumeClaim), has(self.hostPath), has(self.uri)].exists_one(x, x)",
                "must name one place: set exactly one of persistentVolumeClaim, hostPath and uri",
            )
        )
    )

    persistent_volume_claim: ObjectName | None = Field(
        default=None,
        description="Name of a PersistentVolumeClaim in the job's namespace, mounted on every host.",
    )
    host_path: str | None = Field(
        default=None,
        description="Directory on the node, created if absent; only where the chart's value "
        "allowHostPathCaches allows it.",
        max_length=4096,
        json_schema_extra=validations(
            rule("self.startsWith('/')", "must be an absolute path, such as /var/cache/tpu")
        ),
    )
    uri: str | None = Field(
        default=None,
        description="Location that the framework itself reads and writes, such as gs://bucket/path.",
        max_length=4096,
        json_schema_extra=validations(
            rule("self.matches('^[a-z][a-z0-9+.-]*://.')", "must be a URI, such as gs://bucket/path")
        ),
    )


class RunSpec(Model):
    """The program that runs on every host: the main container of the pods."""

    image: str | None = Field(
        default=None,
        description="Image of the main container; default: the operator's runtime image.",
        min_length=1,
        max_length=2048,
    )
    command: list[str] = Field(
        description="Program to run and its first arguments; the launcher starts it, so the image's "
        "entrypoint is not used.",
        min_length=1,
        max_length=1024,
        json_schema_extra=ATOMIC_LIST,
    )
    args: list[str] = Field(
        default_factory=list,
        description="Arguments after the command.",
        max_length=4096,
        json_schema_extra=ATOMIC_LIST,
    )
    env: list[EnvVar] = Field(
        default_factory=list,
        description="Environment of the main container. A value set here wins over the operator's.",
        max_length=1024,
        json_schema_extra=map_list("name"),
    )
    working_dir: str | None = Field(
        default=None,
        description="Directory to run in; default: the image's.",
        min_length=1,
        max_length=4096,
    )
    resources: ResourceRequirements = Field(
        default=ResourceRequirements(),
        description="Resources of the main container besides google.com/tpu, which the operator sets.",
    )
    launcher: Launcher = Field(
        default=Launcher.TORCHRUN,
        description="How the command is started: torchrun (PyTorch, one process per device), jax, "
        "ray (a Ray cluster on the hosts, with the command as its driver) or none (the command alone).",
    )
    processes_per_host: int | None = Field(
        default=None,
        description="Processes on each host; default: the devices of a host for torchrun, else 1.",
        ge=1,
        le=512,
    )
    compile_cache: CompileCache | None = Field(
        default=None, description="Where compiled programs are kept over restarts; default: nowhere."
    )
    preflight: bool = Field(
        default=False,
        description="Look at each host with tpu-doctor before the job starts on it; what is an error there "
        "fails the pod.",
    )


class FailureRule(Model):
    """Decides what happens after failures that match all the fields given."""

    model_config = ConfigDict(
        json_schema_extra=validations(
            rule(
                "has(self.onCauses) || has(self.onExitCodes) || has(self.onMessage)",
                "must say which failures it is about: set onCauses, onExitCodes or onMessage",
            )
        )
    )

    on_causes: list[Cause] = Field(
        default_factory=list,
        description="Matches a failure with one of these causes.",
        min_length=1,
        max_length=32,
        json_schema_extra=SET_LIST,
    )
    on_exit_codes: list[Annotated[int, Field(ge=1, le=255)]] = Field(
        default_factory=list,
        description="Matches a main container that ended with one of these codes.",
        min_length=1,
        max_length=255,
        json_schema_extra=SET_LIST,
    )
    on_message: str | None = Field(
        default=None,
        description="Matches a failure whose message contains this text.",
        min_length=1,
        max_length=1024,
    )
    action: RuleAction = Field(
        description="Restart, RestartUncounted (not charged to maxRestarts), FailJob, or Ignore."
    )


class FailurePolicy(Model):
    """What happens when a host fails."""

    max_restarts: int = Field(
        default=3,
        description="Restarts before the job fails. Those that the cluster caused are free: only "
        "UserError, OutOfMemory, Hang, StartupTimeout and LauncherError count.",
        ge=0,
        le=1_000_000,
    )
    restart_scope: RestartScope = Field(
        default=RestartScope.JOB,
        description="What restarts when a host fails: the whole Job, or its Slice. With launcher ray always "
        "the whole job: its slices are one Ray cluster.",
    )
    restart_strategy: RestartStrategy = Field(
        default=RestartStrategy.RECREATE,
        description="Recreate makes new pods; InPlace starts the processes anew in the pods that are there, "
        "and makes new ones only where that cannot be. Cannot change once the job has started, unless its "
        "phase is Suspended; neither can restartScope with InPlace.",
    )
    coalesce_seconds: int = Field(
        default=10,
        description="Failures within this time of the first are one failure of the gang.",
        ge=0,
        le=3600,
    )
    rules: list[FailureRule] = Field(
        default_factory=list,
        description="Exceptions, in order; the first rule that matches decides.",
        max_length=64,
        json_schema_extra=ATOMIC_LIST,
    )


class Scheduling(Model):
    """How the pods get their nodes."""

    gang: GangPolicy = Field(
        default=GangPolicy.AUTO,
        description="PodGroup lets the scheduler start all pods of a slice or none; None does not; "
        "Auto does where the cluster serves PodGroups and no node pool is seen to be free for the slice.",
    )
    queue_name: ObjectName | None = Field(
        default=None,
        description="Kueue LocalQueue that admits the job; default: no queue. "
        "Cannot change once the job has started, unless its phase is Suspended.",
    )
    priority_class_name: ObjectName | None = Field(default=None, description="PriorityClass of the pods.")
    placement: Placement = Field(
        default=Placement.EXCLUSIVE,
        description="Exclusive keeps every slice in one node pool of its own; Shared lets slices share.",
    )


class Maintenance(Model):
    """How announced maintenance of nodes is met."""

    on_notice: MaintenanceAction = Field(
        default=MaintenanceAction.CHECKPOINT,
        description="Checkpoint signals the processes to save their state; Restart moves the slice to "
        "other nodes; Ignore waits for the failure.",
    )
    lead_seconds: int = Field(
        default=300,
        description="How long before the announced time to act.",
        ge=0,
        le=7 * 24 * 3600,
    )


class TPUJobSpec(Model):
    """What to run, on which TPUs, and how to meet failures."""

    model_config = ConfigDict(json_schema_extra=validations(*spec_rules()))

    tpu: TPUSpec = Field(
        description="Which TPUs. Cannot change once the job has started, unless its phase is Suspended."
    )
    run: RunSpec = Field(
        description="What runs on every host. Cannot change once the job has started, unless its phase is "
        "Suspended."
    )
    template: dict[str, Any] | None = Field(
        default=None,
        description="Pod template merged over the pods that the operator builds; containers by name, "
        "the operator's being called main. A change shows in the pods of the next attempt.",
        json_schema_extra=POD_TEMPLATE,
    )
    head: dict[str, Any] | None = Field(
        default=None,
        description="Pod template of one more pod without TPUs, such as a driver. With launcher ray it is "
        "the head of the Ray cluster, and its container main runs the command. A change shows in the next "
        "attempt.",
        json_schema_extra=POD_TEMPLATE,
    )
    failure_policy: FailurePolicy = Field(
        default=FailurePolicy(), description="What happens when a host fails."
    )
    success_policy: SuccessPolicy = Field(
        default=SuccessPolicy.ALL,
        description="All: every host has to succeed. Leader: host 0 of slice 0, or the head, decides.",
    )
    suspend: bool = Field(
        default=False, description="Stop the pods and keep the job, or do not start it yet."
    )
    active_deadline_seconds: int | None = Field(
        default=None, description="The job fails after this time since its start.", ge=1, le=MAX_SECONDS
    )
    startup_timeout_seconds: int | None = Field(
        default=None,
        description="A gang whose pods are bound but not all ready within this time has failed. "
        "Waiting for nodes does not count.",
        ge=1,
        le=MAX_SECONDS,
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None,
        description="The job is deleted this long after its end; default: it is kept.",
        ge=0,
        le=MAX_SECONDS,
    )
    scheduling: Scheduling = Field(default=Scheduling(), description="How the pods get their nodes.")
    maintenance: Maintenance = Field(
        default=Maintenance(), description="How announced maintenance of nodes is met."
    )
    managed_by: str | None = Field(
        default=None,
        description="Controller that runs the job in place of this operator, for MultiKueue. Cannot change.",
        min_length=1,
        max_length=63,
        json_schema_extra=validations(
            rule(
                "self.matches('^[a-z0-9.-]+/[A-Za-z0-9._-]+$')",
                "must be a domain and a name, such as kueue.x-k8s.io/multikueue",
            )
        ),
    )

    @property
    def slices_alone(self) -> bool:
        """Whether each slice restarts alone; a Ray cluster, which is made of all of them, is never mixed."""
        scope = self.failure_policy.restart_scope
        return scope is RestartScope.SLICE and self.run.launcher is not Launcher.RAY


class Failure(Model):
    """One failure of a host: the earliest of its gang, which caused the others."""

    cause: Cause = Field(
        description="What made the host fail: the program (UserError, OutOfMemory, Hang), the cluster "
        "(Preempted, Evicted, NodeLost, Maintenance, PodDeleted, PlacementMismatch), the hardware (TPUFault) "
        "or the start (StartupTimeout, LauncherError)."
    )
    attempt: int = Field(default=0, description="Attempt of the slice that failed.", ge=0)
    pod: str | None = Field(default=None, description="Name of the pod.")
    slice: int | None = Field(default=None, description="Index of the slice; absent for the head.", ge=0)
    host: int | None = Field(
        default=None, description="Index of the host in the slice; absent for the head.", ge=0
    )
    container: str | None = Field(default=None, description="Name of the container that ended.")
    exit_code: int | None = Field(default=None, description="Exit code of the container.")
    signal: int | None = Field(default=None, description="Number of the signal that ended it.")
    reason: str | None = Field(default=None, description="Reason that Kubernetes gives.", max_length=1024)
    message: str | None = Field(default=None, description="What is known, in words.", max_length=32768)
    time: MicroTime | None = Field(default=None, description="When it failed.")


class Hosts(Model):
    """Counts of hosts."""

    desired: int = Field(default=0, description="Hosts that the job needs.", ge=0)
    ready: int = Field(default=0, description="Hosts that are ready.", ge=0)


class SliceStatus(Model):
    """State of one slice."""

    index: int = Field(description="Index of the slice.", ge=0, le=2 * MAX_SLICES - 1)
    attempt: int = Field(default=0, description="Restarts of this slice so far.", ge=0, le=MAX_ATTEMPT)
    restarts_in_place: int = Field(
        default=0, description="Those of them that kept the pods.", ge=0, le=MAX_ATTEMPT
    )
    in_place_since: Time | None = Field(
        default=None, description="Since when a restart in place is under way; absent if none is."
    )
    state: SliceState = Field(
        default=SliceState.PENDING,
        description="Where the slice stands; Spare for one that waits to take over from another.",
    )
    ready: str = Field(default="", description='Hosts that are ready of those it has: "3/4".')
    node_pool: str | None = Field(default=None, description="Node pool that holds the slice.")
    last_failure: Failure | None = Field(default=None, description="Root of the last failure in this slice.")


class Restarts(Model):
    """Counts of restarts."""

    total: int = Field(default=0, description="All restarts.", ge=0)
    counted: int = Field(default=0, description="Restarts charged to maxRestarts.", ge=0)
    by_cause: dict[Cause, int] = Field(
        default_factory=dict, description="All restarts, by cause.", max_length=64
    )
    since_ready: int = Field(
        default=0,
        description="Restarts since all hosts were last ready; each one after the first waits longer.",
        ge=0,
    )
    last_time: Time | None = Field(default=None, description="When the last restart was decided.")


class Pending(Model):
    """What the job is waiting for."""

    reason: BlockedReason = Field(description="Why it waits, in one word.")
    message: str = Field(default="", description="Why it waits, and what would help.", max_length=32768)
    since: Time | None = Field(default=None, description="Since when.")


class TPUJobStatus(Model):
    """What has been observed of the job."""

    observed_generation: int | None = Field(
        default=None, description="Generation of the spec that this status speaks about.", ge=0
    )
    phase: Phase = Field(
        default=Phase.PENDING, description="Where the job stands, derived from the conditions."
    )
    reason: str | None = Field(
        default=None,
        description="Why it stands there, in one word, where there is more to say than the phase does: "
        "the reason of the condition Failed, Restarting or Blocked.",
        max_length=1024,
    )
    message: str | None = Field(
        default=None, description="The same in words: the message of that condition.", max_length=32768
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        description="Ready, Suspended, Restarting, Succeeded, Failed, Blocked, MaintenanceScheduled.",
        max_length=32,
        json_schema_extra=map_list("type"),
    )
    ready: str = Field(default="", description='Hosts that are ready of those the job needs: "3/4".')
    hosts: Hosts = Field(default=Hosts(), description="The same as numbers.")
    slices: list[SliceStatus] = Field(
        default_factory=list,
        description="State of every slice, spare ones included.",
        max_length=2 * MAX_SLICES,
        json_schema_extra=map_list("index"),
    )
    restarts: Restarts = Field(default=Restarts(), description="Restarts so far.")
    last_failure: Failure | None = Field(
        default=None, description="Root of the last failure: the earliest of its gang."
    )
    pending: Pending | None = Field(
        default=None, description="What the job is waiting for; absent if nothing."
    )
    start_time: Time | None = Field(
        default=None, description="When the job started; absent while it is suspended."
    )
    completion_time: Time | None = Field(default=None, description="When the job succeeded or failed.")


class TPUJob(Model):
    """A training or batch job on one or more TPU slices, started, watched and restarted as one gang."""

    model_config = ConfigDict(json_schema_extra=validations(*job_rules()))

    api_version: Literal["tpu-operator.dev/v1alpha1"] = Field(
        default="tpu-operator.dev/v1alpha1", description="Version of the API."
    )
    kind: Literal["TPUJob"] = Field(default="TPUJob", description="Kind of the object.")
    metadata: Annotated[ObjectMeta, WithJsonSchema({"type": "object"})] = Field(
        description="Name, labels and the like."
    )
    spec: TPUJobSpec = Field(description="What to run, on which TPUs, and how to meet failures.")
    status: TPUJobStatus = Field(
        default=TPUJobStatus(), description="What the operator has observed; written by it alone."
    )

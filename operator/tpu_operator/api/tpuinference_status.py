"""What has been observed of a TPUInference."""

from enum import StrEnum

from pydantic import Field

from tpu_operator.api.common import Condition, Model, Time
from tpu_operator.api.extensions import map_list
from tpu_operator.api.tpuinference_canary import MAX_QUERIES
from tpu_operator.api.tpuinference_rules import MAX_GROUPS, MAX_ROLES
from tpu_operator.api.tpujob import BlockedReason, Failure

MAX_REVISIONS = 16
"""Revisions that have replicas at one time, and that the status speaks of."""


class InferencePhase(StrEnum):
    """Where a TPUInference stands, in one word; derived from its conditions."""

    PENDING = "Pending"
    STARTING = "Starting"
    SERVING = "Serving"
    ROLLING = "Rolling"
    DEGRADED = "Degraded"
    UNAVAILABLE = "Unavailable"
    STOPPED = "Stopped"


class InferenceConditionType(StrEnum):
    """Types of a TPUInference's conditions."""

    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    BLOCKED = "Blocked"


class GroupState(StrEnum):
    """Where one replica, which is one slice, stands."""

    PENDING = "Pending"
    STARTING = "Starting"
    READY = "Ready"
    NOT_READY = "NotReady"
    RESTARTING = "Restarting"
    DRAINING = "Draining"


class HoldGate(StrEnum):
    """What a rollout waits for."""

    READINESS = "Readiness"
    RATIO = "Ratio"
    PAIRING = "Pairing"
    SURGE = "Surge"
    CAPACITY = "Capacity"
    PAUSE = "Pause"
    PARTITION = "Partition"
    ANALYSIS = "Analysis"
    DRAIN = "Drain"
    DEADLINE = "Deadline"


class RolloutState(StrEnum):
    """How far the replicas are of one revision."""

    IDLE = "Idle"
    ROLLING = "Rolling"
    HELD = "Held"


class Verdict(StrEnum):
    """What an analysis, one of its rounds or one of its queries says of a revision."""

    PASSED = "Pass"
    FAILED = "Fail"
    INCONCLUSIVE = "Inconclusive"


class RoleCount(Model):
    """Replicas of one role in one revision."""

    name: str = Field(description="Name of the role.")
    replicas: int = Field(
        default=0, description="Replicas that there are, those that leave not counted.", ge=0
    )
    ready: int = Field(default=0, description="Replicas of which all hosts are ready.", ge=0)


class RevisionStatus(Model):
    """One revision that has replicas."""

    name: str = Field(description="Hash of all that its pods are made from; a label of them.")
    kv_compat: str = Field(default="", description="Token of the KV layout; a label of its pods.")
    roles: list[RoleCount] = Field(
        default_factory=list,
        description="Its replicas, by role.",
        max_length=MAX_ROLES,
        json_schema_extra=map_list("name"),
    )
    servable: bool = Field(
        default=False, description="Whether it has a ready replica of every role, and so can serve requests."
    )


class RoleStatus(Model):
    """Replicas of one role, of all revisions."""

    name: str = Field(description="Name of the role.")
    desired: int = Field(default=0, description="Replicas that it should have.", ge=0)
    replicas: int = Field(
        default=0, description="Replicas that there are, those that leave not counted.", ge=0
    )
    ready: int = Field(default=0, description="Replicas of which all hosts are ready.", ge=0)
    updated: int = Field(default=0, description="Replicas of the newest revision.", ge=0)
    available: int = Field(default=0, description="Replicas that have been ready for minReadySeconds.", ge=0)


class GroupStatus(Model):
    """One replica of a role: the hosts of one slice, which start, fail and restart together."""

    name: str = Field(
        description="Name of the replica: its role, revision and index. A host's pod adds to it."
    )
    role: str = Field(description="Name of the role.")
    revision: str = Field(description="Revision that its pods are made from.")
    index: int = Field(default=0, description="Index among those of its role and revision.", ge=0)
    attempt: int = Field(default=0, description="Restarts of the replica so far.", ge=0)
    state: GroupState = Field(
        default=GroupState.PENDING,
        description="Where the replica stands; NotReady for one that was ready and has not failed.",
    )
    reason: str | None = Field(
        default=None,
        description="Why it was last made anew: the cause of its failure, or NodePoolUnavailable.",
        max_length=1024,
    )
    ready: str = Field(default="", description='Hosts that are ready of those it has: "3/4".')
    since: Time | None = Field(
        default=None, description="Since when it is ready, or leaves; absent otherwise."
    )
    node_pool: str | None = Field(default=None, description="Node pool that holds the slice.")
    restarts_since_ready: int = Field(
        default=0,
        description="Restarts since it was last ready; each one after the first waits longer.",
        ge=0,
    )
    last_restart: Time | None = Field(default=None, description="When the last restart was decided.")
    last_failure: Failure | None = Field(default=None, description="Root of its last failure.")


class RolloutHold(Model):
    """What a rollout waits for."""

    gate: HoldGate = Field(description="What has to change first, in one word.")
    reason: str = Field(default="", description="The same in words.", max_length=32768)
    since: Time | None = Field(default=None, description="Since when.")


class QueryStatus(Model):
    """What a query was answered in the last round."""

    name: str = Field(description="Name of the query.")
    value: str = Field(default="", description="The number; empty if there was none.", max_length=64)
    verdict: Verdict = Field(description="Pass: the value is right. Inconclusive: there is none.")
    message: str = Field(default="", description="Why it has not passed, in words.", max_length=1024)


class AnalysisStatus(Model):
    """How far the analysis of a canary step is."""

    step: int = Field(default=1, description="The step that it is about, from 1.", ge=1)
    verdict: Verdict | None = Field(default=None, description="What the last round has found.")
    rounds: int = Field(default=0, description="Rounds so far.", ge=0)
    passed: int = Field(default=0, description="Rounds that have passed since one has failed.", ge=0)
    failed: int = Field(default=0, description="Rounds that have failed.", ge=0)
    last: Time | None = Field(default=None, description="When the last round was answered.")
    queries: list[QueryStatus] = Field(
        default_factory=list,
        description="Answers of the last round.",
        max_length=MAX_QUERIES,
        json_schema_extra=map_list("name"),
    )


class Rejection(Model):
    """A revision that an analysis has given up, until the spec asks for another or changes the canary."""

    revision: str = Field(description="The revision.")
    canary: str = Field(default="", description="Hash of spec.rollout.canary at that time.")
    reason: str = Field(default="", description="What the analysis has found.", max_length=32768)
    time: Time | None = Field(default=None, description="When.")


class RolloutStatus(Model):
    """How far a rollout is."""

    state: RolloutState = Field(
        default=RolloutState.IDLE,
        description="Idle: all replicas are of one revision. Rolling: they are not. Held: it waits.",
    )
    step: str = Field(
        default="", description='Replicas of the newest revision that are ready: "prefill 1/2, decode 0/1".'
    )
    canary_step: int = Field(default=0, description="Steps of spec.rollout.canary that are done.", ge=0)
    step_ready_since: Time | None = Field(
        default=None, description="Since when the replicas of the present canary step are ready."
    )
    analysis: AnalysisStatus | None = Field(
        default=None,
        description="What the last analysis of this revision has found; absent if there was none.",
    )
    rejected: Rejection | None = Field(
        default=None,
        description="The revision of the spec, if an analysis has given it up: replicas go back to "
        "currentRevision.",
    )
    last_progress: Time | None = Field(
        default=None, description="When the rollout began, or a replica last became ready in it."
    )
    hold: RolloutHold | None = Field(default=None, description="What it waits for; absent if for nothing.")


class InferencePending(Model):
    """What a replica is waiting for."""

    reason: BlockedReason = Field(description="Why it waits, in one word.")
    message: str = Field(default="", description="Why it waits, and what would help.", max_length=32768)
    since: Time | None = Field(default=None, description="Since when.")


class TPUInferenceStatus(Model):
    """What has been observed of a TPUInference."""

    observed_generation: int | None = Field(
        default=None, description="Generation of the spec that this status speaks about.", ge=0
    )
    phase: InferencePhase = Field(
        default=InferencePhase.PENDING, description="Where it stands, derived from the conditions."
    )
    reason: str | None = Field(
        default=None,
        description="What keeps it from its goal, in one word: the gate of the rollout's hold, or the reason "
        "of the condition Blocked or Degraded.",
        max_length=1024,
    )
    message: str | None = Field(default=None, description="The same in words.", max_length=32768)
    conditions: list[Condition] = Field(
        default_factory=list,
        description="Available, Progressing, Degraded, Blocked.",
        max_length=32,
        json_schema_extra=map_list("type"),
    )
    current_revision: str = Field(
        default="", description="The last revision that all replicas were of.", max_length=63
    )
    updated_revision: str = Field(
        default="",
        description="The revision that replicas are to be of: the one that the spec asks for, or where an "
        "analysis has rejected that, the one before.",
        max_length=63,
    )
    revisions: list[RevisionStatus] = Field(
        default_factory=list,
        description="Revisions that have replicas, the newest first.",
        max_length=MAX_REVISIONS,
        json_schema_extra=map_list("name"),
    )
    roles: list[RoleStatus] = Field(
        default_factory=list,
        description="Replicas by role.",
        max_length=2 * MAX_ROLES,
        json_schema_extra=map_list("name"),
    )
    groups: list[GroupStatus] = Field(
        default_factory=list,
        description="State of every replica.",
        max_length=4 * MAX_GROUPS,
        json_schema_extra=map_list("name"),
    )
    rollout: RolloutStatus = Field(default=RolloutStatus(), description="How far the rollout is.")
    ready: str = Field(
        default="", description='Ready replicas of those it should have: "prefill 2/2, decode 1/1".'
    )
    replicas: int = Field(default=0, description="Copies of the role set that are complete.", ge=0)
    selector: str = Field(
        default="", description="Labels of the pods of all replicas' host 0, for /scale.", max_length=1024
    )
    restarts: int = Field(default=0, description="Restarts of replicas so far.", ge=0)
    last_failure: Failure | None = Field(
        default=None, description="Root of the last failure of a replica: the earliest of its hosts."
    )
    pending: InferencePending | None = Field(
        default=None, description="What a replica is waiting for; absent if none is."
    )

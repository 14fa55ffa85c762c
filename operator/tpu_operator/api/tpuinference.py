"""TPUInference: a model served by several roles, each replica of a role being one TPU slice."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from tpu_operator.api.common import (
    EnvVar,
    LabelValue,
    Model,
    ObjectMeta,
    ObjectName,
    ResourceRequirements,
)
from tpu_operator.api.extensions import (
    ATOMIC_LIST,
    FREE_OBJECT,
    POD_TEMPLATE,
    SERVER_DEFAULT,
    map_list,
    rule,
    validations,
)
from tpu_operator.api.tpu import SliceSpec
from tpu_operator.api.tpuinference_canary import MAX_SECONDS, Canary
from tpu_operator.api.tpuinference_routing import Routing
from tpu_operator.api.tpuinference_rules import (
    MAX_GROUPS,
    MAX_ROLES,
    budget_rules,
    engine_rules,
    inference_rules,
    role_rules,
    spec_rules,
)
from tpu_operator.api.tpuinference_status import TPUInferenceStatus
from tpu_operator.api.tpujob import CompileCache


class EngineType(StrEnum):
    """What serves the model."""

    VLLM = "vllm"
    SGLANG = "sglang"
    CUSTOM = "custom"


class RoleType(StrEnum):
    """What the replicas of a role do for a request."""

    PREFILL = "prefill"
    DECODE = "decode"
    ENCODE = "encode"
    PREFILL_DECODE = "prefill-decode"


class Scaling(StrEnum):
    """Who decides on the replicas of a role."""

    STATIC = "Static"
    EXTERNAL = "External"


class RolloutStrategy(StrEnum):
    """How replicas of an old revision give way to those of a new one."""

    ROLLING_UPDATE = "RollingUpdate"
    RECREATE = "Recreate"


class CapacityShortage(StrEnum):
    """What to do while there are no TPUs for a replica of the new revision."""

    WAIT = "Wait"
    DRAIN_FIRST = "DrainFirst"


class ModelCache(Model):
    """Where weights are kept, so that a replica does not load them over the network again."""

    model_config = ConfigDict(
        json_schema_extra=validations(
            rule(
                "has(self.persistentVolumeClaim) != has(self.hostPath)",
                "must name one place: set exactly one of persistentVolumeClaim and hostPath",
            )
        )
    )

    persistent_volume_claim: ObjectName | None = Field(
        default=None,
        description="Name of a PersistentVolumeClaim in the object's namespace, mounted on every host.",
    )
    host_path: str | None = Field(
        default=None,
        description="Directory on the node, created if absent; only where the chart's value "
        "allowHostPathCaches allows it.",
        max_length=4096,
        json_schema_extra=validations(
            rule("self.startsWith('/')", "must be an absolute path, such as /var/cache/weights")
        ),
    )


class ModelSpec(Model):
    """The model."""

    name: str = Field(
        description="Name of the model, by which clients ask for it, such as Qwen/Qwen3-32B.",
        min_length=1,
        max_length=512,
    )
    source: str | None = Field(
        default=None,
        description="Where its weights are: hf://OWNER/NAME, gs://BUCKET/PATH or pvc://CLAIM/PATH. "
        "Without it the engine loads the model by its name.",
        max_length=4096,
        json_schema_extra=validations(
            rule(
                "self.matches('^(hf|gs)://.+') || self.matches('^pvc://[a-z0-9]([-.a-z0-9]*[a-z0-9])?(/.*)?$')",
                "must be hf://OWNER/NAME, gs://BUCKET/PATH or pvc://CLAIM/PATH",
            )
        ),
    )
    cache: ModelCache | None = Field(
        default=None, description="Where weights are kept over restarts; default: nowhere."
    )


class EngineSpec(Model):
    """The server that runs on the hosts: the main container of the pods."""

    model_config = ConfigDict(json_schema_extra=validations(*engine_rules()))

    type: EngineType = Field(
        description="vllm, sglang or custom. The operator adds the flags, variables and probes by which the "
        "first two form a slice and hand KV caches over; a custom engine has all of that from its command, "
        "args, env and the roles' templates."
    )
    image: str | None = Field(
        default=None,
        description="Image of the main container; default: the operator's runtime image. "
        "A custom engine has to name one.",
        min_length=1,
        max_length=2048,
    )
    command: list[str] = Field(
        default_factory=list,
        description="Program that starts the engine, in place of the usual one; for a custom engine in place "
        "of the image's entrypoint.",
        max_length=256,
        json_schema_extra=ATOMIC_LIST,
    )
    args: list[str] = Field(
        default_factory=list,
        description="Arguments for all roles, after the operator's.",
        max_length=1024,
        json_schema_extra=ATOMIC_LIST,
    )
    env: list[EnvVar] = Field(
        default_factory=list,
        description="Environment of the main container in all roles. A value set here wins over the "
        "operator's, and one set in a role over this.",
        max_length=256,
        json_schema_extra=map_list("name"),
    )
    port: int = Field(
        default=8000,
        description="Port on which requests are served; with a routing sidecar that is the sidecar's.",
        ge=1,
        le=65535,
    )
    resources: ResourceRequirements = Field(
        default=ResourceRequirements(),
        description="Resources of the main container besides google.com/tpu, which the operator sets.",
    )
    compile_cache: CompileCache | None = Field(
        default=None,
        description="Where compiled programs are kept over restarts and rollouts; default: nowhere.",
    )


class RoleBudgets(Model):
    """How far one role may be from its goal during a rollout, in place of what holds for all roles."""

    max_surge: int | None = Field(
        default=None,
        description="Replicas above the goal; default: spec.rollout.maxSurge.",
        ge=0,
        le=MAX_GROUPS,
    )
    max_unavailable: int | None = Field(
        default=None,
        description="Replicas below the goal; default: spec.rollout.maxUnavailable.",
        ge=0,
        le=MAX_GROUPS,
    )


class RoleSpec(Model):
    """Replicas that do the same for every request, each of them one slice."""

    model_config = ConfigDict(json_schema_extra=validations(*role_rules()))

    name: str = Field(
        description="Name of the role; part of the names of its pods.",
        min_length=1,
        max_length=40,
        json_schema_extra=validations(
            rule(
                "self.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
                "must be lower-case letters, digits or '-', starting with a letter and ending with a letter "
                "or digit, such as prefill",
            )
        ),
    )
    type: RoleType = Field(
        description="What its replicas do: prefill, decode, encode, or prefill-decode for both of the first."
    )
    replicas: int = Field(
        default=1,
        description="Replicas in each copy of the role set, each one slice. With scaling External only the "
        "number to begin with.",
        ge=0,
        le=MAX_GROUPS,
    )
    scaling: Scaling = Field(
        default=Scaling.STATIC,
        description="Static: replicas says how many there are. External: the TPUInferenceScaler "
        "NAME-ROLE does, which has /scale for a HorizontalPodAutoscaler.",
    )
    tpu: SliceSpec = Field(description="Which TPUs each replica has.")
    args: list[str] = Field(
        default_factory=list,
        description="Arguments after those of spec.engine.",
        max_length=1024,
        json_schema_extra=ATOMIC_LIST,
    )
    env: list[EnvVar] = Field(
        default_factory=list,
        description="Environment of the main container, over that of spec.engine.",
        max_length=256,
        json_schema_extra=map_list("name"),
    )
    template: dict[str, Any] | None = Field(
        default=None,
        description="Pod template merged over the pods that the operator builds; containers by name, "
        "the engine's being called main.",
        json_schema_extra=POD_TEMPLATE,
    )
    rollout: RoleBudgets = Field(
        default=RoleBudgets(), description="Budgets of this role in place of those of spec.rollout."
    )


class KVTransfer(Model):
    """How KV caches get from one role to another."""

    connector: str = Field(
        description="Connector of the engine, such as TPUConnector, TPUConnectorHMA, TPURaidenConnector or "
        "NixlConnector.",
        min_length=1,
        max_length=253,
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict,
        description="More fields of the engine's configuration of the connector, as they are; they win over "
        "the operator's.",
        json_schema_extra=FREE_OBJECT,
    )


class Rollout(Model):
    """How replicas of an old revision give way to those of a new one, all roles together and in ratio."""

    model_config = ConfigDict(json_schema_extra=validations(*budget_rules()))

    strategy: RolloutStrategy = Field(
        default=RolloutStrategy.ROLLING_UPDATE,
        description="RollingUpdate replaces them bit by bit; Recreate stops all old ones before the first "
        "new one starts, and serves nothing meanwhile.",
    )
    max_surge: int = Field(
        default=1,
        description="Replicas of a role above its goal, each of which needs a free slice.",
        ge=0,
        le=MAX_GROUPS,
    )
    max_unavailable: int = Field(
        default=0,
        description="Replicas of a role below its goal that may not be ready.",
        ge=0,
        le=MAX_GROUPS,
    )
    on_capacity_shortage: CapacityShortage = Field(
        default=CapacityShortage.WAIT,
        description="While there are no TPUs for a new replica: Wait for them, or DrainFirst, which stops "
        "one old replica of each role first, as if maxUnavailable were 1 at least.",
    )
    partition: int = Field(
        default=0,
        description="Copies of the role set that stay at the revision before.",
        ge=0,
        le=MAX_GROUPS,
    )
    paused: bool = Field(
        default=False,
        description="Stop where the rollout is; what fails is still repaired.",
    )
    canary: Canary | None = Field(
        default=None, description="Steps by which a new revision gets its share; default: none."
    )
    progress_deadline_seconds: int = Field(
        default=600,
        description="A rollout in which no replica becomes ready for so long is reported as one that does "
        "not progress. It goes on as soon as it can.",
        ge=1,
        le=MAX_SECONDS,
    )
    revision_history_limit: int = Field(
        default=10, description="Old revisions without replicas to remember.", ge=0, le=100
    )
    min_ready_seconds: int = Field(
        default=0,
        description="How long a replica has to be ready before it counts as available.",
        ge=0,
        le=MAX_SECONDS,
    )
    allow_downtime: bool = Field(
        default=False,
        description="Let a rollout pass through states in which no revision has a ready replica of every "
        "role, where budgets leave no other way.",
    )


class Drain(Model):
    """How a replica stops without losing streams. Its pods have the sum and 15 seconds more to end."""

    route_away_seconds: int = Field(
        default=15,
        description="From when no new requests are sent to a replica until it is told to stop.",
        ge=0,
        le=3600,
    )
    engine_seconds: int = Field(
        default=45,
        description="How long the engine may then take to finish what it is at.",
        ge=0,
        le=MAX_SECONDS,
    )


class TPUInferenceSpec(Model):
    """Which model, served by which roles, and how it is rolled out and reached."""

    model_config = ConfigDict(json_schema_extra=validations(*spec_rules()))

    model: ModelSpec = Field(description="The model.")
    engine: EngineSpec = Field(description="What serves it.")
    replicas: int = Field(
        default=1,
        description="Copies of the role set. 0 stops all roles.",
        ge=0,
        le=MAX_GROUPS,
        json_schema_extra={SERVER_DEFAULT: True},
    )
    roles: list[RoleSpec] = Field(
        description="The roles; a revision serves once it has a ready replica of each.",
        min_length=1,
        max_length=MAX_ROLES,
        json_schema_extra=map_list("name"),
    )
    kv_transfer: KVTransfer | None = Field(
        default=None, description="How KV caches get from prefill to decode; default: as the engine does it."
    )
    kv_compatibility: LabelValue | None = Field(
        default=None,
        description="Replicas with equal tokens can hand KV caches to each other. Default: a hash of image, "
        "model, engine, arguments, TPUs and connector.",
    )
    rollout: Rollout = Field(
        default=Rollout(), description="How replicas of an old revision give way to those of a new one."
    )
    drain: Drain = Field(default=Drain(), description="How a replica stops without losing streams.")
    routing: Routing = Field(default=Routing(), description="How requests get to replicas.")


class TPUInference(Model):
    """A model served by several roles, each replica of a role being one TPU slice, rolled out together."""

    model_config = ConfigDict(json_schema_extra=validations(*inference_rules()))

    api_version: Literal["tpu-operator.dev/v1alpha1"] = Field(
        default="tpu-operator.dev/v1alpha1", description="Version of the API."
    )
    kind: Literal["TPUInference"] = Field(default="TPUInference", description="Kind of the object.")
    metadata: Annotated[ObjectMeta, WithJsonSchema({"type": "object"})] = Field(
        description="Name, labels and the like."
    )
    spec: TPUInferenceSpec = Field(
        description="Which model, served by which roles, and how it is rolled out and reached."
    )
    status: TPUInferenceStatus = Field(
        default=TPUInferenceStatus(), description="What the operator has observed; written by it alone."
    )

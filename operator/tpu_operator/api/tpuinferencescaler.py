"""TPUInferenceScaler: the replicas of one role, for whoever scales it."""

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from tpu_operator.api.common import Model, ObjectMeta
from tpu_operator.api.extensions import SERVER_DEFAULT
from tpu_operator.api.tpuinference_rules import MAX_GROUPS


class TPUInferenceScalerSpec(Model):
    """How many replicas a role has."""

    replicas: int = Field(
        default=1,
        description="Replicas of the role.",
        ge=0,
        le=MAX_GROUPS,
        json_schema_extra={SERVER_DEFAULT: True},
    )


class TPUInferenceScalerStatus(Model):
    """What has been observed of the role."""

    observed_generation: int | None = Field(
        default=None, description="Generation of the spec that this status speaks about.", ge=0
    )
    replicas: int = Field(default=0, description="Replicas that there are.", ge=0)
    ready: int = Field(default=0, description="Replicas of which all hosts are ready.", ge=0)
    selector: str = Field(
        default="", description="Labels of the pods of the replicas' host 0, one for each.", max_length=1024
    )


class TPUInferenceScaler(Model):
    """The replicas of one role of a TPUInference, for `kubectl scale` and HorizontalPodAutoscalers.

    The operator makes one for each role with scaling External, and removes it with the role.
    """

    api_version: Literal["tpu-operator.dev/v1alpha1"] = Field(
        default="tpu-operator.dev/v1alpha1", description="Version of the API."
    )
    kind: Literal["TPUInferenceScaler"] = Field(
        default="TPUInferenceScaler", description="Kind of the object."
    )
    metadata: Annotated[ObjectMeta, WithJsonSchema({"type": "object"})] = Field(
        description="Name, labels and the like."
    )
    spec: TPUInferenceScalerSpec = Field(
        default=TPUInferenceScalerSpec(), description="How many replicas the role has."
    )
    status: TPUInferenceScalerStatus = Field(
        default=TPUInferenceScalerStatus(), description="What the operator has observed; written by it alone."
    )

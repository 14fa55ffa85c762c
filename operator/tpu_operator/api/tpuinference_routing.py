"""How requests get to the replicas of a TPUInference."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tpu_operator.api.common import LabelValue, Model, ObjectName, ResourceRequirements
from tpu_operator.api.extensions import ATOMIC_LIST, SET_LIST


class FailureMode(StrEnum):
    """What a gateway does while the endpoint picker does not answer."""

    OPEN = "FailOpen"
    CLOSE = "FailClose"


class InferencePoolSpec(Model):
    """The InferencePool: all host 0 that serve, for a gateway."""

    failure_mode: FailureMode = Field(
        default=FailureMode.CLOSE,
        description="What the gateway does without an answer of the endpoint picker: FailClose refuses "
        "requests, FailOpen sends them anywhere.",
    )


class ParentReference(Model):
    """A Gateway that takes the route, as in an HTTPRoute."""

    name: ObjectName = Field(description="Name of the Gateway.")
    namespace: LabelValue | None = Field(
        default=None, description="Its namespace; default: that of the TPUInference."
    )
    section_name: ObjectName | None = Field(default=None, description="Name of one of its listeners.")
    port: int | None = Field(default=None, description="Port of one of its listeners.", ge=1, le=65535)
    group: str | None = Field(
        default=None, description="API group; default: that of Gateways.", max_length=253
    )
    kind: str | None = Field(default=None, description="Kind; default: Gateway.", min_length=1, max_length=63)


class HTTPRouteSpec(Model):
    """The HTTPRoute from a Gateway to the InferencePool; streams through it have no time limit."""

    parent_refs: list[ParentReference] = Field(
        description="Gateways that take the route.",
        min_length=1,
        max_length=32,
        json_schema_extra=ATOMIC_LIST,
    )
    hostnames: list[Annotated[str, Field(min_length=1, max_length=253)]] = Field(
        default_factory=list,
        description="Host names that the route is for; default: all.",
        max_length=16,
        json_schema_extra=SET_LIST,
    )


class EndpointPickerSpec(Model):
    """The endpoint picker: a Deployment that tells the gateway which replicas get a request."""

    image: str | None = Field(
        default=None,
        description="Its image; default: the one that the operator was installed with.",
        min_length=1,
        max_length=2048,
    )
    replicas: int = Field(
        default=1,
        description="How many there are; with more than one, one of them works and the others wait.",
        ge=1,
        le=16,
    )
    config: str | None = Field(
        default=None,
        description="Its EndpointPickerConfig, as YAML; default: one that tells roles and revisions apart.",
        min_length=1,
        max_length=65536,
    )
    args: list[str] = Field(
        default_factory=list,
        description="More arguments, after the operator's.",
        max_length=256,
        json_schema_extra=ATOMIC_LIST,
    )
    resources: ResourceRequirements = Field(
        default=ResourceRequirements(), description="Resources of its container."
    )


class SidecarSpec(Model):
    """The routing sidecar on host 0 of decode replicas, which has prefill done elsewhere."""

    image: str | None = Field(
        default=None,
        description="Its image; default: the one that the operator was installed with.",
        min_length=1,
        max_length=2048,
    )
    args: list[str] = Field(
        default_factory=list,
        description="More arguments, after the operator's.",
        max_length=256,
        json_schema_extra=ATOMIC_LIST,
    )


class Routing(Model):
    """How requests get to replicas. Each part is made, kept and removed with its field."""

    inference_pool: InferencePoolSpec | None = Field(
        default=None, description="An InferencePool named like the TPUInference."
    )
    http_route: HTTPRouteSpec | None = Field(
        default=None, description="An HTTPRoute named like the TPUInference."
    )
    endpoint_picker: EndpointPickerSpec | None = Field(default=None, description="An endpoint picker.")
    sidecar: SidecarSpec | None = Field(
        default=None,
        description="A routing sidecar in decode replicas; its presence and image are part of the revision.",
    )

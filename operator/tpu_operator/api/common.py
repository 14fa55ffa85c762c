"""Building blocks that every kind shares: the base model, times, names, metadata and containers' fields.

Attribute names are snake_case in Python and camelCase on the wire. Every field has a description: it
becomes the CRD's, and so the text of `kubectl explain`.
"""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel

from tpu_operator.api.extensions import FREE_OBJECT, map_list, rule, validations

GROUP = "tpu-operator.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"


class Model(BaseModel):
    """Base of all API models: immutable, camelCase on the wire, tolerant of fields it does not know."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="ignore",
    )

    @classmethod
    def parse(cls, wire: dict[str, Any]) -> Self:
        """Read the wire form, as the API server returns it."""
        return cls.model_validate(wire, by_alias=True, by_name=False)

    def wire(self) -> dict[str, Any]:
        """Return the wire form: JSON types, camelCase keys, absent instead of null."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


YEARS = range(1000, 9000)
"""Years of times that can be reckoned with: limits are added to them and zones taken off."""


def _second(time: datetime) -> datetime:
    return _microsecond(time).replace(microsecond=0)


def _microsecond(time: datetime) -> datetime:
    if time.year not in YEARS:
        raise ValueError(f"the year {time.year} is none of {YEARS.start} to {YEARS.stop - 1}")
    return time.astimezone(UTC)


_DATE_TIME = WithJsonSchema({"type": "string", "format": "date-time"})

Time = Annotated[
    AwareDatetime,
    AfterValidator(_second),
    PlainSerializer(lambda t: t.strftime("%Y-%m-%dT%H:%M:%SZ"), return_type=str, when_used="json"),
    _DATE_TIME,
]
"""A UTC time with the precision of Kubernetes' metav1.Time: seconds."""

MicroTime = Annotated[
    AwareDatetime,
    AfterValidator(_microsecond),
    PlainSerializer(lambda t: t.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), return_type=str, when_used="json"),
    _DATE_TIME,
]
"""A UTC time with microseconds, to tell the first of many failures from those it caused."""

LabelValue = Annotated[
    str,
    Field(
        min_length=1,
        max_length=63,
        json_schema_extra=validations(
            rule(
                "!format.labelValue().validate(self).hasValue()",
                "must be a label value: at most 63 letters, digits, '-', '_' or '.', "
                "starting and ending with a letter or digit",
            )
        ),
    ),
]
"""A string that ends up as the value of a label or node selector."""

ObjectName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        json_schema_extra=validations(
            rule(
                "!format.dns1123Subdomain().validate(self).hasValue()",
                "must be the name of an object: lower-case letters, digits, '-' or '.', "
                "starting and ending with a letter or digit",
            )
        ),
    ),
]
"""The name of another Kubernetes object."""

Quantity = Annotated[
    int | str,
    Field(
        json_schema_extra={
            "maxLength": 64,
            **validations(
                rule(
                    "type(self) == int || isQuantity(string(self))",
                    "must be a quantity, such as 4, 500m or 16Gi",
                )
            ),
        }
    ),
]
"""A Kubernetes quantity, such as 4, "500m" or "16Gi"."""

Quantities = Annotated[dict[str, Quantity], Field(max_length=64)]
"""Amounts by resource name."""


class ObjectMeta(Model):
    """The part of Kubernetes' ObjectMeta that decisions are made from."""

    name: str = Field(description="Name of the object, unique in its namespace.")
    namespace: str = Field(default="", description="Namespace of the object.")
    uid: str = Field(default="", description="Identity of the object over its whole life.")
    resource_version: str = Field(default="", description="Version of the object, opaque.")
    generation: int = Field(default=0, description="Counts the changes of the spec.")
    creation_timestamp: Time | None = Field(default=None, description="When the object was created.")
    deletion_timestamp: Time | None = Field(default=None, description="When its deletion was asked for.")
    labels: dict[str, str] = Field(default_factory=dict, description="Labels.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations.")


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Model):
    """One observed fact about the object, in the form of metav1.Condition."""

    type: str = Field(description="What the condition is about.", min_length=1, max_length=316)
    status: ConditionStatus = Field(description="Whether it holds: True, False or Unknown.")
    reason: str = Field(
        default="", description="Why, as one CamelCase word that programs may depend on.", max_length=1024
    )
    message: str = Field(default="", description="Why, in words for people.", max_length=32768)
    last_transition_time: Time | None = Field(default=None, description="When the status last flipped.")
    observed_generation: int | None = Field(
        default=None, description="Generation of the spec that the condition speaks about.", ge=0
    )


class EnvVar(Model):
    """One environment variable, as in a container of a Pod."""

    model_config = ConfigDict(
        json_schema_extra=validations(
            rule(
                "!(has(self.value) && has(self.valueFrom))",
                "must not be set together with value: keep one of them",
                path=".valueFrom",
                reason="FieldValueForbidden",
            )
        )
    )

    name: str = Field(
        description="Name of the variable.",
        min_length=1,
        max_length=253,
        json_schema_extra=validations(
            rule(
                "self.matches('^[-._a-zA-Z][-._a-zA-Z0-9]*$')",
                "must be letters, digits, '_', '-' or '.', not starting with a digit",
            )
        ),
    )
    value: str | None = Field(
        default=None, description="Its value; $(NAME) refers to a variable before it.", max_length=131072
    )
    value_from: dict[str, Any] | None = Field(
        default=None,
        description="Source of the value (configMapKeyRef, secretKeyRef, fieldRef, …), as in a Pod.",
        json_schema_extra=FREE_OBJECT,
    )


class ResourceClaim(Model):
    """A reference to a claim of dynamic resource allocation."""

    name: str = Field(description="Name of an entry of the pod's resourceClaims.", min_length=1)
    request: str | None = Field(
        default=None, description="One request of that claim; absent for all of them."
    )


class ResourceRequirements(Model):
    """Compute resources of a container, as in a Pod."""

    requests: Quantities = Field(
        default_factory=dict, description="What the container needs, by resource name."
    )
    limits: Quantities = Field(default_factory=dict, description="What it may use at most, by resource name.")
    claims: list[ResourceClaim] = Field(
        default_factory=list,
        description="Claims of dynamic resource allocation that the container uses.",
        max_length=32,
        json_schema_extra=map_list("name"),
    )

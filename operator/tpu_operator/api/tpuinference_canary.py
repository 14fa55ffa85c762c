"""The steps of a canary, and what queries have to say before a step is over."""

from pydantic import ConfigDict, Field

from tpu_operator.api.common import Model
from tpu_operator.api.extensions import ATOMIC_LIST, map_list, rule, validations
from tpu_operator.api.tpuinference_rules import MAX_GROUPS, canary_rules

MAX_SECONDS = 7 * 24 * 3600
MAX_QUERIES = 16
"""Queries of an analysis, which are all asked at the same time."""


class AnalysisQuery(Model):
    """A query whose answer, one number, tells whether the new revision is as it should be."""

    model_config = ConfigDict(
        json_schema_extra=validations(
            rule(
                "has(self.atLeast) || has(self.atMost)",
                "must say which values are right: set atLeast, atMost or both",
            ),
            rule(
                "!has(self.atLeast) || !has(self.atMost) || self.atLeast <= self.atMost",
                "must not be more than atMost, or no value would be right",
                path=".atLeast",
            ),
        )
    )

    name: str = Field(
        description="Name of the query, for people.",
        min_length=1,
        max_length=63,
        json_schema_extra=validations(
            rule(
                "!format.dns1123Label().validate(self).hasValue()",
                "must be lower-case letters, digits or '-', such as error-rate",
            )
        ),
    )
    query: str = Field(
        description="Query in PromQL, with one number as its answer. $(revision) is the revision on trial, "
        "$(stable) the one before it, $(name) and $(namespace) those of the TPUInference.",
        min_length=1,
        max_length=4096,
    )
    at_least: float | None = Field(
        default=None, description="Smallest value that is right; default: any.", allow_inf_nan=False
    )
    at_most: float | None = Field(
        default=None, description="Largest value that is right; default: any.", allow_inf_nan=False
    )


class Analysis(Model):
    """Queries that are asked in rounds. A round passes if every value is right, and fails if one is wrong.

    A round without an answer to every query does neither.
    """

    address: str | None = Field(
        default=None,
        description="Prometheus to ask: one of those that the installation allows; default: its first.",
        max_length=2048,
        json_schema_extra=validations(
            rule("self.matches('^https?://.+')", "must be a URL, such as http://prometheus.monitoring:9090")
        ),
    )
    interval_seconds: int = Field(
        default=60,
        description="Time before each round; the first begins so long after all replicas of the step are "
        "ready.",
        ge=1,
        le=MAX_SECONDS,
    )
    passes: int = Field(
        default=3, description="Rounds that have to pass, none failing in between.", ge=1, le=1000
    )
    failures: int = Field(
        default=1,
        description="Rounds that may fail at the step, the last of which rolls back.",
        ge=1,
        le=1000,
    )
    queries: list[AnalysisQuery] = Field(
        description="What is asked in each round.",
        min_length=1,
        max_length=MAX_QUERIES,
        json_schema_extra=map_list("name"),
    )


class CanaryStep(Model):
    """How much of every role is of the new revision, and for how long."""

    model_config = ConfigDict(
        json_schema_extra=validations(
            rule("has(self.copies) != has(self.percent)", "must say how much: set one of copies and percent")
        )
    )

    copies: int | None = Field(default=None, description="Copies of the role set.", ge=1, le=MAX_GROUPS)
    percent: int | None = Field(
        default=None, description="Percentage of the replicas of every role, rounded up.", ge=1, le=99
    )
    pause_seconds: int | None = Field(
        default=None,
        description="How long to stay at this step once its replicas are ready; default: until the analysis "
        "has passed, or without one until the step is taken away.",
        ge=0,
        le=MAX_SECONDS,
    )
    analysis: Analysis | None = Field(
        default=None,
        description="Queries that decide whether the step is passed or the revision given up; default: none.",
    )


class Canary(Model):
    """A new revision gets its share in steps."""

    model_config = ConfigDict(json_schema_extra=validations(*canary_rules()))

    steps: list[CanaryStep] = Field(
        description="The steps, in order; all of every role follows the last.",
        min_length=1,
        max_length=32,
        json_schema_extra=ATOMIC_LIST,
    )

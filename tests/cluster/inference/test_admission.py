"""TPUInferences that the real API server must refuse, with messages that say what to write, or accept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kubernetes.dynamic.exceptions import DynamicApiError

from tests.cluster.inference.models import TPU, role

if TYPE_CHECKING:
    from tests.cluster.inference.models import Models

NO_BUDGET = {"maxSurge": 0, "maxUnavailable": 0}
ERRORS = {"name": "errors", "query": 'errors{revision="$(revision)"}', "atMost": 0.01}


def analysed(*queries: dict[str, Any], **analysis: Any) -> dict[str, Any]:
    """A rollout whose canary is decided on by queries."""
    step = {"percent": 10, "analysis": {"queries": list(queries)} | analysis}
    return {"canary": {"steps": [step]}}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "one role at zero": (
        {"roles": [role("prefill", 0), role("decode", 2)]},
        "prefill has 0 replicas and other roles have some",
    ),
    "budgets by which nothing moves": (
        {"rollout": NO_BUDGET},
        "must not be 0 with maxUnavailable 0, by which nothing could ever be replaced: set one of them to 1",
    ),
    "budgets of a role by which nothing moves": (
        {"roles": [role("decode", rollout={"maxSurge": 0})]},
        "decode has maxSurge 0 and maxUnavailable 0",
    ),
    "two roles of one name": ({"roles": [role("decode"), role("decode")]}, "Duplicate value"),
    "no role": ({"roles": []}, "should have at least 1 items"),
    "a role whose name is none of a pod": (
        {"roles": [role("Decode", type="decode")]},
        "must be lower-case letters",
    ),
    "a name that is too long for its pods": (
        {"name": "qwen-of-the-team", "roles": [role("d" * 40, type="decode")]},
        "characters make pod names <name>-<role>-<revision>-<replica>-<host> of role dddd",
    ),
    "copies of roles that others scale": (
        {"replicas": 2, "roles": [role("decode", scaling="External")]},
        "must be 1 or 0 while scaling of role decode is External",
    ),
    "too many slices": (
        {"replicas": 512, "roles": [role("decode", 2)]},
        "512 copies are 1024 slices in all: a TPUInference may have 512 at most",
    ),
    "a custom engine without an image": (
        {"engine": {"type": "custom", "command": ["serve"]}},
        "must be set for an engine of type custom",
    ),
    "a source of weights that nobody knows": (
        {"model": {"name": "m", "source": "s3://bucket/path"}},
        "must be hf://OWNER/NAME, gs://BUCKET/PATH or pvc://CLAIM/PATH",
    ),
    "a cache in two places": (
        {"model": {"name": "m", "cache": {"hostPath": "/x", "persistentVolumeClaim": "y"}}},
        "must name one place",
    ),
    "a topology that does not exist": (
        {"roles": [role("decode", tpu=TPU | {"topology": "2x2x4"})]},
        "'2x2x4' does not exist on v5e",
    ),
    "a route that leads nowhere": (
        {"routing": {"httpRoute": {"parentRefs": [{"name": "gateway"}]}}},
        "leads to the InferencePool: set routing.inferencePool too",
    ),
    "steps of a canary in two units": (
        {"rollout": {"canary": {"steps": [{"percent": 10}, {"copies": 1}]}}},
        "must all be in the same unit",
    ),
    "a step of a canary that says nothing": (
        {"rollout": {"canary": {"steps": [{"pauseSeconds": 1}]}}},
        "must say how much",
    ),
    "a query of which every value is right": (
        {"rollout": analysed({"name": "errors", "query": "up"})},
        "must say which values are right: set atLeast, atMost or both",
    ),
    "a query of which no value is right": (
        {"rollout": analysed({"name": "errors", "query": "up", "atLeast": 2, "atMost": 1.5})},
        "must not be more than atMost, or no value would be right",
    ),
    "two queries of one name": (
        {"rollout": analysed(ERRORS, ERRORS)},
        "Duplicate value",
    ),
    "a Prometheus that is no URL": (
        {"rollout": analysed(ERRORS, address="prometheus:9090")},
        "must be a URL, such as http://prometheus.monitoring:9090",
    ),
    "an analysis without a query": ({"rollout": analysed()}, "should have at least 1 items"),
    "a canary where all old replicas go first": (
        {"rollout": analysed(ERRORS) | {"strategy": "Recreate"}},
        "needs two revisions side by side, which strategy Recreate never has",
    ),
    "a partition where all old replicas go first": (
        {"rollout": {"strategy": "Recreate", "partition": 1}},
        "needs two revisions side by side, which strategy Recreate never has",
    ),
}

ACCEPTED: dict[str, dict[str, Any]] = {
    "the smallest": {},
    "all roles at zero": {"roles": [role("prefill", 0), role("decode", 0)]},
    "no copy": {"replicas": 0},
    "no budget but a strategy": {"rollout": NO_BUDGET | {"strategy": "Recreate"}},
    "no budget but downtime": {"rollout": NO_BUDGET | {"allowDowntime": True}},
    "no budget but what happens without room": {"rollout": NO_BUDGET | {"onCapacityShortage": "DrainFirst"}},
    "a budget of a role in place of that of all": {
        "rollout": {"maxSurge": 0, "maxUnavailable": 1},
        "roles": [role("decode", rollout={"maxSurge": 1, "maxUnavailable": 0})],
    },
    "the most that an analysis may be": {
        "rollout": {
            "canary": {
                "steps": [
                    {
                        "percent": 1 + i,
                        "pauseSeconds": 60,
                        "analysis": {
                            "address": "http://prometheus.monitoring:9090",
                            "queries": [
                                ERRORS | {"name": f"query-{n}", "query": "x" * 4096, "atLeast": -0.5}
                                for n in range(16)
                            ],
                        },
                    }
                    for i in range(10)
                ]
            }
        }
    },
    "every part of routing": {
        "routing": {
            "inferencePool": {},
            "httpRoute": {"parentRefs": [{"name": "gateway"}], "hostnames": ["example.test"]},
            "endpointPicker": {},
            "sidecar": {},
        }
    },
    "one host of eight chips": {
        "roles": [role("decode", tpu={"accelerator": "v6e", "topology": "2x4", "chipsPerHost": 8})]
    },
}


def offer(models: Models, spec: dict[str, Any]) -> str:
    """The API server's objection to a TPUInference, empty if it has none."""
    try:
        body: dict[str, Any] = {"name": "qwen", "replicas": 0} | spec
        models.create(**body)
    except DynamicApiError as error:
        return str(error.body.decode() if isinstance(error.body, bytes) else error.body)
    return ""


@pytest.mark.parametrize("case", REFUSED)
def test_refused(models: Models, case: str) -> None:
    spec, expected = REFUSED[case]
    told = offer(models, spec)
    assert expected in told.replace('\\"', '"').replace("\\u003c", "<").replace("\\u003e", ">")


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(models: Models, case: str) -> None:
    assert offer(models, ACCEPTED[case]) == ""

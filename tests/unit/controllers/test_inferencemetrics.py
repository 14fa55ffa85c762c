"""Metrics about TPUInferences, read off their statuses."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.builders import NOW, stamp
from tpu_operator.controllers.inferencemetrics import InferenceMetrics
from tpu_operator.core.snapshot import Custom, CustomMetadata

STATUS = {
    "phase": "Rolling",
    "updatedRevision": "new",
    "revisions": [
        {"name": "new", "roles": [{"name": "decode", "replicas": 2, "ready": 1}]},
        {"name": "old", "roles": [{"name": "decode", "replicas": 3, "ready": 3}]},
    ],
    "roles": [{"name": "decode", "desired": 4, "replicas": 5, "ready": 4}],
    "rollout": {"hold": {"gate": "Capacity", "since": stamp(NOW - timedelta(seconds=90))}},
}


def samples(status: dict[str, Any], *, leads: bool = True) -> dict[tuple[str, ...], float]:
    """Values by the name of the metric and its labels, without namespace and name."""
    each = Custom(CustomMetadata("qwen", "default"), status=status)
    found = InferenceMetrics(lambda: [each], lambda: leads, lambda: NOW).collect()
    own = {"namespace", "name"}
    return {
        (sample.name, *(value for key, value in sample.labels.items() if key not in own)): sample.value
        for family in found
        for sample in family.samples
    }


def test_a_rollout_is_told_of() -> None:
    found = samples(STATUS)
    prefix = "tpu_operator_inference_"
    assert found[f"{prefix}phase", "Rolling"] == 1
    assert found[f"{prefix}rollout_step", "decode"] == 1
    assert found[f"{prefix}rollout_held_seconds", "Capacity"] == 90
    assert found[f"{prefix}replicas", "decode", "desired"] == 4
    assert found[f"{prefix}replicas", "decode", "updated"] == 0


def test_only_the_leader_tells() -> None:
    assert samples(STATUS, leads=False) == {}


def test_a_status_that_makes_no_sense_takes_nothing_with_it() -> None:
    found = samples({"phase": "Serving", "roles": 7, "revisions": "x", "rollout": {"hold": {"since": "?"}}})
    assert found == {("tpu_operator_inference_phase", "Serving"): 1}

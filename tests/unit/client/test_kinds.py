"""Manifests from models, and models from watches."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.unit.cli.test_follow import JOB
from tpu_operator.api import EnvVar, ObjectMeta, RunSpec, TPUJob, TPUJobSpec, TPUSpec
from tpu_operator.client.kinds import INFERENCE, JOBS, Whole

TRAIN = TPUJob(
    metadata=ObjectMeta(name="train", labels={"team": "vision"}),
    spec=TPUJobSpec(
        tpu=TPUSpec(accelerator="v5e", topology="4x4"),
        run=RunSpec(command=["python", "train.py"], env=[EnvVar(name="A", value="b")]),
    ),
)
SAID: dict[str, Any] = {
    "apiVersion": "tpu-operator.dev/v1alpha1",
    "kind": "TPUJob",
    "metadata": {"name": "train", "labels": {"team": "vision"}},
    "spec": {
        "tpu": {"accelerator": "v5e", "topology": "4x4"},
        "run": {"command": ["python", "train.py"], "env": [{"name": "A", "value": "b"}]},
    },
}


def test_only_what_was_said_is_sent() -> None:
    assert JOBS.manifest(TRAIN) == SAID


def test_a_manifest_may_leave_its_kind_out() -> None:
    assert JOBS.manifest({key: SAID[key] for key in ("metadata", "spec")}) == SAID


def test_a_job_that_was_read_can_be_made_again_under_another_name() -> None:
    again = JOBS.read(JOB).model_copy(update={"metadata": ObjectMeta(name="again")})
    assert JOBS.manifest(again) == {
        "apiVersion": JOB["apiVersion"],
        "kind": "TPUJob",
        "metadata": {"name": "again"},
        "spec": JOB["spec"],
    }


def test_objects_of_another_kind() -> None:
    with pytest.raises(ValueError, match="a TPUJob is no TPUInference"):
        INFERENCE.manifest(SAID)


def test_a_watch_brings_all_that_the_model_has() -> None:
    meta = {
        "labels": {"team": "vision"},
        "annotations": {"note": "x"},
        "creationTimestamp": "2026-11-30T12:00:00Z",
    }
    wire = JOB | {"metadata": JOB["metadata"] | meta}
    whole = msgspec.json.decode(msgspec.json.encode(wire), type=Whole)
    assert JOBS.read_whole(whole) == JOBS.read(wire)

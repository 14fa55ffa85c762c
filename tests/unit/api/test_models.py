"""The models: their wire form, their times, and the public names."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

import tpu_operator.api
from tests.unit.api.samples import NOON, full_status
from tpu_operator.api import (
    Failure,
    Launcher,
    MicroTime,
    Phase,
    Placement,
    RestartScope,
    RestartStrategy,
    SliceStatus,
    SuccessPolicy,
    Time,
    TPUJob,
    TPUJobStatus,
    TPUSpec,
    common,
    tpu,
    tpujob,
)

HELLO: dict[str, Any] = {
    "apiVersion": "tpu-operator.dev/v1alpha1",
    "kind": "TPUJob",
    "metadata": {"name": "hello", "namespace": "default", "uid": "u", "generation": 2, "managedFields": []},
    "spec": {
        "tpu": {"accelerator": "v5e", "topology": "4x4"},
        "run": {"command": ["python", "train.py"]},
    },
}


def test_the_smallest_job_has_the_documented_defaults() -> None:
    job = TPUJob.parse(HELLO)
    spec = job.spec
    assert (job.metadata.name, job.metadata.generation) == ("hello", 2)
    assert (spec.tpu.slices, spec.tpu.spare_slices, spec.tpu.chips_per_host) == (1, 0, None)
    assert (spec.run.image, spec.run.launcher, spec.run.processes_per_host) == (None, Launcher.TORCHRUN, None)
    policy = spec.failure_policy
    assert (policy.max_restarts, policy.coalesce_seconds, policy.rules) == (3, 10, [])
    assert (policy.restart_scope, policy.restart_strategy) == (RestartScope.JOB, RestartStrategy.RECREATE)
    assert (spec.success_policy, spec.suspend) == (SuccessPolicy.ALL, False)
    assert (spec.scheduling.placement, spec.startup_timeout_seconds) == (Placement.EXCLUSIVE, None)
    assert (job.status.phase, job.status.conditions) == (Phase.PENDING, [])


def test_wire_form_is_camel_case_without_nulls_and_parses_back() -> None:
    job = TPUJob.parse({**HELLO, "status": full_status().wire()})
    wire = job.wire()
    assert wire["status"]["observedGeneration"] == 3
    assert wire["status"]["restarts"]["byCause"] == {"UserError": 1, "Preempted": 1}
    assert wire["status"]["slices"][0]["nodePool"] == "pool-a"
    assert "image" not in wire["spec"]["run"]
    assert TPUJob.parse(wire) == job


def test_every_status_field_is_covered_by_the_round_trip() -> None:
    status = full_status()
    assert status.model_fields_set == set(TPUJobStatus.model_fields)
    assert status.last_failure is not None
    assert status.last_failure.model_fields_set == set(Failure.model_fields)
    assert status.slices[0].model_fields_set == set(SliceStatus.model_fields)


def test_unknown_fields_are_ignored_and_free_objects_are_kept() -> None:
    spec = {
        **HELLO["spec"],
        "fromTheFuture": 1,
        "template": {"spec": {"hostNetwork": True, "x": None}},
        "run": {
            "command": ["a"],
            "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            "resources": {"limits": {"cpu": 4, "memory": "16Gi"}},
        },
    }
    job = TPUJob.parse({**HELLO, "spec": spec})
    assert job.spec.template == spec["template"]
    assert job.spec.run.env[0].value_from == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert job.spec.run.resources.limits == {"cpu": 4, "memory": "16Gi"}


def test_models_are_immutable() -> None:
    spec = TPUSpec(accelerator="v5e", topology="4x4")
    with pytest.raises(ValidationError, match="frozen"):
        spec.slices = 2


def test_times_are_utc_with_the_precision_of_kubernetes() -> None:
    east = NOON.astimezone(timezone(timedelta(hours=5)))
    second: TypeAdapter[datetime] = TypeAdapter(Time)
    micro: TypeAdapter[datetime] = TypeAdapter(MicroTime)
    assert second.validate_python(east) == NOON.replace(microsecond=0)
    assert second.dump_python(second.validate_python(east), mode="json") == "2026-11-30T12:00:00Z"
    assert micro.dump_python(micro.validate_python(east), mode="json") == "2026-11-30T12:00:00.123456Z"
    assert micro.validate_python("2026-11-30T12:00:00.123456Z") == NOON
    with pytest.raises(ValidationError, match="timezone"):
        second.validate_python(NOON.replace(tzinfo=None))


def test_public_names_are_exported() -> None:
    public = {
        name
        for module in (common, tpu, tpujob)
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    }
    assert public <= set(tpu_operator.api.__all__)
    assert sorted(tpu_operator.api.__all__) == sorted(set(tpu_operator.api.__all__))
    assert all(hasattr(tpu_operator.api, name) for name in tpu_operator.api.__all__)

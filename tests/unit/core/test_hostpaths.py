"""Caches in directories of nodes, which the administrator has to allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.builders import NOW, SETTINGS, World, job
from tests.inference import IMAGES, InferenceWorld, inference
from tpu_operator.core.inference import plan as inference_plan
from tpu_operator.core.inference.view import Installation
from tpu_operator.core.job import plan

ALLOWED = replace(SETTINGS, allow_host_path_caches=True)
CACHE = {"compileCache": {"hostPath": "/etc"}}
ENGINE = {"type": "vllm"} | CACHE
MODEL = {"name": "m", "cache": {"hostPath": "/etc"}}


def cached(**spec: Any) -> World:
    return World(job(run={"command": ["true"]} | CACHE, **spec))


def test_a_job_with_one_gets_no_pods_and_is_told_what_to_use_instead() -> None:
    the_world = cached().settle()
    assert not the_world.pods
    assert the_world.condition("Blocked") == "True/EnvironmentConflict"
    assert the_world.job.status.message == (
        "spec.run.compileCache.hostPath is '/etc', and this installation opens no directories of nodes: use "
        "persistentVolumeClaim or uri, or have the chart's value allowHostPathCaches set"
    )


def test_no_volume_of_that_name_in_the_template_hides_it() -> None:
    volumes: dict[str, Any] = {
        "spec": {"volumes": [{"name": "compile-cache", "hostPath": None, "emptyDir": {}}]}
    }
    assert not cached(template=volumes).settle().pods


def test_a_job_gets_its_pods_where_it_is_allowed() -> None:
    created = plan(cached().snapshot(), NOW, ALLOWED).creates
    assert len([each for each in created if each["kind"] == "Pod"]) == 4


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"engine": ENGINE}, "spec.engine.compileCache.hostPath is '/etc'"),
        ({"model": MODEL}, "spec.model.cache.hostPath is '/etc'"),
    ],
)
def test_an_inference_with_one_gets_no_pods(spec: dict[str, Any], field: str) -> None:
    the_world = InferenceWorld(inference(**spec)).settle()
    assert not the_world.pods
    (blocked,) = [each for each in the_world.status.conditions if each.type == "Blocked"]
    assert (blocked.status, blocked.reason) == ("True", "EnvironmentConflict")
    assert field in blocked.message


def test_an_inference_gets_its_pods_where_it_is_allowed() -> None:
    the_world = InferenceWorld(inference(engine=ENGINE, model=MODEL))
    the_world.step()
    found = inference_plan.plan(the_world.snapshot(), NOW, Installation(ALLOWED, IMAGES))
    assert [each for each in found.creates if each["kind"] == "Pod"]


def test_replicas_that_run_stay_when_it_is_no_longer_allowed() -> None:
    the_world = InferenceWorld(inference()).run()
    running = set(the_world.pods)
    the_world.patch_spec(engine=ENGINE).settle()
    assert set(the_world.pods) == running

"""Templates whose form makes it impossible to build pods from them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import World, job
from tpu_operator.core.objects.template import problem


def main(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "main"} | fields]}


@pytest.mark.parametrize(
    "template",
    [
        None,
        {},
        {"metadata": {"labels": {"env": "prod", "name": "x", "containers": "y"}}},
        {"spec": {"nodeSelector": {"env": "prod", "ports": "many", "resources": "few"}}},
        {"spec": {"nodeSelector": None, "initContainers": None, "affinity": None}},
        {"spec": main(env=None, resources=None, image=None)},
        {"spec": main(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}])},
        {"spec": main(ports=[{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}])},
        {"spec": main(resources={"limits": {"cpu": 1, "memory": "1Gi", "google.com/tpu": None}})},
        {"spec": {"volumes": [{"name": "env", "configMap": {"name": "env", "items": [{"key": "env"}]}}]}},
        {"spec": {"fieldOfTheNextKubernetes": {"containers": 1}}},
        {
            "spec": {
                "affinity": {
                    "podAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            {"labelSelector": {"matchLabels": {"env": "prod"}}}
                        ]
                    },
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}
                    },
                }
            }
        },
    ],
)
def test_templates_in_form(template: dict[str, Any] | None) -> None:
    assert problem(template, "spec.template") == ""


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"containers": {"name": "main"}}, "containers: Expected `array`, got `object`"),
        ({"containers": [{"image": "x"}]}, "containers[0]: Object missing required field `name`"),
        ({"initContainers": [{"name": 5}]}, "initContainers[0].name: Expected `str`, got `int`"),
        (main(env={"A": "1"}), "containers[0].env: Expected `array | null`, got `object`"),
        (
            main(env=[{"name": "A", "value": 1}]),
            "containers[0].env[0].value: Expected `str | null`, got `int`",
        ),
        (main(resources="x"), "containers[0].resources: Expected `object | null`, got `str`"),
        (main(resources={"limits": ["x"]}), "containers[0].resources.limits: Expected `object | null`"),
        (
            main(ports=[{"name": "x"}]),
            "containers[0].ports[0]: Object missing required field `containerPort`",
        ),
        (main(ports=[{"containerPort": {}}]), "containers[0].ports[0].containerPort: Expected `int`"),
        (main(volumeMounts=[{"name": "x"}]), "Object missing required field `mountPath`"),
        ({"nodeSelector": ["a"]}, "nodeSelector: Expected `object | null`, got `array`"),
        ({"nodeSelector": {"a": True}}, "nodeSelector[...]: Expected `str | null`, got `bool`"),
        ({"tolerations": {"key": "x"}}, "tolerations: Expected `array | null`, got `object`"),
        ({"subdomain": 7}, "subdomain: Expected `str | null`, got `int`"),
    ],
)
@pytest.mark.parametrize("field", ["template", "head"])
def test_templates_out_of_form(field: str, spec: dict[str, Any], words: str) -> None:
    fields: dict[str, Any] = {field: {"spec": spec}}
    the_world = World(job(**fields)).settle()
    assert the_world.condition("Blocked") == "True/EnvironmentConflict"
    assert (the_world.job.status.message or "").startswith(f"spec.{field}.spec.")
    assert words in (the_world.job.status.message or "")
    assert not the_world.pods


def test_thousands_of_hosts_do_not_repeat_the_same_conflict() -> None:
    tpu = {"accelerator": "v5p", "topology": "8x16x16"}
    the_world = World(job(tpu=tpu, template={"spec": {"hostname": "mine"}})).settle()
    assert the_world.job.status.message == (
        "spec.template.spec.hostname is 'mine', the operator needs 'train-0-0'"
    )


def test_the_service_of_a_running_job_does_not_depend_on_its_template() -> None:
    the_world = World(job()).run()
    the_world.patch_spec(template={"spec": {"containers": "none"}})
    the_world.services.clear()
    assert set(the_world.settle().services) == {"train"}
    assert len(the_world.pods) == 4

"""RayJobs of KubeRay as TPUJobs."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.docs import ROOT, yaml_blocks
from tests.unit.cli.scenes import Screen
from tpu_operator.api import TPUJob
from tpu_operator.cli import __main__ as command_line
from tpu_operator.cli.command import CommandError, Exit
from tpu_operator.cli.migrate.rayjob import translate

if TYPE_CHECKING:
    from pathlib import Path

BLOCKS = [body for _, body in yaml_blocks(ROOT / "docs" / "ray.md")]
SHOWN = next(body for body in BLOCKS if body.get("kind") == "RayJob")
BECOMES = BLOCKS[BLOCKS.index(SHOWN) + 1]


def rayjob() -> dict[str, Any]:
    return copy.deepcopy(SHOWN)


def group(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = body["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    return found


def typed(path: Path, *words: str) -> tuple[int, str]:
    screen = Screen()
    return command_line.call(["migrate", str(path), *words], screen), screen.text


def test_the_rayjob_of_the_page_becomes_the_tpujob_below_it(tmp_path: Path) -> None:
    (file := tmp_path / "rayjob.yaml").write_text(yaml.safe_dump(SHOWN))
    code, said = typed(file)
    assert code == Exit.DONE
    assert yaml.safe_load(said) == BECOMES
    TPUJob.parse(yaml.safe_load(said))


def test_what_has_no_place_is_said(tmp_path: Path) -> None:
    body = rayjob()
    body["spec"] |= {"submitterPodTemplate": {"spec": {}}, "runtimeEnvYAML": "pip: [torch]"}
    group(body)["rayStartParams"] = {"num-cpus": "8"}
    body["spec"]["rayClusterSpec"]["workerGroupSpecs"].append(
        {"groupName": "cpu", "template": {"spec": {"containers": [{"name": "ray-worker"}]}}}
    )
    documents = [{"kind": "ConfigMap"}, body, rayjob()]
    (file := tmp_path / "rayjob.yaml").write_text(yaml.safe_dump_all(documents))
    code, said = typed(file)
    assert code == Exit.BAD
    assert [line for line in said.splitlines() if line.startswith("#")] == [
        "# left out: spec.rayClusterSpec.workerGroupSpecs[0].rayStartParams",
        "# left out: spec.rayClusterSpec.workerGroupSpecs[1]: a group without TPUs",
        "# left out: spec.runtimeEnvYAML: pip",
        "# left out: spec.submitterPodTemplate",
    ]
    assert [job["kind"] for job in yaml.safe_load_all(said)] == ["TPUJob", "TPUJob"]
    assert [len(one["left"]) for one in json.loads(typed(file, "-o", "json")[1])] == [4, 0]


def test_what_pods_have_of_their_own_is_in_the_template() -> None:
    body = rayjob()
    body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team", "app": "x"}
    pod = group(body)["template"]["spec"]
    pod |= {
        "serviceAccountName": "trainer",
        "volumes": [{"name": "data", "emptyDir": {}}],
        "tolerations": [
            {"key": "google.com/tpu", "operator": "Exists"},
            {"key": "team", "operator": "Exists"},
        ],
    }
    pod["nodeSelector"]["zone"] = "b"
    pod["containers"][0] |= {
        "env": [{"name": "A", "value": "1"}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "resources": {"limits": {"google.com/tpu": 4, "memory": "100Gi"}},
    }
    pod["containers"].append({"name": "logs", "image": "logs:1"})
    body["spec"]["entrypoint"] = "cd /app && python train.py"
    job = translate(body).job
    parsed = TPUJob.parse(job)
    assert job["metadata"] == {"name": "train", "labels": {"app": "x"}}
    assert parsed.spec.run.command == ["sh", "-c", "cd /app && python train.py"]
    assert job["spec"]["run"]["env"] == [{"name": "A", "value": "1"}, {"name": "HF_HOME", "value": "/tmp/hf"}]
    assert job["spec"]["run"]["resources"] == {"limits": {"memory": "100Gi"}}
    assert job["spec"]["scheduling"] == {"queueName": "team"}
    assert job["spec"]["template"]["spec"] == {
        "serviceAccountName": "trainer",
        "volumes": [{"name": "data", "emptyDir": {}}],
        "nodeSelector": {"zone": "b"},
        "tolerations": [{"key": "team", "operator": "Exists"}],
        "containers": [
            {"name": "main", "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
            {"name": "logs", "image": "logs:1"},
        ],
    }


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("numOfHosts", 2, r"numOfHosts: 2, but a 4x4 with 4 chips on each host has 4 hosts"),
        ("topology", "3x3", r"topology: '3x3' does not exist on tpu-v6e-slice"),
        ("limits", {}, r"0 groups have a limit of google.com/tpu"),
    ],
)
def test_what_is_no_slice(field: str, value: Any, message: str) -> None:
    body = rayjob()
    pod = group(body)["template"]["spec"]
    if field == "topology":
        pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] = value
    elif field == "limits":
        pod["containers"][0]["resources"]["limits"] = value
    else:
        group(body)[field] = value
    with pytest.raises(CommandError, match=message):
        translate(body)


@pytest.mark.parametrize(
    "text", ["kind: [", "kind: Pod", "{kind: RayJob, apiVersion: ray.io/v1, spec: {rayClusterSpec: 7}}"]
)
def test_files_that_are_none(tmp_path: Path, text: str) -> None:
    (file := tmp_path / "rayjob.yml").write_text(text)
    assert typed(file)[0] == Exit.USAGE

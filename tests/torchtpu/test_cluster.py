"""examples/torchtpu-train.yaml on the dev cluster: four pods, real torch_tpu, a killed rank.

Torch is too large for an image on each of four nodes. Nodes of the dev cluster share this machine's files, so
packages come from `.venv-torchtpu`, which the image's Python can import, as it is of the same version.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.e2e.kube import Kube, wait_for
from tests.torchtpu.hosts import PYTHON, ROOT, SECONDS, losses, one_process, same_losses

if TYPE_CHECKING:
    from pathlib import Path

PACKAGES = "/opt/torchtpu"
KILL = """
import os, signal, sys
sys.path.insert(0, "/usr/local/bin/tpu-launch")
from tpu_runtime.processes import descendants
agent, *ranks = descendants(1)
os.kill(max(ranks), signal.SIGKILL)
"""


def claim(name: str, folder: Path) -> list[dict[str, Any]]:
    """A claim that all nodes can write to: a directory of this machine."""
    shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    size = {"storage": "1Gi"}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": shared | {"capacity": size, "hostPath": {"path": str(folder)}},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "checkpoints"},
            "spec": shared | {"volumeName": name, "resources": {"requests": size}},
        },
    ]


def example(steps: int) -> Any:
    """The example, with one process for each host and packages of this machine."""
    job = yaml.safe_load((ROOT / "examples/torchtpu-train.yaml").read_text())
    run, pod = job["spec"]["run"], job["spec"]["template"]["spec"]
    run["processesPerHost"] = 1
    run["env"] = [each for each in run["env"] if each["name"] != "STEPS"]
    run["env"] += [{"name": "STEPS", "value": str(steps)}, {"name": "PYTHONPATH", "value": PACKAGES}]
    packages = PYTHON.parents[1] / f"lib/python3.{sys.version_info.minor}/site-packages"
    pod["volumes"].append({"name": "packages", "hostPath": {"path": str(packages)}})
    pod["containers"][0]["volumeMounts"].append({"name": "packages", "mountPath": PACKAGES, "readOnly": True})
    return job


@pytest.fixture
def volume(kube: Kube, tmp_path: Path) -> Any:
    name = kube.namespace
    kube.apply(*claim(name, tmp_path))
    yield tmp_path
    kube.kubectl("delete", "tpujob,pod,pvc", "--all", "--timeout=120s")
    kube.kubectl("delete", "pv", name, "--timeout=60s")


def test_the_example_survives_a_killed_rank_with_the_losses_of_one_run(
    kube: Kube, volume: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    steps = 40
    kube.apply(example(steps))

    def saved() -> list[int]:
        return sorted(int(path.parent.name) for path in volume.glob("*/.metadata"))

    wait_for("there is a checkpoint", saved, SECONDS)
    kube.kubectl("exec", "torchtpu-train-0-2", "--container=main", "--", "python3", "-c", KILL)
    status = kube.finish("torchtpu-train", SECONDS)
    assert status["phase"] == "Succeeded", status
    assert (status["restarts"]["total"], status["restarts"]["byCause"]) == (1, {"UserError": 1}), status
    failure = status["lastFailure"]
    assert (failure["pod"], failure["signal"]) == ("torchtpu-train-0-2", 9), failure

    log = kube.logs("torchtpu-train-0-0")
    resumed = re.search(r"^4 processes on tpu, from step (\d+)$", log, re.MULTILINE)
    assert resumed, log
    first = int(resumed[1])
    assert first >= 10
    assert saved()[-1] == steps
    alone = one_process("torchtpu-train", tmp_path_factory.mktemp("one"), steps)
    same_losses(losses(log.encode()), {step: loss for step, loss in alone.items() if step > first})

"""Examples with torch on the dev cluster: real torch_tpu in pods, a killed rank, two slices, Ray Train.

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


def example(name: str, steps: int, tpu: Any = None, **env: str) -> Any:
    """An example with packages of this machine, on nodes as there are here."""
    job = yaml.safe_load((ROOT / f"examples/{name}.yaml").read_text())
    run, pod = job["spec"]["run"], job["spec"]["template"]["spec"]
    env |= {"STEPS": str(steps), "PYTHONPATH": PACKAGES}
    job["spec"]["tpu"] = tpu or job["spec"]["tpu"]
    run["env"] = [each for each in run.get("env", []) if each["name"] not in env]
    run["env"] += [{"name": key, "value": value} for key, value in env.items()]
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


def saved(folder: Path) -> list[int]:
    """The steps of checkpoints that are complete."""
    return sorted(int(path.parent.name) for path in folder.glob("*/.metadata"))


def test_the_example_survives_a_killed_rank_with_the_losses_of_one_run(
    kube: Kube, volume: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    steps = 40
    job = example("torchtpu-train", steps)
    job["spec"]["run"]["processesPerHost"] = 1
    kube.apply(job)
    wait_for("there is a checkpoint", lambda: saved(volume), SECONDS)
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
    assert saved(volume)[-1] == steps
    alone = one_process("torchtpu-train", tmp_path_factory.mktemp("one"), steps)
    same_losses(losses(log.encode()), {step: loss for step, loss in alone.items() if step > first})


def test_fsdp2_shards_over_a_slice_and_copies_to_the_other_one(
    kube: Kube, volume: Path, two_slices_of_one: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    steps = 20
    job = example("torchtpu-fsdp2", steps, {"accelerator": "v5e", "topology": "2x2", "slices": 2})
    job["spec"]["run"]["processesPerHost"] = 2
    kube.apply(job)
    status = kube.finish("torchtpu-fsdp2", SECONDS)
    assert (status["phase"], status["restarts"]["total"]) == ("Succeeded", 0), status
    log = kube.logs("torchtpu-fsdp2-0-0")
    assert re.search(
        r"^4 processes on 2 slices, each with 32 of 64 of a parameter, from step 0$", log, re.MULTILINE
    ), log
    assert saved(volume) == [10, 20]
    same_losses(losses(log.encode()), one_process("torchtpu-fsdp2", tmp_path_factory.mktemp("one"), steps))


def test_ray_train_has_a_worker_on_each_host(kube: Kube, volume: Path, slice_of_two: None) -> None:
    steps = 20
    two = {"accelerator": "v5e", "topology": "2x4", "chipsPerHost": 4}
    kube.apply(example("ray-train", steps, two, TPUS_PER_WORKER="4"))
    status = kube.finish("ray-train", SECONDS)
    log = kube.logs("ray-train-0-0")
    assert (status["phase"], status["restarts"]["total"]) == ("Succeeded", 0), log
    ranks = dict(re.findall(r"rank (\d) of 2 on (\S+): tpu, from step 0", log))
    assert sorted(ranks) == ["0", "1"], log
    assert sorted(ranks.values()) == ["ray-train-0-0", "ray-train-0-1"], log
    found = {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss (\S+)", log)}
    assert found.keys() == set(range(1, steps + 1))
    assert found[steps] < found[1]
    assert f"trained for {steps} steps" in log
    assert len(list(volume.glob("ray-train/checkpoint_*/state.pt"))) == steps // 10

"""examples/reinforcement-learning.yaml on the dev cluster: an environment, two engines and a trainer.

Torch is too large for an image on each of four nodes. Nodes of the dev cluster share this machine's files, so
packages come from `.venv-rl`, which the image's Python can import, as it is of the same version.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.kube import Kube, wait_for
from tests.systems.rl.programs import PYTHON, SECONDS, example, mean, rewards, sent
from tests.torchtpu.test_cluster import claim

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKAGES = "/opt/rl/site-packages"
"""By its last part, Python's `dill` knows packages from programs."""
IMAGE = "localhost/tpu-runtime:dev"
TOPOLOGY, POOL = "cloud.google.com/gke-tpu-topology", "cloud.google.com/gke-nodepool"
CHIPS = "cloud.google.com/gke-accelerator-count"
STEPS = 30


@pytest.fixture
def single_hosts(operator: Kube) -> Iterator[None]:
    """The nodes as slices of one chip, each in a pool of its own."""
    before = {
        node["metadata"]["name"]: node["metadata"]["labels"] for node in operator.find("nodes", TOPOLOGY)
    }
    for index, node in enumerate(before):
        single = [f"{TOPOLOGY}=1x1", f"{POOL}=single-{index}", f"{CHIPS}=1"]
        operator.kubectl("label", "node", node, "--overwrite", *single)
    yield
    for node, labels in before.items():
        old = [f"{key}={labels[key]}" for key in (TOPOLOGY, POOL, CHIPS)]
        operator.kubectl("label", "node", node, "--overwrite", *old)


@pytest.fixture
def volume(kube: Kube, tmp_path: Path) -> Iterator[Path]:
    kube.apply(*claim(kube.namespace, tmp_path))
    yield tmp_path
    kube.kubectl("delete", "tpujob,tpuinference,deployment,pod,pvc", "--all", "--timeout=120s")
    kube.kubectl("delete", "pv", kube.namespace, "--timeout=60s")


def pod_spec(body: dict[str, Any]) -> dict[str, Any] | None:
    """The pod template's spec in one of the example's objects."""
    spec = body.get("spec", {})
    template = spec["roles"][0]["template"] if body["kind"] == "TPUInference" else spec.get("template", {})
    found: dict[str, Any] | None = template.get("spec")
    return found


def here() -> list[dict[str, Any]]:
    """The example, with images and packages of this machine."""
    packages = PYTHON.parents[1] / f"lib/python3.{sys.version_info.minor}/site-packages"
    objects = example()
    for body in objects:
        if (pod := pod_spec(body)) is None:
            continue
        main = pod["containers"][0]
        main["env"] = [{"name": "PYTHONPATH", "value": PACKAGES}, {"name": "HF_HUB_OFFLINE", "value": "1"}]
        pod["volumes"].append({"name": "packages", "hostPath": {"path": str(packages)}})
        main["volumeMounts"].append({"name": "packages", "mountPath": PACKAGES, "readOnly": True})
        if body["kind"] == "TPUInference":
            body["spec"]["engine"]["image"] = IMAGE
        else:
            main["image"] = IMAGE
        if body["kind"] == "Deployment":
            # All nodes pose as TPU hosts.
            pod["tolerations"] = [{"key": "google.com/tpu", "operator": "Exists"}]
        if body["kind"] == "TPUJob":
            (steps,) = [each for each in body["spec"]["run"]["env"] if each["name"] == "STEPS"]
            steps["value"] = str(STEPS)
    return objects


@pytest.mark.usefixtures("single_hosts", "volume")
def test_reward_rises_and_both_engines_have_the_trainers_weights(kube: Kube) -> None:
    kube.apply(*here())
    engines = "tpu-operator.dev/inference=walker"
    wait_for("two engines", lambda: len(kube.find("pods", engines)) == 2, SECONDS)
    kube.kubectl("wait", "pod", f"--selector={engines}", "--for=condition=Ready", f"--timeout={SECONDS}s")
    status = kube.finish("grpo", SECONDS)
    log = kube.logs("grpo-0-0")
    assert status["phase"] == "Succeeded", (status, log)

    assert "GRPO on cpu, from the beginning" in log
    found = rewards(log)
    assert list(found) == list(range(1, STEPS + 1)), log
    assert mean([found[step] for step in range(1, 6)]) < 0.5, found
    assert mean([found[step] for step in range(STEPS - 4, STEPS + 1)]) > 0.85, found
    kinds = [kind for kind, _ in sent(log)]
    assert kinds.count("full") == 2, log
    assert kinds.count("delta") > STEPS, log

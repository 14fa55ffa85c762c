"""Real Ray: a node and its driver, and the program of examples/ray-train.yaml.

Each launcher has a network of its own, as a pod has: Ray's ports are always the same.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.e2e.kube import wait_for
from tests.torchtpu.hosts import PYTHON, ROOT, SECONDS
from tests.unit.runtime.harness import PYTHON as LAUNCHERS
from tests.unit.runtime.harness import Launcher, variables
from tpu_runtime.processes import descendants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Start = Callable[..., Launcher]

EXAMPLE = ROOT / "examples" / "ray-train.yaml"
NETWORK = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
STEP = re.compile(r"step (\d+) loss (\S+)")
LOOKS = """
import time, urllib.request
import ray

def ask(url):
    while True:
        try:
            with urllib.request.urlopen(url) as answer:
                return answer.read().decode()
        except OSError:
            time.sleep(0.2)

ray.init()
print("dashboard", ray.__version__ in ask("http://localhost:8265/api/version"))
print("metrics", "\\nray_" in ask("http://localhost:8266/metrics"))
print("agent", ask("http://localhost:8267/api/local_raylet_healthz"))
found = ray.cluster_resources()
print({name: found[name] for name in sorted(found) if name.startswith(("TPU", "job"))})
[node] = ray.nodes()
print({name: value for name, value in sorted(node["Labels"].items()) if name.startswith("ray.io/tpu")})
"""
EATS = """
import ray
ray.init()

@ray.remote(max_retries=0)
def eat():
    import time
    time.sleep(3600)

ray.get(eat.remote())
"""
STEPS = 40


@pytest.fixture
def ray(tmp_path: Path) -> Iterator[Start]:
    """Starts launchers with a Ray cluster of one host, and ends those that still run."""
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is not there: run `make torchtpu` first")
    started: list[Launcher] = []
    # The names of Ray's sockets have to be short.
    short = tempfile.mkdtemp(prefix="ray-")

    def start(script: str, **changes: str) -> Launcher:
        own = {"HOME": os.environ["HOME"], "RAY_TMPDIR": short}
        env = variables(own | changes, launcher="ray")
        prefix = [*NETWORK, *LAUNCHERS, "-m", "tpu_runtime"]
        folder = tmp_path / f"launcher-{len(started)}"
        started.append(Launcher(folder, env, [str(PYTHON), "-c", script], prefix))
        return started[-1]

    yield start
    for launcher in started:
        launcher.kill()
    shutil.rmtree(short)


def losses(output: bytes) -> dict[int, str]:
    """The loss after each step, as a worker has printed it; Ray says which one."""
    return {int(step): loss for step, loss in STEP.findall(output.decode())}


def ended(launcher: Launcher) -> int:
    """Its exit code; nothing that it has started is left."""
    below: set[int] = set()

    def over() -> bool:
        below.update(descendants(launcher.process.pid))
        return launcher.process.poll() is not None

    wait_for("the launcher ends", over, SECONDS)
    assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
    return int(launcher.process.returncode)


def test_a_cluster_answers_on_its_ports_and_leaves_nothing_behind(ray: Start) -> None:
    launcher = ray(LOOKS)
    assert ended(launcher) == 0, launcher.stderr
    said = launcher.stdout.decode()
    assert all(answer in said for answer in ("dashboard True", "metrics True", "agent success")), said
    assert "{'TPU': 4.0, 'TPU-v5litepod-4-head': 1.0, 'job-0': 1.0}" in said
    labels = {"pod-type": "v5litepod-4", "slice-name": "job-0", "topology": "2x2", "worker-id": "0"}
    assert str({f"ray.io/tpu-{name}": value for name, value in labels.items()}) in said
    assert launcher.message is None
    assert "exited unexpectedly" not in said + launcher.stderr


def test_a_task_that_ray_ends_for_its_memory_is_the_root_cause(ray: Start) -> None:
    launcher = ray(EATS, RAY_memory_usage_threshold="0", RAY_task_oom_retries="0")
    assert ended(launcher) == 1, launcher.stderr
    assert launcher.message is not None
    assert launcher.message["cause"] == "OutOfMemory", launcher.message
    assert "memory" in launcher.message["error"]


def test_ray_train_learns_and_saves(ray: Start, tmp_path: Path) -> None:
    program = yaml.safe_load(EXAMPLE.read_text())["spec"]["run"]["command"][2]
    folder = tmp_path / "checkpoints"
    launcher = ray(program, CHECKPOINTS=str(folder), TPUS_PER_WORKER="2", STEPS=str(STEPS))
    assert ended(launcher) == 0, launcher.stderr
    found = losses(launcher.stdout)
    assert found.keys() == set(range(1, STEPS + 1))
    assert float(found[STEPS]) < float(found[1]) / 2
    assert f"trained for {STEPS} steps" in launcher.stdout.decode()
    assert len(list(folder.glob("ray-train/checkpoint_*/state.pt"))) == STEPS // 10

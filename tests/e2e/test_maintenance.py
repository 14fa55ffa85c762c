"""Announced maintenance on real kubelets: from a node's label to a signal in the program."""

import time
from collections.abc import Iterator

import pytest

from tests.e2e.kube import Kube, python, wait_for

SCHEDULED = "cloud.google.com/scheduled-maintenance-time"
SAVES = """
import signal, time
def save(number, frame):
    print("checkpoint saved", flush=True)
signal.signal(signal.SIGURG, save)
print("training", flush=True)
for step in range(6000):
    time.sleep(0.1)
"""


@pytest.fixture
def nodes(operator: Kube) -> Iterator[list[str]]:
    """The nodes with TPUs, without notices afterwards."""
    found = [n["metadata"]["name"] for n in operator.find("nodes", "cloud.google.com/gke-tpu-topology=4x4")]
    yield found
    operator.kubectl("label", "node", *found, f"{SCHEDULED}-")


def condition(kube: Kube, name: str) -> str:
    found = {each["type"]: each for each in kube.status(name).get("conditions", ())}
    return str(found.get("MaintenanceScheduled", {}).get("status", ""))


def test_the_programs_of_all_hosts_save_their_state_and_go_on(kube: Kube, nodes: list[str]) -> None:
    kube.apply(python("saves", SAVES))
    kube.wait_phase("saves", "Running")
    pods = [pod["metadata"]["name"] for pod in kube.pods("saves")]
    wait_for("all programs run", lambda: all("training" in kube.logs(pod) for pod in pods))
    kube.kubectl("label", "node", *nodes, f"{SCHEDULED}={int(time.time()) + 3600}", "--overwrite")
    wait_for("all have saved", lambda: all("checkpoint saved" in kube.logs(pod) for pod in pods), 120)
    assert condition(kube, "saves") == "True"
    status = kube.status("saves")
    assert (status["phase"], status["restarts"]["total"]) == ("Running", 0), status
    kube.kubectl("label", "node", *nodes, f"{SCHEDULED}-")
    wait_for("it is over", lambda: condition(kube, "saves") == "False")

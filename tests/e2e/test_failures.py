"""What is taken from a running job, on real kubelets, and what the job makes of it.

The first attempt runs until something happens to it, and the second one ends well.
"""

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from hack.devcluster import Cluster
from hack.devcluster.nodes import ctr
from tests.docs import examples
from tests.e2e.conftest import install
from tests.e2e.kube import Kube, Object, job, wait_for

VICTIM = "train-0-1"
FIRST_ATTEMPT_STAYS = ["sh", "-c", "test $TPU_OPERATOR_ATTEMPT != 0 || exec sleep 600"]
KILL_SLEEP = """
import os, pathlib, signal
for process in pathlib.Path("/proc").glob("[0-9]*"):
    if (process / "cmdline").read_bytes().startswith(b"sleep"):
        os.kill(int(process.name), signal.SIGKILL)
"""
EVENT = r"{.type} {.object.metadata.uid} {.object.metadata.labels.tpu-operator\.dev/attempt}{'\n'}"


@dataclass(frozen=True)
class Gang:
    """The running job `train`, and all that has become of its pods."""

    kube: Kube
    events: Path

    def recorded(self) -> AbstractContextManager[None]:
        """Keep a record of what becomes of the pods."""
        watch = ["get", "pods", "--watch", "--output-watch-events", f"--output=jsonpath={EVENT}"]
        return self.kube.recorded(self.events, *watch)

    def victim(self) -> Object:
        """The pod that something is about to happen to."""
        return self.kube.get("pod", VICTIM)

    def attempts_at_a_time(self) -> list[set[str]]:
        """The attempts that pods were there of, after each event, in the server's order."""
        alive: dict[str, str] = {}
        found = []
        for line in self.events.read_text().rpartition("\n")[0].splitlines():
            kind, uid, attempt = line.split()
            if kind == "DELETED":
                alive.pop(uid, None)
            else:
                alive[uid] = attempt
            found.append(set(alive.values()))
        return found

    def restarted(self) -> bool:
        """Whether pods of a second attempt have been seen."""
        return {"1"} in self.attempts_at_a_time()

    def ends_well(self, cause: str, *, counted: int) -> Object:
        """Check that it came through with one restart; its last failure."""
        status = self.kube.finish("train")
        assert status["phase"] == "Succeeded", status
        restarts = status["restarts"]
        assert restarts["byCause"] == {cause: 1}, status
        assert (restarts["total"], restarts["counted"]) == (1, counted)
        wait_for("the watch has seen the second attempt", self.restarted)
        assert all(len(attempts) <= 1 for attempts in self.attempts_at_a_time())
        failure: Object = status["lastFailure"]
        assert (failure["pod"], failure["cause"]) == (VICTIM, cause)
        return failure


@pytest.fixture
def gang(kube: Kube, tmp_path: Path) -> Iterator[Gang]:
    kube.apply(job("train", FIRST_ATTEMPT_STAYS, **examples()["A node is lost"].spec))
    kube.wait_phase("train", "Running")
    found = Gang(kube, tmp_path / "events")
    with found.recorded():
        wait_for("the watch has seen all hosts", lambda: len(found.attempts_at_a_time()) >= 4)
        yield found


def test_case_34_a_program_that_fails_once_succeeds_in_the_end(kube: Kube, tmp_path: Path) -> None:
    fails = 'test "$TPU_OPERATOR_ATTEMPT-$TPU_WORKER_ID" != 0-1'
    kube.apply(job("train", ["sh", "-c", fails]))
    found = Gang(kube, tmp_path / "events")
    with found.recorded():
        failure = found.ends_well("UserError", counted=1)
    assert failure["exitCode"] == 1
    assert [pod["metadata"]["labels"]["tpu-operator.dev/attempt"] for pod in kube.pods("train")] == ["1"] * 4


def test_a_process_is_killed(gang: Gang) -> None:
    gang.kube.kubectl("exec", VICTIM, "--container=main", "--", "python3", "-c", KILL_SLEEP)
    failure = gang.ends_well("UserError", counted=1)
    assert (failure["exitCode"], failure["signal"], failure["host"]) == (137, 9, 1)


def test_a_container_is_killed(gang: Gang, machines: Cluster) -> None:
    pod = gang.victim()
    (status,) = pod["status"]["containerStatuses"]
    kill = ctr("task", "kill", "--signal=SIGKILL", status["containerID"].removeprefix("containerd://"))
    machines.run_on_node(pod["spec"]["nodeName"], kill, check=True)
    failure = gang.ends_well("UserError", counted=1)
    assert failure["exitCode"] == 137
    # The launcher had no time to report; what follows is the end of its log.
    assert failure["message"].startswith("killed by signal 9; tpu-launch: ")


@pytest.mark.parametrize("how", ["--grace-period=20", "--force"])
def test_a_pod_is_deleted(gang: Gang, how: str) -> None:
    gang.kube.kubectl("delete", "pod", VICTIM, "--wait=false", how)
    gang.ends_well("PodDeleted", counted=0)


@pytest.fixture
def impatient(operator: Kube, reinstall: None) -> None:
    """An operator that gives nodes up sooner."""
    install(operator, "--set", "extraArgs={--node-lost-after=3}")


@contextmanager
def no_kubelet(machines: Cluster, node: str) -> Iterator[None]:
    """A node without its kubelet, whose containers run on."""
    kubelet = node.replace("node-", "kubelet-")
    machines.signal(kubelet, signal.SIGKILL)
    try:
        yield
    finally:
        wait_for("the kubelet has ended", lambda: machines.find(kubelet) is None)
        machines.start_component(kubelet)


def blocked(kube: Kube) -> str:
    """What keeps the job from running."""
    pending: Object = kube.status("train").get("pending") or {}
    return str(pending.get("message", ""))


@pytest.mark.usefixtures("impatient")
def test_a_node_is_lost(gang: Gang, machines: Cluster) -> None:
    node = gang.victim()["spec"]["nodeName"]
    with no_kubelet(machines, node):
        # Kubernetes itself takes 50 s to call a node unknown.
        wait_for("the second attempt", gang.restarted, seconds=120)
        wait_for("it waits for the node", lambda: blocked(gang.kube))
    failure = gang.ends_well("NodeLost", counted=0)
    example = examples()["A node is lost"]
    assert example.shown(gang.kube.status("train")) == example.status
    assert failure["message"] == f"node {node} is not ready for over 3 s"
    wait_for("the node is back", lambda: all(each.ready for each in machines.nodes()))


def test_a_node_is_drained(gang: Gang) -> None:
    node = gang.victim()["spec"]["nodeName"]
    drain = ["drain", node, "--delete-emptydir-data", "--ignore-daemonsets", "--timeout=120s"]
    gang.kube.kubectl(*drain)
    try:
        wait_for("the second attempt", gang.restarted)
        wait_for("it waits for the node", lambda: f"{node} is cordoned" in blocked(gang.kube))
    finally:
        gang.kube.kubectl("uncordon", node)
    gang.ends_well("Evicted", counted=0)

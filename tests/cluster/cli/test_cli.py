"""`kubectl tpu`, run by the real kubectl, against a real API server with the operator beside it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.cluster.cli.kubectl import Kubectl
from tests.cluster.operator.jobs import HOLD, RELEASE, Jobs, attempts
from tests.kube import POD, QUOTA, wait_for
from tpu_operator.cli.command import Exit

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from hack.devcluster import Cluster
    from tests.kube import Kube

pytestmark = pytest.mark.usefixtures("operator")


@pytest.fixture
def jobs(kube: Kube, namespace: str) -> Jobs:
    """The jobs of a namespace of the test's own."""
    return Jobs(kube, namespace)


@pytest.fixture
def tpu(control_plane: Cluster, namespace: str) -> Kubectl:
    """`kubectl tpu` in that namespace."""
    return Kubectl(control_plane, namespace)


@pytest.fixture
def started(tpu: Kubectl) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts commands that go on, and ends them after the test."""
    running: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        running.append(tpu.start(*words))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_a_job_from_a_command_line(tpu: Kubectl, jobs: Jobs) -> None:
    command = ["run", "train", "--accelerator", "v5e", "--topology", "4x4"]
    said = tpu(*command, "--", "python", "train.py")
    assert said.splitlines()[0] == "tpujob/train created: 1 slice of 4 hosts with 4 chips"
    assert tpu("wait", "train", "--for=running", "--timeout=3m") == "tpujob/train is Running\n"
    assert jobs.get()["spec"]["run"] == {"command": ["python", "train.py"]}
    shown = tpu("status", "train")
    assert "Phase:     Running, 4/4 hosts ready" in shown
    assert "└─train-0-3" in shown
    assert "\x1b" not in shown
    found = json.loads(tpu("status", "train", "-o", "json"))
    assert [host["state"] for host in found["slices"][0]["hosts"]] == ["Running"] * 4
    assert tpu("why", "train").startswith("nothing is wrong: the job runs on 4 hosts")
    assert "AllHostsReady" in tpu("events", "train")
    again = tpu(*command, "--", "true", fails=Exit.REFUSED)
    assert 'tpujobs.tpu-operator.dev "train" already exists' in again


def test_a_dry_run_is_a_manifest_that_can_be_applied(tpu: Kubectl, jobs: Jobs, kube: Kube) -> None:
    words = ["run", "train", "--accelerator=v5e", "--topology=4x4", "--suspend", "-o", "yaml"]
    body = yaml.safe_load(tpu(*words, "--dry-run=server", "--", "true"))
    assert not jobs.get()
    kube.create(("tpu-operator.dev/v1alpha1", "TPUJob"), body, jobs.namespace)
    assert jobs.reaches("Suspended")
    refused = tpu(*words, "--processes-per-host=9", "--dry-run=server", "--", "true", fails=Exit.REFUSED)
    assert "spec.run.processesPerHost" in refused


def test_why_a_job_waits(tpu: Kubectl, jobs: Jobs, kube: Kube) -> None:
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"requests.google.com/tpu": "0"}}}
    kube.create(QUOTA, quota, jobs.namespace)
    wait_for(
        lambda: (kube.get(QUOTA, "none", jobs.namespace) or {}).get("status", {}).get("hard"), "the quota"
    )
    jobs.create()
    jobs.blocked("QuotaExceeded")
    said = tpu("why", "train", fails=Exit.BAD)
    assert said.startswith("the job does not run: QuotaExceeded")
    assert "ResourceQuota none has 0 of 0 requests.google.com/tpu left, 16 are needed at once" in said
    late = tpu("wait", "train", "--for=running", "--timeout=1s", fails=Exit.TIMEOUT)
    assert "time is up: TPUJob train is Pending (QuotaExceeded: ResourceQuota none" in late
    assert "there are no pods of these hosts" in tpu("logs", "train", fails=Exit.NOT_FOUND)
    assert "has not started yet" in tpu("restart", "train", fails=Exit.BAD)
    assert "ResourceQuota none" in tpu("doctor", "--operator-namespace=tpu-operator")


def test_why_a_job_has_failed(tpu: Kubectl, jobs: Jobs) -> None:
    jobs.create(failurePolicy={"maxRestarts": 0, "coalesceSeconds": 0})
    jobs.reaches("Running")
    jobs.end_pod("train-0-2", 1, error="the loss is not a number")
    said = tpu("wait", "train", "--for=succeeded", "--timeout=3m", fails=Exit.BAD)
    assert "is Failed (MaxRestartsReached): it will never be succeeded" in said
    answer = json.loads(tpu("why", "train", "-o", "json", fails=Exit.BAD))
    assert answer["cause"].startswith("UserError, exit code 1: the loss is not a number - first on host 2")
    said = tpu("logs", "train", "--failed")
    assert said.startswith(
        "UserError, exit code 1: the loss is not a number - host 2 of slice 0 (pod train-0-2)"
    )
    assert "has ended (Failed)" in tpu("restart", "train", fails=Exit.BAD)
    assert "has ended (Failed)" in tpu("suspend", "train", fails=Exit.BAD)


def test_suspend_resume_and_restart(tpu: Kubectl, jobs: Jobs) -> None:
    jobs.create(failurePolicy={"maxRestarts": 0})
    jobs.reaches("Running")
    said = tpu("restart", "train")
    assert said == "tpujob/train restarts: 1 job, by deleting train-0-0; nothing is charged to maxRestarts\n"
    status = jobs.reaches("Running", restarts=1)
    assert status["restarts"] == {"total": 1, "counted": 0, "byCause": {"PodDeleted": 1}, "sinceReady": 0} | {
        "lastTime": status["restarts"]["lastTime"]
    }
    assert attempts(jobs.pods()) == {"1"}
    assert tpu("suspend", "train").startswith("tpujob/train suspended")
    tpu("wait", "train", "--for=suspended", "--timeout=3m")
    assert tpu("suspend", "train") == "tpujob/train is suspended already\n"
    assert "is suspended" in tpu("restart", "train", fails=Exit.BAD)
    assert "`kubectl tpu resume train`" in tpu("why", "train", fails=Exit.BAD)
    assert tpu("resume", "train").startswith("tpujob/train resumed")
    tpu("wait", "train", "--for=running", "--timeout=3m")


def test_a_watch_draws_every_change_until_the_end(
    tpu: Kubectl, jobs: Jobs, kube: Kube, started: Callable[..., subprocess.Popen[str]]
) -> None:
    jobs.create()
    jobs.reaches("Running")
    watching = started("status", "train", "--watch")
    assert watching.stdout is not None
    first = [watching.stdout.readline() for _ in range(2)]
    assert first[1] == "Phase:     Running, 4/4 hosts ready\n"
    kube.patch(POD, "train-0-1", jobs.namespace, HOLD)
    jobs.end_pod("train-0-2", 1, error="boom")
    wait_for(lambda: set(jobs.pods()) == {"train-0-1"}, "the pods of the attempt to go")
    kube.patch(POD, "train-0-1", jobs.namespace, RELEASE)
    jobs.reaches("Running", restarts=1)
    for pod in jobs.pods():
        jobs.end_pod(pod, 0)
    rest, _ = watching.communicate(timeout=60)
    assert watching.returncode == 0
    phases = [line.split()[1].rstrip(",") for line in rest.splitlines() if line.startswith("Phase:")]
    assert "Restarting" in phases
    assert phases[-1] == "Succeeded"
    assert "Terminating" in rest


def test_a_job_that_is_waited_for_is_deleted(
    tpu: Kubectl, jobs: Jobs, kube: Kube, started: Callable[..., subprocess.Popen[str]]
) -> None:
    jobs.create()
    jobs.reaches("Running")
    waiting, gone = started("wait", "train", "--for=succeeded"), started("wait", "train", "--for=deleted")
    kube.delete(("tpu-operator.dev/v1alpha1", "TPUJob"), "train", jobs.namespace)
    assert "tpujob/train is deleted" in gone.communicate(timeout=60)[0]
    assert waiting.wait(timeout=60) in {Exit.BAD, Exit.NOT_FOUND}
    assert gone.returncode == 0


def test_what_is_not_there(tpu: Kubectl, jobs: Jobs) -> None:
    jobs.create("train")
    said = tpu("status", "trian", fails=Exit.NOT_FOUND)
    assert f"there is no TPUJob trian in namespace {jobs.namespace}" in said
    assert "did you mean train?" in said
    jobs.reaches("Running")
    assert "--rank 4: TPUJob train has ranks 0 to 3" in tpu("logs", "train", "--rank=4", fails=Exit.USAGE)
    # Fake nodes have no kubelet that could show a log.
    said = tpu("logs", "train", "--rank=0", fails=Exit.NOT_FOUND)
    assert "no logs of these hosts" in said
    rows = json.loads(tpu("top", "train", "-o", "json"))
    assert [(row["pod"], row.get("processes")) for row in rows] == [
        (f"train-0-{host}", None) for host in range(4)
    ]


def test_the_cluster_is_looked_at(tpu: Kubectl) -> None:
    findings = json.loads(tpu("doctor", "-o", "json"))
    by_check = {one["check"]: one["severity"] for one in findings}
    assert by_check["server"] == by_check["crds"] == by_check["operator"] == by_check["nodes"] == "ok"
    pools = json.loads(tpu("topologies", "v5e", "--available", "-o", "json"))
    assert {pool["topology"] for pool in pools} >= {"4x4"}
    assert all(pool["nodes"] == pool["hosts"] for pool in pools)


def test_the_shell_is_told_what_there_is(tpu: Kubectl, jobs: Jobs) -> None:
    jobs.create("train", suspend=True)
    assert "status" in tpu.complete("sta")
    assert tpu.complete("status", "--namespace", jobs.namespace, "tr") == ["train"]

"""`kubectl tpu` on real kubelets: what only they have, logs, commands in pods, and the launcher's figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.kube import wait_for
from tpu_operator.cli.command import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.kube import Kube, Object

RUN = ["--accelerator=v5e", "--topology=4x4", "--launcher=none"]
TALK = "for i in 1 2 3; do echo host $TPU_WORKER_ID line $i; done; exec sleep 600"
FAIL = "echo begins; sleep 1; echo the end is near; test $TPU_WORKER_ID != 2 || exit 3; exec sleep 600"


class Tpu:
    """`kubectl tpu` in the namespace of a test."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        path = f"{kube.kubectl_binary.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._env = os.environ | {"KUBECONFIG": str(kube.kubeconfig), "PATH": path}
        self._running: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A command that goes on."""
        at = words.index("--") if "--" in words else len(words)
        where = ["--namespace", self._kube.namespace]
        line = [str(self._kube.kubectl_binary), "tpu", *words[:at], *where, *words[at:]]
        process = subprocess.Popen(
            line,
            env=self._env,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._running.append(process)
        return process

    def __call__(self, *words: str, fails: int = 0) -> str:
        """What a command prints."""
        process = self.start(*words)
        out, err = process.communicate(timeout=300)
        assert process.returncode == fails, f"{process.returncode}: {out}{err}"
        return out

    def end(self) -> None:
        """End what still runs."""
        for process in self._running:
            process.kill()
            process.communicate()


@pytest.fixture
def tpu(kube: Kube) -> Iterator[Tpu]:
    """`kubectl tpu`, whose commands end with the test."""
    found = Tpu(kube)
    yield found
    found.end()


def test_logs_commands_and_figures_of_hosts(tpu: Tpu) -> None:
    tpu("run", "talk", *RUN, "--", "sh", "-c", TALK)
    tpu("wait", "talk", "--for=running", "--timeout=5m")

    def said() -> list[str]:
        return [line for line in tpu("logs", "talk").splitlines() if "line" in line]

    lines = wait_for("all hosts to have written", lambda: len(found := said()) == 12 and found)
    assert sorted(lines) == [f"talk-0-{host} | host {host} line {i}" for host in range(4) for i in (1, 2, 3)]
    alone = tpu("logs", "talk", "--rank=3", "--tail=1")
    assert alone == "host 3 line 3\n"
    assert tpu("exec", "talk", "--rank=2", "--", "hostname") == "talk-0-2\n"
    rows = json.loads(tpu("top", "talk", "-o", "json"))
    assert [(row["pod"], row["processes"], row["gatePassed"]) for row in rows] == [
        (f"talk-0-{host}", 1, True) for host in range(4)
    ]


def test_a_job_is_followed_over_a_restart_to_its_end(tpu: Tpu) -> None:
    following = tpu.start("run", "fails", *RUN, "--max-restarts=1", "--follow", "--", "sh", "-c", FAIL)
    out, err = following.communicate(timeout=600)
    assert following.returncode == Exit.BAD, f"{out}{err}"
    lines = out.splitlines()
    assert lines.count("fails-0-2 | the end is near") == 2, "once for each attempt"
    root = tpu("logs", "fails", "--failed").splitlines()
    assert root[0].startswith("UserError, exit code 3")
    assert "host 2 of slice 0 (pod fails-0-2)" in root[0]
    assert "the end is near" in root
    why = tpu("why", "fails", fails=Exit.BAD)
    assert why.startswith("the job has failed: MaxRestartsReached")
    assert "  | the end is near" in why


def _looker(role: str, namespace: str) -> list[Object]:
    """A pod of the operator's image that looks at a job, with the rights of a role of the cluster."""
    bound = {"kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io"}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "looker"},
        "roleRef": bound,
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }
    command = ["kubectl-tpu", "status", "hello", "-o", "json"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "looker"},
        "spec": {
            "restartPolicy": "Never",
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "localhost/tpu-operator:dev", "command": command}],
        },
    }
    return [binding, pod]


def test_the_operators_image_has_it_too_and_takes_the_account_of_its_pod(tpu: Tpu, kube: Kube) -> None:
    tpu("run", "hello", *RUN, "--", "true")
    kube.apply(*_looker("view", kube.namespace))

    def phase() -> str:
        found: str = kube.get("pod", "looker").get("status", {}).get("phase", "")
        return found if found in {"Succeeded", "Failed"} else ""

    ended = wait_for("the pod to have looked", phase, 120)
    said = kube.logs("looker")
    assert ended == "Succeeded", said
    assert json.loads(said)["name"] == "hello"

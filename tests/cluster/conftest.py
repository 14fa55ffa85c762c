"""The operator as a process, beside a real control plane with fake nodes."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.kube import LEASE, NAMESPACE, POD, TPUJOB, Kube, wait_for
from tests.loopback import fetch, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hack.devcluster import Cluster

ROOT = Path(__file__).parents[2]
SYSTEM = "tpu-operator"
TEAM = "team-a"
"""The namespace of the documentation."""
_numbers = itertools.count()


class Child(Protocol):
    """What we do with a process."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def send_signal(self, sig: int, /) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class Operator:
    """One replica of the operator.

    Args:
        kubeconfig: the cluster to work on.
        log: where its output goes.
        arguments: more of its command line.
        python: the interpreter that runs it.
    """

    def __init__(
        self, kubeconfig: Path, log: Path, *arguments: str, python: str | Path = sys.executable
    ) -> None:
        self.identity = f"replica-{next(_numbers)}"
        self.metrics_port, self.health_port = free_port(), free_port()
        self.log = log
        self.arguments = [
            "--runtime-image=example/runtime:1",
            "--launcher-image=example/operator:1",
            "--allow-host-path-caches",
            f"--identity={self.identity}",
            f"--metrics-port={self.metrics_port}",
            f"--health-port={self.health_port}",
            *arguments,
        ]
        self.kubeconfig = kubeconfig
        self._python = python
        self._process: Child | None = None

    def start(self) -> Operator:
        """Start it, and wait until it has a copy of the cluster."""
        self._process = self.spawn()
        wait_for(self.ready, f"{self.identity} to be ready, see {self.log}")
        return self

    def spawn(self) -> Child:
        """Start the process itself."""
        command = [self._python, "-m", "tpu_operator", "run", *self.arguments]
        env = os.environ | {"KUBECONFIG": str(self.kubeconfig)}
        with self.log.open("ab") as log:
            return subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=ROOT)

    def check(self) -> None:
        """Fail if it has ended."""
        assert self._process is not None
        assert self._process.poll() is None, f"{self.identity} has died:\n{self.log.read_text()}"

    def ready(self) -> bool:
        self.check()
        return self.http(self.metrics_port, "/readyz")[0] == 200

    def http(self, port: int, path: str) -> tuple[int, str]:
        """Status and body of a GET; status 0 if nobody answers."""
        return fetch(f"http://127.0.0.1:{port}{path}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """Exit code, once it has ended."""
        assert self._process is not None
        return self._process.wait(timeout=60)

    def kill(self) -> None:
        """End it without notice."""
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGKILL)
            self.wait()


@pytest.fixture(scope="session")
def kube(control_plane: Cluster) -> Kube:
    """The cluster, with our CRDs."""
    subprocess.run(
        [control_plane.kubectl, "--kubeconfig", control_plane.kubeconfig, "apply", "-f", ROOT / "crds"],
        check=True,
        capture_output=True,
    )
    client = Kube(control_plane.kubeconfig)
    wait_for(lambda: _served(client), "TPUJobs to be served")
    if client.get(NAMESPACE, SYSTEM) is None:
        client.create(NAMESPACE, {"metadata": {"name": SYSTEM}})
    return client


def _served(client: Kube) -> bool:
    try:
        return client.list(TPUJOB, "default") is not None
    except Exception as error:
        if "NotFound" in type(error).__name__ or "NotFound" in str(error):
            return False
        raise


@pytest.fixture
def make_operator(control_plane: Cluster, kube: Kube, tmp_path: Path) -> Iterator[Callable[..., Operator]]:
    """Makes replicas, and ends them after the test."""
    made: list[Operator] = []

    def make(*arguments: str) -> Operator:
        made.append(Operator(control_plane.kubeconfig, tmp_path / "operator.log", *arguments))
        return made[-1]

    yield make
    for operator in made:
        operator.kill()
    kube.delete(LEASE, SYSTEM, SYSTEM)


@pytest.fixture(scope="module")
def operator(
    control_plane: Cluster, kube: Kube, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    """One replica for the tests of a module that do not harm it."""
    started = Operator(control_plane.kubeconfig, tmp_path_factory.mktemp("operator") / "operator.log").start()
    yield started
    started.signal(signal.SIGTERM)
    assert started.wait() == 0, started.log.read_text()
    kube.delete(LEASE, SYSTEM, SYSTEM)


@pytest.fixture
def namespace(kube: Kube) -> Iterator[str]:
    """A namespace of the test's own; its pods give the nodes back before the next test begins."""
    name = f"test-{os.getpid()}-{next(_numbers)}"
    kube.create(NAMESPACE, {"metadata": {"name": name}})
    yield name
    for job in kube.list(TPUJOB, name):
        kube.delete(TPUJOB, job["metadata"]["name"], name)
    kube.delete(NAMESPACE, name)
    wait_for(lambda: not kube.list(POD, name), f"the pods of {name} to go")


@pytest.fixture
def team(kube: Kube) -> Iterator[str]:
    """The namespace that the documentation speaks of."""
    kube.create(NAMESPACE, {"metadata": {"name": TEAM}})
    yield TEAM
    kube.delete(NAMESPACE, TEAM)
    wait_for(lambda: kube.get(NAMESPACE, TEAM) is None, f"{TEAM} to go")

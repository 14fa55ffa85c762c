"""Replicas of a TPUInference without kubelets: pods of the real API server, whose engines run on loopback.

Each pod has an address of its own in 127.0.0.0/8, so that all of them have the same port, as in a pool.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.engines.processes import Process
from tests.kube import POD
from tests.roles import IMAGES, shape_of
from tpu_operator.core import names
from tpu_operator.core.inference.engines import EnginePod, Seat, for_role

if TYPE_CHECKING:
    from tests.kube import Kube, Object
    from tpu_operator.api import TPUInference

COMMAND: Final = [sys.executable, "-m", "engines.engine", "serve"]
"""In place of `vllm serve`."""
_addresses = itertools.count(1)


def next_address() -> str:
    """An address of this machine that nothing has yet."""
    number = next(_addresses)
    return f"127.88.{os.getpid() % 200 + number // 250}.{number % 250 + 1}"


@dataclass
class Replica:
    """Host 0 of a replica of a role: its pod, its engine, and its sidecar if it has one.

    Args:
        kube: the cluster.
        inference: what it is made from.
        role: name of its role.
        revision: of its pod.
        name: of its pod.
        engine_arguments: more of the engine's command line.
    """

    kube: Kube
    inference: TPUInference
    role: str
    revision: str
    name: str
    engine_arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.address = next_address()
        self._namespace = self.inference.metadata.namespace
        built = self._built()
        self.engine = self._engine(built)
        self.sidecar = self._sidecar(built)

    @property
    def processes(self) -> list[Process]:
        """All that runs in its pod."""
        return [self.engine, *([self.sidecar] if self.sidecar else [])]

    def start(self) -> None:
        """Make its pod, which no scheduler takes, and start what is in it."""
        self.kube.create(POD, self._pod(), self._namespace)
        for process in self.processes:
            process.start()

    def become_ready(self) -> None:
        """Be as a kubelet says once the readiness probe succeeds."""
        self.processes[-1].wait_ready()
        self.set_ready(True)

    def set_ready(self, ready: bool) -> None:
        """Be seen as ready, or not."""
        condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-11-30T12:00:00Z"}
        status = {
            "phase": "Running",
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "conditions": [condition],
        }
        self.kube.patch_status(POD, self.name, self._namespace, status)

    def stop(self) -> None:
        """End all of it."""
        self.kube.delete(POD, self.name, self._namespace, gracePeriodSeconds=0)
        self.kill()

    def kill(self) -> None:
        """End what runs, while its pod still looks as ever."""
        for process in self.processes:
            process.kill()

    def _built(self) -> EnginePod:
        role = next(role for role in self.inference.spec.roles if role.name == self.role)
        return for_role(self.inference, role, Seat(shape_of(role), 0, "leader"), IMAGES)

    def _engine(self, built: EnginePod) -> Process:
        """The command and the variables that the adapter gives, expanded as a kubelet does."""
        known = {"POD_IP": self.address, "POD_UID": self.name}
        env = {
            variable["name"]: _expanded(variable.get("value", ""), known) for variable in built.env
        } | known
        command = [_expanded(part, known) for part in built.command]
        start = command.index(COMMAND[0])
        hidden = dict(part.split("=", 1) for part in command[1:start])
        arguments = [*command[start + len(COMMAND) - 1 :], f"--host={self.address}", *self.engine_arguments]
        port = next(port["containerPort"] for port in built.ports if port["name"] == "requests")
        return Process(
            "engine", port, arguments, {**env, **hidden, "ENGINE_NAME": self.name}, host=self.address
        )

    def _sidecar(self, built: EnginePod) -> Process | None:
        for container in built.sidecars:
            arguments = [*container["args"], f"--host={self.address}", f"--engine-host={self.address}"]
            return Process("sidecar", self.inference.spec.engine.port, arguments, host=self.address)
        return None

    def _pod(self) -> Object:
        role = next(role for role in self.inference.spec.roles if role.name == self.role)
        labels = {
            names.LABEL_INFERENCE: self.inference.metadata.name,
            names.LABEL_REVISION: self.revision,
            names.LABEL_LLMD_ROLE: str(role.type),
            names.LABEL_LLMD_SERVING: names.SERVING,
        }
        containers = [{"name": "main", "image": "example/engine:1"}]
        return {
            "metadata": {"name": self.name, "labels": labels},
            "spec": {"schedulerName": "none", "containers": containers, "terminationGracePeriodSeconds": 0},
        }


def _expanded(text: str, variables: dict[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], found[0]), text)

"""Engines and sidecars as processes on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.kube import wait_for
from tests.loopback import fetch, free_port

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[1]
MODEL = "test/model"
DECODER = {"kv_connector": "TPUConnector", "kv_role": "kv_consumer", "kv_load_failure_policy": "recompute"}


@dataclass
class Process:
    """A process of this package's.

    Args:
        module: `engine` or `sidecar`.
        port: where it listens.
        arguments: its command line, without its port.
        environment: variables beside ours.
        host: the address at which it listens.
    """

    module: str
    port: int
    arguments: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"

    def start(self) -> Self:
        """Start it."""
        command = [sys.executable, "-m", f"engines.{self.module}", *self.arguments]
        env = {**os.environ, "PYTHONPATH": str(ROOT), **self.environment}
        self._process = subprocess.Popen(command, env=env)
        return self

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{self.host}:{self.port}"

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a GET; status 0 if nobody answers."""
        return fetch(f"http://{self.address}{path}")

    def wait_ready(self) -> Self:
        """Wait until it has loaded its model, or the engine beside it has."""
        wait_for(lambda: self.get("/v1/models")[0] == 200, f"the {self.module} at {self.address}")
        return self

    def metric(self, name: str) -> float:
        """Value of one of vLLM's metrics."""
        lines = self.get("/metrics")[1].splitlines()
        return float(next(line for line in lines if line.startswith(f"vllm:{name}{{")).split()[-1])

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def wait(self, seconds: float = 30) -> int:
        """Its exit code, once it has ended."""
        return self._process.wait(seconds)

    def kill(self) -> None:
        """End it without notice."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def engine(name: str, *arguments: str, kv: Mapping[str, Any] | None = None, **environment: str) -> Process:
    """An engine of the test model."""
    port = free_port()
    config = ["--kv-transfer-config", json.dumps(kv)] if kv else []
    command = ["serve", MODEL, "--host=127.0.0.1", f"--port={port}", *config, *arguments]
    return Process("engine", port, command, {"ENGINE_NAME": name, "POD_IP": "127.0.0.1", **environment})


def sidecar(of: Process, *arguments: str) -> Process:
    """A sidecar of an engine."""
    port = free_port()
    command = ["--host=127.0.0.1", f"--port={port}", f"--vllm-port={of.port}", "--secure-serving=false"]
    return Process("sidecar", port, [*command, *arguments])


@contextlib.contextmanager
def running(*processes: Process) -> Iterator[None]:
    """Run processes until the end of the context; what still runs then is killed."""
    with contextlib.ExitStack() as stack:
        for process in processes:
            stack.callback(process.start().kill)
        for process in processes:
            process.wait_ready()
        yield

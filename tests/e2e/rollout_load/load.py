"""The client of `client.py` as a process in the network of a dev cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from hack.devcluster import process
from tests.e2e.kube import ROOT, wait_for
from tests.e2e.rollout_load.ledger import Request

if TYPE_CHECKING:
    from pathlib import Path

    from hack.devcluster import Cluster

RATE: Final = 12.0
"""Requests a second: what engines, gateway, cluster and client share two cores for."""
TOKENS: Final = 20
MOST: Final = 4000
SECONDS: Final = 600.0
END_SECONDS: Final = 150.0


class Load:
    """Steady traffic.

    Args:
        cluster: in whose network.
        address: of the gateway.
        directory: where its lines and its log go.
    """

    def __init__(self, cluster: Cluster, address: str, directory: Path) -> None:
        module = ["-m", "tests.e2e.rollout_load.client", address]
        bounds = [f"--rate={RATE}", f"--tokens={TOKENS}", f"--most={MOST}", f"--seconds={SECONDS}"]
        self._command = [*process.enter(cluster.layout), sys.executable, *module, *bounds]
        self._lines, self._log = directory / "requests.jsonl", directory / "client.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin."""
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        with self._lines.open("wb") as lines, self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=lines, stderr=log, cwd=ROOT, env=env)

    def stop(self) -> None:
        """Send no more, and wait for what is under way."""
        assert self._process
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(END_SECONDS) == 0, self._log.read_text()

    def wait(self, requests: int) -> None:
        """Wait until so many have ended.

        Raises:
            AssertionError: the client has stopped before that, or takes too long.
        """

        def enough() -> bool:
            assert self._process
            ended = self._lines.read_bytes().count(b"\n")
            assert self._process.poll() is None, f"the client stopped after {ended}: {self._log.read_text()}"
            return ended >= requests

        wait_for(f"{requests} requests, see {self._log}", enough, SECONDS)

    def requests(self) -> tuple[Request, ...]:
        """All that have ended, in that order."""
        whole = self._lines.read_text().rpartition("\n")[0]
        return tuple(Request.parse(json.loads(line)) for line in whole.splitlines())

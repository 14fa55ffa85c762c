"""Operators without the second that it takes to import one: forked from a process that has done so."""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import TYPE_CHECKING

from kubernetes.aio.config import kube_config

from tests.cluster.conftest import Operator
from tpu_operator import app, settings

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess
    from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
# What children import again, and so find there already.
FORKS.set_forkserver_preload(["pytest", "kubernetes", "kubernetes.dynamic", "tpu_operator.app"])


class Forked(Operator):
    """One replica of the operator."""

    def spawn(self) -> Fork:
        """Start the process itself."""
        process = FORKS.Process(target=_run, args=(self.arguments, self.kubeconfig, self.log), daemon=True)
        process.start()
        return Fork(process)


class Fork:
    """A process, as `subprocess` has them."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, sig: int, /) -> None:
        os.kill(self.pid, sig)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"process {self.pid} does not end"
        return self._process.exitcode


def _run(arguments: list[str], kubeconfig: Path, log: Path) -> None:
    os.environ["KUBECONFIG"] = str(kubeconfig)
    # The library has read the variable when it was imported.
    kube_config.KUBE_CONFIG_DEFAULT_LOCATION = str(kubeconfig)
    with log.open("ab") as output:
        for number in (1, 2):
            os.dup2(output.fileno(), number)
    sys.exit(app.run(settings.parse(arguments)))

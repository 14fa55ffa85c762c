"""The real kubectl with our plugin, as a program that tests run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hack.devcluster import Cluster

BINARIES = Path(sys.executable).parent
"""Where this environment has `kubectl-tpu`, which kubectl finds on PATH."""


class Kubectl:
    """The real kubectl, with our plugin on its PATH.

    Args:
        cluster: the cluster.
        namespace: where to work.
        kubeconfig: whose rights to work with; those of the cluster's owner if it is not given.
    """

    def __init__(self, cluster: Cluster, namespace: str, kubeconfig: Path | None = None) -> None:
        self._command = [str(cluster.kubectl), "tpu"]
        self._where = ["--namespace", namespace]
        path = f"{cluster.kubectl.parent}:{BINARIES}:{os.environ['PATH']}"
        self._env = os.environ | {"KUBECONFIG": str(kubeconfig or cluster.kubeconfig), "PATH": path}

    def __call__(self, *words: str, fails: int = 0) -> str:
        """What a command prints; what it complains of, where it is to fail."""
        done = subprocess.run(self._line(words), env=self._env, capture_output=True, text=True, check=False)
        assert done.returncode == fails, f"{done.returncode}: {done.stdout}{done.stderr}"
        return done.stderr if fails and done.stderr else done.stdout

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A command that goes on."""
        return subprocess.Popen(
            self._line(words), env=self._env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def complete(self, *words: str) -> list[str]:
        """What the shell would offer for the last word."""
        command = [self._command[0], "__complete", "tpu", *words]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=True)
        return [line.partition("\t")[0] for line in done.stdout.splitlines() if not line.startswith(":")]

    def _line(self, words: tuple[str, ...]) -> list[str]:
        ours = words.index("--") if "--" in words else len(words)
        return [*self._command, *words[:ours], *self._where, *words[ours:]]

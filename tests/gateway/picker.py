"""The real endpoint picker of the Gateway API inference extension, and the kinds that it and routes need."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING, Final

from hack.devcluster import binaries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hack.devcluster import Cluster

INFERENCE_EXTENSION: Final = "sigs.k8s.io/gateway-api-inference-extension"
GATEWAY_API: Final = "sigs.k8s.io/gateway-api"
CONFIG: Final = """\
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: max-score-picker
- type: single-profile-handler
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 1}
  - {pluginRef: kv-cache-utilization-scorer, weight: 1}
  - pluginRef: max-score-picker
"""
"""What that picker can do of what ours asks of llm-d's."""
NOBODY: Final = "failed to find endpoint candidates"
"""What it says where it knows none of the pods that it may pick from."""
POOLS: Final = ("inference.networking.k8s.io/v1", "InferencePool")
ROUTES: Final = ("gateway.networking.k8s.io/v1", "HTTPRoute")


def crds() -> list[Path]:
    """Where the kinds are: pools with what the picker reads, and routes."""
    extension = binaries.source("epp", INFERENCE_EXTENSION) / "config/crd/bases"
    gateway = binaries.source("gateway-api", GATEWAY_API) / "config/crd/standard"
    return [extension, gateway / "gateway.networking.k8s.io_httproutes.yaml"]


def install(cluster: Cluster) -> None:
    """Have the cluster serve these kinds."""
    files = [argument for file in crds() for argument in ("-f", file)]
    kubectl(cluster, "apply", "--server-side", *files)
    # A CRD that was made a moment ago has no conditions, which kubectl does not wait for by itself.
    for state in ("jsonpath={.status.conditions}", "condition=Established"):
        kubectl(cluster, "wait", f"--for={state}", "--timeout=60s", *files)


def uninstall(cluster: Cluster) -> None:
    """Have it serve them no more."""
    files = [argument for file in crds() for argument in ("-f", file)]
    kubectl(cluster, "delete", "--ignore-not-found", "--timeout=60s", *files)


def kubectl(cluster: Cluster, *arguments: str | Path) -> str:
    """What kubectl prints."""
    command = [cluster.kubectl, "--kubeconfig", cluster.kubeconfig, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


class Picker:
    """A picker as a process.

    Args:
        cluster: whose pods it picks from.
        pool: name and namespace of its InferencePool.
        ports: of ext_proc, health and metrics.
        directory: where its configuration and log go.
        prefix: command in front of it, such as one that enters a network namespace.
    """

    def __init__(
        self,
        cluster: Cluster,
        pool: tuple[str, str],
        ports: tuple[int, int, int],
        directory: Path,
        prefix: Sequence[str] = (),
    ) -> None:
        self._cluster, self._pool, self._ports = cluster, pool, ports
        self._directory, self._prefix = directory, prefix
        self.log = directory / "picker.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        name, namespace = self._pool
        grpc, health, metrics = self._ports
        config = self._directory / "picker.yaml"
        config.write_text(CONFIG)
        command = [
            str(binaries.ensure(["epp"])["epp"]),
            f"--pool-name={name}",
            f"--pool-namespace={namespace}",
            f"--config-file={config}",
            f"--grpc-port={grpc}",
            f"--grpc-health-port={health}",
            f"--metrics-port={metrics}",
            "--metrics-endpoint-auth=false",
            "--secure-serving=false",
            "--tracing=false",
        ]
        env = os.environ | {"KUBECONFIG": str(self._cluster.kubeconfig), "NAMESPACE": namespace}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([*self._prefix, *command], env=env, stdout=log, stderr=log)

    def check(self) -> None:
        """Fail if it has ended."""
        assert self._process
        assert self._process.poll() is None, f"the picker has ended:\n{self.log.read_text()[-3000:]}"

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout=60)

"""A gateway in front of replicas: Envoy, the endpoint picker, and the routing objects that we make."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import TYPE_CHECKING, Any, Final

from tests.cluster.routing.replicas import COMMAND, Replica
from tests.engines.completions import Outcome, complete
from tests.engines.processes import MODEL
from tests.gateway.envoy import Envoy, Ports
from tests.gateway.picker import Picker
from tests.gateway.standin import StandIn
from tests.kube import POD, wait_for
from tests.loopback import free_port
from tests.roles import IMAGES, UID, inference, role
from tpu_operator.core.inference.picking import selector
from tpu_operator.core.inference.routing import desired

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hack.devcluster import Cluster
    from tests.kube import Kube, Object

PORT: Final = 18000
REQUIRED: Final = ("prefill", "decode")


class Gateway:
    """A gateway with its picker, and the replicas behind it.

    Args:
        cluster: the cluster.
        kube: a client of it.
        namespace: where pods and pool are.
        directory: where logs go.
    """

    def __init__(self, cluster: Cluster, kube: Kube, namespace: str, directory: Path) -> None:
        self.kube, self.namespace = kube, namespace
        made = inference(
            role("prefill"),
            role("decode"),
            model={"name": MODEL},
            engine={"port": PORT, "command": COMMAND},
            routing={"inferencePool": {}, "httpRoute": {"parentRefs": [{"name": "gateway"}]}, "sidecar": {}},
        )
        metadata = made.metadata.model_copy(update={"namespace": namespace, "uid": UID})
        self.inference = made.model_copy(update={"metadata": metadata})
        self._cluster = cluster
        grpc, health, metrics = (free_port() for _ in range(3))
        pool = (self.inference.metadata.name, namespace)
        self.picker = Picker(cluster, pool, (grpc, health, metrics), directory)
        self._stand_in = StandIn(self._pods, REQUIRED, PORT)
        self._directory, self._grpc = directory, grpc
        self._envoy: Envoy | None = None
        self._replicas: list[Replica] = []

    def start(self) -> None:
        """Make the routing objects, and start all that stands in front of replicas."""
        for manifest in desired(self.inference, {"uid": UID}, IMAGES):
            # The owner is none of the cluster's, whose garbage collector would take its children away.
            manifest["metadata"].pop("ownerReferences")
            self._apply(manifest)
        self.picker.start()
        self._stand_in.start()
        ports = Ports(
            listen=f"127.0.0.1:{free_port()}",
            admin=f"127.0.0.1:{free_port()}",
            picker=f"127.0.0.1:{self._grpc}",
            stand_in=f"127.0.0.1:{self._stand_in.port}",
        )
        self._envoy = Envoy(ports, self._directory)
        self._envoy.start()

    def stop(self) -> None:
        """End all of it."""
        for replica in self._replicas:
            replica.stop()
        if self._envoy:
            self._envoy.stop()
        self._stand_in.stop()
        self.picker.stop()

    def replica(self, kind: str, revision: str, index: int = 0, *arguments: str) -> Replica:
        """Start a replica of a role, not ready yet."""
        name = f"qwen-{kind}-{revision}-{index}"
        made = Replica(self.kube, self.inference, kind, revision, name, arguments)
        self._replicas.append(made)
        made.start()
        return made

    def ready(self, *replicas: Replica) -> None:
        """Wait until replicas are ready."""
        for replica in replicas:
            replica.become_ready()

    def pair(self, revision: str) -> tuple[Replica, Replica]:
        """A ready prefiller and a ready decoder."""
        made = self.replica("prefill", revision), self.replica("decode", revision)
        self.ready(*made)
        return made

    async def ask(self, headers: Mapping[str, str] | None = None, **body: Any) -> Outcome:
        """Ask for a streamed completion through the gateway."""
        assert self._envoy
        return await complete(self._envoy.address, headers, **body)

    def wait_until_served(self) -> Outcome:
        """The first completion that comes through, once the picker knows of the pods."""

        def probe() -> Outcome | None:
            self.picker.check()
            outcome = asyncio.run(self.ask())
            return outcome if outcome.status == 200 else None

        return wait_for(probe, f"a completion through Envoy, see {self._directory}", 60)

    def _pods(self) -> list[Object]:
        return self.kube.list(POD, self.namespace, selector(self.inference.metadata.name))

    def _apply(self, manifest: Object) -> None:
        command = ["apply", "--server-side", "--field-manager=tpu-operator", "-f", "-"]
        subprocess.run(
            [self._cluster.kubectl, "--kubeconfig", self._cluster.kubeconfig, *command],
            input=json.dumps(manifest),
            check=True,
            capture_output=True,
            text=True,
        )

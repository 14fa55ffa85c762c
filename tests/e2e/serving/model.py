"""A TPUInference of the engines for tests, and a gateway in front of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hack.devcluster import process
from tests.e2e.kube import wait_for
from tests.engines import wire
from tests.engines.completions import Outcome, complete
from tests.engines.processes import MODEL
from tests.gateway import picker
from tests.gateway.envoy import Envoy, Ports
from tests.gateway.standin import StandIn
from tests.kube import POD
from tests.kube import Kube as Client
from tpu_operator.core.inference.picking import selector

if TYPE_CHECKING:
    from collections.abc import Callable

    from hack.devcluster import Cluster
    from tests.e2e.kube import Kube, Object

ENGINES: Final = Path(wire.__file__).parent
MOUNT: Final = "/opt/test"
PORT: Final = 8000
LISTEN: Final = 8081
ADMIN: Final = 9901
TWO_HOSTS: Final = {"accelerator": "v5e", "topology": "2x4", "chipsPerHost": 4}


MODULES: Final = {"engine.py", "peers.py", "sidecar.py", "wire.py"}


def program() -> Object:
    """The engines as a ConfigMap."""
    files = {path.name: path.read_text() for path in ENGINES.glob("*.py") if path.name in MODULES}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "engines"}, "data": files}


def model(name: str, prefill: int, decode: int, **spec: Any) -> Object:
    """A model that is prefilled and decoded apart, on slices of two hosts."""
    environment = [
        {"name": "PYTHONPATH", "value": MOUNT},
        {"name": "ENGINE_TOKEN_SECONDS", "value": "0.1"},
    ]
    return {
        "apiVersion": "tpu-operator.dev/v1alpha1",
        "kind": "TPUInference",
        "metadata": {"name": name},
        "spec": {
            "model": {"name": MODEL},
            "engine": {
                "type": "vllm",
                "command": ["python3", "-m", "engines.engine", "serve"],
                "port": PORT,
                "env": environment,
            },
            "roles": [_role("prefill", prefill), _role("decode", decode)],
            "drain": {"routeAwaySeconds": 5, "engineSeconds": 40},
            "routing": {
                "inferencePool": {},
                "endpointPicker": {"config": picker.CONFIG},
                "sidecar": {"image": "localhost/tpu-runtime:dev"},
            },
        }
        | spec,
    }


def _role(name: str, replicas: int) -> Object:
    mounts = [{"name": "engines", "mountPath": f"{MOUNT}/engines"}]
    spec: Object = {
        "volumes": [{"name": "engines", "configMap": {"name": "engines"}}],
        "containers": [{"name": "main", "volumeMounts": mounts}],
    }
    if name == "decode":
        spec["initContainers"] = [
            {
                "name": "routing-proxy",
                "command": ["python3", "-m", "engines.sidecar"],
                "env": [{"name": "PYTHONPATH", "value": MOUNT}],
                "volumeMounts": mounts,
            }
        ]
    return {
        "name": name,
        "type": name,
        "replicas": replicas,
        "tpu": TWO_HOSTS,
        "template": {"spec": spec},
    }


class Gateway:
    """Envoy in the cluster's network, before the picker that the operator has made.

    Args:
        cluster: the cluster.
        kube: the model's namespace.
        name: of the model.
        directory: where its log goes.
    """

    def __init__(self, cluster: Cluster, kube: Kube, name: str, directory: Path) -> None:
        self._client, self._namespace, self._name = Client(cluster.kubeconfig), kube.namespace, name
        self._stand_in = StandIn(self._pods, ("prefill", "decode"), PORT, cluster.host_ip)
        self._stand_in.start()
        service = kube.get("service", f"{name}-epp")
        ports = Ports(
            listen=f"{cluster.record.server_ip}:{LISTEN}",
            admin=f"127.0.0.1:{ADMIN}",
            picker=f"{service['spec']['clusterIP']}:9002",
            stand_in=f"{cluster.host_ip}:{self._stand_in.port}",
            secure=True,
        )
        self._envoy = Envoy(ports, directory, process.enter(cluster.layout))
        self._envoy.start()

    def stop(self) -> None:
        """End it."""
        self._envoy.stop()
        self._stand_in.stop()

    async def ask(self, began: Callable[[], None] | None = None, **body: Any) -> Outcome:
        """Ask for a streamed completion."""
        return await complete(self._envoy.address, began=began, **body)

    async def wait_served(self) -> None:
        """Wait until the picker knows its pods."""

        async def served() -> bool:
            return (await self.ask()).status == 200

        await asyncio.to_thread(wait_for, "a completion comes back", lambda: asyncio.run(served()))

    def _pods(self) -> list[Object]:
        return self._client.list(POD, self._namespace, selector(self._name))


def wait_serving(kube: Kube, name: str, seconds: float = 300) -> Object:
    """Status of a TPUInference once all of its replicas serve."""

    def probe() -> Object | None:
        status: Object = kube.get("tpuinference", name).get("status", {})
        return status if status.get("phase") == "Serving" and _complete(status) else None

    found: Object = wait_for(f"{name} serves", probe, seconds)
    return found


def _complete(status: Object) -> bool:
    return all(role["ready"] == role["desired"] for role in status["roles"])

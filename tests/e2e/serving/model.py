"""A TPUInference of the engines for tests, and a gateway in front of it."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from hack.devcluster import Cluster, binaries, images, process
from tests.e2e.conftest import IMAGES, install
from tests.e2e.kube import OPERATOR, Kube, wait_for
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
    from collections.abc import Callable, Iterator

    from tests.e2e.kube import Object

PICKER_IMAGE: Final = "localhost/endpoint-picker:dev"
TOPOLOGY: Final = "cloud.google.com/gke-tpu-topology"
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


def model(
    name: str,
    prefill: int,
    decode: int,
    *,
    tpu: Object = TWO_HOSTS,
    token_seconds: float = 0.1,
    **spec: Any,
) -> Object:
    """A model that is prefilled and decoded apart.

    Args:
        name: its name.
        prefill: replicas of that role.
        decode: the same.
        tpu: the slice of each replica.
        token_seconds: how long each token takes.
        spec: more of the spec, in place of what is here.
    """
    environment = [
        {"name": "PYTHONPATH", "value": MOUNT},
        {"name": "ENGINE_TOKEN_SECONDS", "value": str(token_seconds)},
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
            "roles": [_role("prefill", prefill, tpu), _role("decode", decode, tpu)],
            "drain": {"routeAwaySeconds": 5, "engineSeconds": 40},
            "routing": {
                "inferencePool": {},
                "endpointPicker": {"config": picker.CONFIG},
                "sidecar": {"image": "localhost/tpu-runtime:dev"},
            },
        }
        | spec,
    }


def _role(name: str, replicas: int, tpu: Object) -> Object:
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
        "tpu": tpu,
        "template": {"spec": spec},
    }


@contextmanager
def up(name: str, nodes: int, directory: Path) -> Iterator[Cluster]:
    """A cluster with the images and kinds that serving takes.

    Args:
        name: of the cluster.
        nodes: how many there are.
        directory: for the picker's image.
    """
    if missing := [each for each in ("operator", "runtime") if not (IMAGES / f"{each}.tar").exists()]:
        pytest.fail(f"images {', '.join(missing)} are not there, run `make images` first")
    made = Cluster.up(name=name, nodes=nodes)
    try:
        archive = directory / "picker.tar"
        images.write_program(archive, PICKER_IMAGE, binaries.ensure(["epp"])["epp"])
        for each in (IMAGES / "operator.tar", IMAGES / "runtime.tar", archive):
            made.load(each)
        picker.install(made)
        yield made
    finally:
        made.down()


def install_operator(cluster: Cluster, topology: str, hosts: int, *arguments: str) -> Kube:
    """The operator, beside nodes that are slices.

    Args:
        cluster: whose nodes are told to be that.
        topology: of a slice.
        hosts: of a slice, and so nodes of a node pool.
        arguments: more of helm's.

    Returns:
        The cluster, in the operator's namespace.
    """
    kube = Kube(cluster.kubeconfig, cluster.kubectl, cluster.helm)
    nodes = sorted(node["metadata"]["name"] for node in kube.find("nodes"))
    for index, node in enumerate(nodes):
        labels = [f"{TOPOLOGY}={topology}", f"cloud.google.com/gke-nodepool=slice-{index // hosts}"]
        kube.kubectl("label", "node", node, "--overwrite", *labels)
    # Pickers run on ordinary nodes, of which there are none here.
    kube.kubectl("taint", "node", nodes[-1], "google.com/tpu-")
    install(kube, "--set", f"inference.endpointPickerImage={PICKER_IMAGE}", *arguments)
    return replace(kube, namespace=OPERATOR)


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

    @property
    def address(self) -> str:
        """Where it takes requests, from the cluster's network and from the host."""
        return self._envoy.address

    async def ask(self, began: Callable[[], None] | None = None, **body: Any) -> Outcome:
        """Ask for a streamed completion."""
        return await complete(self.address, began=began, **body)

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

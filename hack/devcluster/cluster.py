"""A cluster as a Python object: what test suites use."""

import contextlib
import functools
import signal
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hack.devcluster import binaries, bringup, controlplane, images, process, teardown, tpu
from hack.devcluster.state import DEFAULT_NAME, DevClusterError, Layout, Record, Shape


@dataclass(frozen=True)
class Node:
    """A node in brief."""

    name: str
    pool: str
    chips: int
    ready: bool

    @classmethod
    def parse(cls, item: dict[str, Any]) -> "Node":
        """Read a node object."""
        conditions = {each["type"]: each["status"] for each in item["status"].get("conditions", ())}
        return cls(
            name=item["metadata"]["name"],
            pool=item["metadata"]["labels"].get(tpu.POOL, ""),
            chips=int(item["status"].get("allocatable", {}).get(tpu.RESOURCE, 0)),
            ready=conditions.get("Ready") == "True",
        )


@dataclass(frozen=True)
class Cluster:
    """A running cluster. Made by `up` or `attach`."""

    layout: Layout
    record: Record

    @classmethod
    def up(
        cls, name: str = DEFAULT_NAME, *, nodes: int = 4, fake_nodes: int = 0, api_qps: int | None = None
    ) -> "Cluster":
        """Start a cluster and wait until it is ready, or return the one that runs already.

        Args:
            name: name of the cluster, unique in this clone.
            nodes: number of real nodes; with 0 there is a control plane alone.
            fake_nodes: number of nodes that kwok plays.
            api_qps: requests a second that controller manager and scheduler may send; None leaves their
                defaults.

        Raises:
            DevClusterError: it cannot be started, or runs with other numbers of nodes.
        """
        layout = Layout(name)
        return cls(layout, bringup.up(layout, Shape(nodes, fake_nodes, api_qps)))

    @classmethod
    def attach(cls, name: str = DEFAULT_NAME) -> "Cluster":
        """Return a cluster that `up` has started, in this process or another.

        Raises:
            DevClusterError: there is none of that name.
        """
        layout = Layout(name)
        if not layout.record.exists():
            raise DevClusterError(
                f"there is no cluster {name!r}: start it with `make devcluster-up NAME={name}`"
            )
        return cls(layout, Record.load(layout.record))

    @property
    def name(self) -> str:
        """Name of the cluster."""
        return self.layout.name

    @property
    def dir(self) -> Path:
        """Directory with all files of the cluster."""
        return self.layout.dir

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of the administrator."""
        return self.layout.kubeconfig

    @property
    def audit_log(self) -> Path:
        """Audit log: requests of all but the cluster's own components, one JSON object a line."""
        return self.layout.audit_log

    @property
    def netns(self) -> str:
        """Name of the cluster's network namespace, as `ip netns` knows it."""
        return self.layout.netns

    @property
    def server(self) -> str:
        """URL of the API server: the same from the host, from nodes and from pods."""
        return self.record.server

    @property
    def host_ip(self) -> str:
        """Address at which the cluster, pods included, reaches the host."""
        return self.record.host_ip

    @functools.cached_property
    def kubectl(self) -> Path:
        """The kubectl binary."""
        return binaries.ensure(["kubectl"])["kubectl"]

    @functools.cached_property
    def helm(self) -> Path:
        """The helm binary, built on first use."""
        return binaries.ensure(["helm"])["helm"]

    @functools.cached_property
    def components(self) -> dict[str, process.Component]:
        """All components by name, in the order in which they start."""
        return {each.name: each for each in bringup.components(self.layout, self.record)}

    def nodes(self) -> list["Node"]:
        """Return all nodes, real and fake, as the API server knows them.

        Raises:
            DevClusterError: the API server does not answer.
        """
        with contextlib.closing(controlplane.connect(self.layout, self.record)) as api:
            return [Node.parse(item) for item in api.get("/api/v1/nodes")["items"]]

    def load(self, archive: Path) -> None:
        """Import an image archive (of docker or OCI) into every real node.

        The image is then used by pods with `imagePullPolicy: IfNotPresent`.

        Raises:
            DevClusterError: there are no real nodes, or the archive is not one.
        """
        nodes = range(self.record.shape.nodes)
        if not nodes:
            raise DevClusterError(f"cluster {self.name!r} has no real nodes to load {archive} into")
        with ThreadPoolExecutor(max_workers=2) as pool:
            for each in [pool.submit(images.load, self.layout, index, archive) for index in nodes]:
                each.result()

    def down(self) -> None:
        """End the cluster and remove all of it."""
        teardown.down(self.layout)

    def find(self, component: str) -> int | None:
        """Return the pid of a component, None if it does not run."""
        return process.find(self.layout, self._known(component))

    def start_component(self, component: str) -> None:
        """Start a component that was stopped, and wait until it works, where it can tell.

        Raises:
            DevClusterError: it runs already, or does not come up.
        """
        if self.find(component) is not None:
            raise DevClusterError(f"{component} of cluster {self.name!r} is running already")
        bringup.start(self.layout, self.components[component])

    def stop_component(self, component: str) -> None:
        """Stop a component with SIGTERM, after ten seconds with SIGKILL, and wait until it has ended."""
        process.stop(self.layout, self._known(component))

    def signal(self, component: str, signum: signal.Signals) -> None:
        """Send a signal to a component."""
        process.send(self.layout, self._known(component), signum)

    def run_in_netns(self, argv: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[Any]:
        """Run a command in the cluster's network namespace: like subprocess.run, with the same options."""
        return subprocess.run([*process.enter(self.layout), *argv], **options)  # noqa: PLW1510 (caller's choice)

    def run_on_node(
        self, node: str, argv: Sequence[str | Path], **options: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Run a command on a real node, in its mounts and the cluster's network: as subprocess.run does."""
        return subprocess.run([*process.enter(self.layout, self._known(node)), *argv], **options)  # noqa: PLW1510 (caller's choice)

    def _known(self, component: str) -> str:
        if component not in self.components:
            raise DevClusterError(
                f"cluster {self.name!r} has no {component}; it has {', '.join(self.components)}"
            )
        return component

"""From nothing to a ready cluster."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hack.devcluster import (
    binaries,
    cgroups,
    controlplane,
    fake,
    images,
    network,
    nodes,
    packages,
    process,
    teardown,
    tpu,
)
from hack.devcluster.api import Api, ApiUnavailableError, healthy
from hack.devcluster.lock import exclusive
from hack.devcluster.process import Component
from hack.devcluster.state import DevClusterError, Layout, Record

_BASE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
_REAL = ("kubelet", "kube-proxy", "containerd", "containerd-shim-runc-v2", "ctr", "coredns")
_SECONDS = 90
# The controller manager takes the not-ready taint off new nodes at its own client rate.
_FAKE_NODES_PER_SECOND = 10


@dataclass(frozen=True)
class Wish:
    """What a cluster is asked to be."""

    nodes: int
    fake_nodes: int
    api_qps: int | None

    def __post_init__(self) -> None:
        if self.nodes < 0 or self.fake_nodes < 0:
            raise DevClusterError("the number of nodes cannot be negative")


def up(layout: Layout, wish: Wish) -> Record:
    """Start a cluster, or find it running already.

    Raises:
        DevClusterError: it cannot be started. What was started has ended by then; the logs are kept.
    """
    packages.require(real_nodes=wish.nodes > 0)
    bins = _binaries(wish)
    with exclusive(layout):
        found = _running(layout, wish)
        if found:
            return found
        try:
            record = _prepare(layout, wish)
            _start_all(layout, record, bins)
        except BaseException:
            teardown.clear(layout, keep_logs=True)
            raise
        return record


def components(layout: Layout, record: Record) -> list[Component]:
    """Describe all components of a cluster, in the order to start them."""
    bins = _binaries(record)
    booted = [*nodes.holders(layout, record, bins), *nodes.runtimes(record)] if record.nodes else []
    return [*controlplane.components(layout, record, bins), *booted, *_agents(layout, record, bins)]


def start(layout: Layout, component: Component) -> None:
    """Start one component and wait until it works, where it can tell."""
    process.start(layout, component)
    _wait_healthy(layout, [component])


def _binaries(wanted: Wish | Record) -> dict[str, Path]:
    kwok = ("kwok",) if wanted.fake_nodes else ()
    return binaries.ensure((*_BASE, *(_REAL if wanted.nodes else ()), *kwok))


def _running(layout: Layout, wish: Wish) -> Record | None:
    """Return the record if the cluster runs, after clearing away what is left of one that does not.

    Raises:
        DevClusterError: it is not the one that is wished for, or not whole.
    """
    if not cgroups.processes(layout.cgroup):
        teardown.clear(layout)
        return None
    remedy = f"take it down first: make devcluster-down NAME={layout.name}"
    if not layout.record.exists():
        raise DevClusterError(f"cluster {layout.name!r} was left half started; {remedy}")
    record = Record.load(layout.record)
    is_now = Wish(record.nodes, record.fake_nodes, record.api_qps)
    if is_now != wish:
        raise DevClusterError(f"cluster {layout.name!r} runs already as {is_now}, not as {wish}; {remedy}")
    for component in components(layout, record):
        if process.find(layout, component.name) is None:
            raise DevClusterError(f"{process.failure(layout, component.name, 'is not running')}\n{remedy}")
    return record


def _prepare(layout: Layout, wish: Wish) -> Record:
    """Make the directories, the cgroup and the network."""
    for directory in (layout.dir, layout.logs, layout.pids):
        directory.mkdir(parents=True, exist_ok=True)
    cgroups.create(layout.cgroup)
    host_ip, server_ip = network.create(layout.netns)
    record = Record(wish.nodes, wish.fake_nodes, wish.api_qps, host_ip, server_ip)
    record.save(layout.record)
    return record


def _start_all(layout: Layout, record: Record, bins: dict[str, Path]) -> None:
    controlplane.write_files(layout)
    fake.write_files(layout)
    store, server, *controllers = controlplane.components(layout, record, bins)
    _say(f"starting the control plane at {record.server}")
    process.start(layout, store)
    process.start(layout, server)
    if record.nodes:
        _say(f"starting {record.nodes} nodes")
        _boot_nodes(layout, record, bins)
    _await_server(layout, record, [store, server])
    rest = [*controllers, *_agents(layout, record, bins)]
    for component in rest:
        process.start(layout, component)
    _await_nodes(layout, record, [store, server, *rest])
    _wait_healthy(layout, rest)


def _agents(layout: Layout, record: Record, bins: dict[str, Path]) -> list[Component]:
    """Describe what needs the API server to start."""
    real = nodes.agents(layout, record, bins) if record.nodes else []
    return [*real, *([fake.component(layout, record, bins)] if record.fake_nodes else [])]


def _boot_nodes(layout: Layout, record: Record, bins: dict[str, Path]) -> None:
    """Bring the nodes to the point where only a kubelet is missing. Needs no API server."""
    network.add_bridge(layout.netns)
    nodes.write_files(layout, record)
    pause = layout.config / "pause.tar"
    images.write_pause(pause)
    for holder in nodes.holders(layout, record, bins):
        process.start(layout, holder)
    for index, runtime in enumerate(nodes.runtimes(record)):
        holder = nodes.name(index)
        process.wait(layout, [holder], lambda: nodes.is_held(layout, index), blame=holder)  # noqa: B023 (called here)
        process.start(layout, runtime)
    for index, runtime in enumerate(nodes.runtimes(record)):
        process.wait(layout, [runtime.name], lambda: nodes.serves(layout, index), blame=runtime.name)  # noqa: B023
        images.load(layout, index, pause)


def _await_server(layout: Layout, record: Record, started: list[Component]) -> None:
    """Wait for the API server, whose certificate is part of every kubeconfig."""
    server = started[-1].name
    certificate = controlplane.certificate(layout)
    names = [component.name for component in started]
    process.wait(layout, names, certificate.exists, blame=server, seconds=_SECONDS)
    _wait_healthy(layout, started)
    controlplane.write_kubeconfigs(layout, record.server)
    nodes.give_credentials(layout, record)


def _wait_healthy(layout: Layout, started: Iterable[Component]) -> None:
    watched = list(started)
    names = [component.name for component in watched]
    for component in watched:
        url = component.health
        if url:
            process.wait(layout, names, lambda: healthy(url), blame=component.name, seconds=_SECONDS)  # noqa: B023


def _await_nodes(layout: Layout, record: Record, started: list[Component]) -> None:
    """Create the fake nodes, give the real ones their chips, and wait until pods can be scheduled on all."""
    api = controlplane.connect(layout, record)
    names = [component.name for component in started]
    fake.create_nodes(api, record.fake_nodes)
    seconds = _SECONDS + record.fake_nodes / _FAKE_NODES_PER_SECOND
    blame = "kubelet-0" if record.nodes else "kube-controller-manager"
    process.wait(layout, names, lambda: _complete(api, record), blame=blame, seconds=seconds)
    api.close()


def _complete(api: Api, record: Record) -> bool:
    try:
        found = api.get("/api/v1/nodes?resourceVersion=0")["items"]
        for node in found:
            if tpu.RESOURCE not in node["status"].get("capacity", {}):
                api.merge(f"/api/v1/nodes/{node['metadata']['name']}/status", tpu.STATUS)
        # The last thing that a namespace gets before pods can be created in it.
        accounts = api.get("/api/v1/namespaces/default/serviceaccounts")["items"]
    except ApiUnavailableError:
        return False
    total = record.nodes + record.fake_nodes
    return bool(accounts) and len(found) == total and all(map(_schedulable, found))


def _schedulable(node: dict[str, Any]) -> bool:
    status = node["status"]
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))
    return ready and tpu.RESOURCE in status.get("allocatable", {}) and node["spec"].get("taints") == [tpu.TAINT]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

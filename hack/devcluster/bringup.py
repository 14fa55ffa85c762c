"""From nothing to a ready cluster."""

import contextlib
import sys
from collections.abc import Iterable
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
    reminder,
    teardown,
    tpu,
)
from hack.devcluster.api import Api, ApiUnavailableError, healthy
from hack.devcluster.lock import exclusive
from hack.devcluster.process import Component
from hack.devcluster.state import DevClusterError, Layout, Record, Shape

_BASE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
_REAL = ("kubelet", "kube-proxy", "containerd", "containerd-shim-runc-v2", "ctr", "coredns")
_SECONDS = 90
_SECONDS_PER_FAKE_NODE = 0.1


def up(layout: Layout, shape: Shape) -> Record:
    """Start a cluster, or find it running already.

    Raises:
        DevClusterError: it cannot be started. What was started has ended by then; the logs are kept.
    """
    packages.require(real_nodes=shape.nodes > 0)
    bins = _binaries(shape)
    with exclusive(layout):
        found = _running(layout, shape)
        if found:
            return found
        try:
            record = _prepare(layout, shape)
            _start_all(layout, record, bins)
        except BaseException:
            teardown.clear(layout, keep_logs=True)
            raise
        return record


def components(layout: Layout, record: Record) -> list[Component]:
    """Describe all components of a cluster, in the order to start them."""
    bins = _binaries(record.shape)
    booted = [*nodes.holders(layout, record, bins), *nodes.runtimes(record)] if record.shape.nodes else []
    return [*controlplane.components(layout, record, bins), *booted, *_agents(layout, record, bins)]


def start(layout: Layout, component: Component) -> None:
    """Start one component and wait until it works, where it can tell."""
    process.start(layout, component)
    _wait_healthy(layout, [component])


def _binaries(shape: Shape) -> dict[str, Path]:
    kwok = ("kwok",) if shape.fake_nodes else ()
    return binaries.ensure((*_BASE, *(_REAL if shape.nodes else ()), *kwok))


def _running(layout: Layout, shape: Shape) -> Record | None:
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
    if record.shape != shape:
        raise DevClusterError(
            f"cluster {layout.name!r} runs already, with {record.shape} instead of {shape}; {remedy}"
        )
    for component in components(layout, record):
        if process.find(layout, component.name) is None:
            raise DevClusterError(f"{process.failure(layout, component.name, 'is not running')}\n{remedy}")
    return record


def _prepare(layout: Layout, shape: Shape) -> Record:
    """Make the directories, the cgroup and the network."""
    for directory in (layout.dir, layout.logs, layout.pids):
        directory.mkdir(parents=True, exist_ok=True)
    cgroups.create(layout.cgroup)
    host_ip, server_ip = network.create(layout.netns)
    if shape.fake_nodes:
        network.shut_off(layout.netns, fake.NOWHERE)
    record = Record(shape, host_ip, server_ip)
    record.save(layout.record)
    return record


def _start_all(layout: Layout, record: Record, bins: dict[str, Path]) -> None:
    controlplane.write_files(layout)
    fake.write_files(layout)
    store, server, *controllers = controlplane.components(layout, record, bins)
    _say(f"starting the control plane at {record.server}")
    process.start(layout, store)
    process.start(layout, server)
    if record.shape.nodes:
        _say(f"starting {record.shape.nodes} nodes")
        _boot_nodes(layout, record, bins)
    _await_server(layout, record, [store, server])
    rest = [*controllers, *_agents(layout, record, bins)]
    for component in rest:
        process.start(layout, component)
    _await_nodes(layout, record, [store, server, *rest])
    _wait_healthy(layout, rest)


def _agents(layout: Layout, record: Record, bins: dict[str, Path]) -> list[Component]:
    """Describe what needs the API server to start."""
    real = nodes.agents(layout, record, bins) if record.shape.nodes else []
    if not record.shape.fake_nodes:
        return real
    return [*real, fake.component(layout, record, bins), reminder.component(layout)]


def _boot_nodes(layout: Layout, record: Record, bins: dict[str, Path]) -> None:
    """Bring the nodes to the point where only a kubelet is missing. Needs no API server."""
    network.add_bridge(layout.netns)
    nodes.write_files(layout, record)
    pause = layout.config / "pause.tar"
    images.write_busybox(pause, nodes.PAUSE)
    for holder in nodes.holders(layout, record, bins):
        process.start(layout, holder)
    runtimes = nodes.runtimes(record)
    for index, runtime in enumerate(runtimes):
        process.await_path(layout, nodes.name(index), nodes.complete(layout, index))
        process.start(layout, runtime)
    for index, runtime in enumerate(runtimes):
        process.await_path(layout, runtime.name, nodes.socket(layout, index))
        images.load(layout, index, pause)


def _await_server(layout: Layout, record: Record, started: list[Component]) -> None:
    """Wait for the API server, whose certificate is part of every kubeconfig."""
    _wait_healthy(layout, started)
    controlplane.write_kubeconfigs(layout, record.server)
    nodes.give_credentials(layout, record)


def _wait_healthy(layout: Layout, started: Iterable[Component]) -> None:
    watched = list(started)

    def late() -> str | None:
        return next((each.name for each in watched if each.health and not healthy(each.health)), None)

    process.wait(layout, [each.name for each in watched], late, seconds=_SECONDS)


def _await_nodes(layout: Layout, record: Record, started: list[Component]) -> None:
    """Create the fake nodes, give the real ones their chips, and wait until pods can be scheduled on all."""
    names = [each.name for each in started]
    seconds = _SECONDS + record.shape.fake_nodes * _SECONDS_PER_FAKE_NODE
    with contextlib.closing(controlplane.connect(layout, record)) as api:
        fake.create_nodes(api, record.shape.fake_nodes)
        process.wait(layout, names, lambda: _late(api, record.shape), seconds=seconds)


def _late(api: Api, shape: Shape) -> str | None:
    """Give chips to new nodes and return the component that keeps a node or the first namespace waiting."""
    try:
        found = api.get("/api/v1/nodes?resourceVersion=0")["items"]
        for node in found:
            if tpu.RESOURCE not in node["status"].get("capacity", {}):
                api.merge(f"/api/v1/nodes/{node['metadata']['name']}/status", tpu.STATUS)
        # The last thing that a namespace gets before pods can be created in it.
        accounts = api.get("/api/v1/namespaces/default/serviceaccounts")["items"]
    except ApiUnavailableError:
        return "kube-apiserver"
    ready = {node["metadata"]["name"] for node in found if _schedulable(node)}
    behind = [nodes.agent(index) for index in range(shape.nodes) if nodes.name(index) not in ready]
    behind += ["kwok" for index in range(shape.fake_nodes) if fake.name(index) not in ready]
    return next(iter(behind), None if accounts else "kube-controller-manager")


def _schedulable(node: dict[str, Any]) -> bool:
    status = node["status"]
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))
    has_chips = tpu.RESOURCE in status.get("allocatable", {})
    return ready and has_chips and node["spec"].get("taints") == [tpu.TAINT]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

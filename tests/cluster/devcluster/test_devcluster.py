"""The dev cluster as the real thing. Names hold the pid, so that two runs do not meet."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hack.devcluster import Cluster, DevClusterError, cgroups, images, network, process, teardown
from hack.devcluster.state import CHECKOUT, Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IMAGE = "localhost/loaded:1"
# Places where a kubelet and a container runtime put things, were they not on a node of their own.
PLACES = ("/run/containerd", "/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/var/log/containers")
TUNABLES = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")


def cluster_name(suffix: str) -> str:
    return f"t{os.getpid()}{suffix}"


def until(holds: Callable[[], Any], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not so after {seconds} s: {what}"
        time.sleep(0.1)


def kubectl(cluster: Cluster, *arguments: str, stdin: str | None = None) -> str:
    command: list[str | Path] = [cluster.kubectl, f"--kubeconfig={cluster.kubeconfig}", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def pod(name: str, command: list[str], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "tolerations": [{"operator": "Exists"}],
            # A shell as first process does not heed SIGTERM.
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": IMAGE,
                    "imagePullPolicy": "IfNotPresent",
                    "command": command,
                    "resources": {"limits": {"google.com/tpu": 4, "memory": "32Mi", "cpu": "100m"}},
                }
            ],
            **spec,
        },
    }


def service(name: str, app: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": app}, "ports": [{"port": 80, "targetPort": 8000}], **spec},
    }


def apply(cluster: Cluster, *objects: dict[str, Any]) -> None:
    kubectl(cluster, "apply", "-f", "-", stdin="\n".join(map(json.dumps, objects)))


@contextlib.contextmanager
def squatter(layout: Layout, port: int) -> Iterator[threading.Event]:
    """Occupies a port in the cluster's network, as soon as there is one; the event tells when."""
    occupied, done = threading.Event(), threading.Event()

    def occupy() -> None:
        until((layout.pids / "etcd").exists, "the network is there")
        listen = f"import socket; s = socket.create_server(('', {port})); print(flush=True); input()"
        command = [*process.enter(layout), sys.executable, "-c", listen]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            occupied.set()
            done.wait()
            child.kill()

    thread = threading.Thread(target=occupy)
    thread.start()
    try:
        yield occupied
    finally:
        done.set()
        thread.join()


@dataclasses.dataclass(frozen=True)
class Traces:
    """What of a cluster can be seen from the host."""

    processes: tuple[str, ...]
    mounts: tuple[str, ...]
    cgroups: tuple[str, ...]
    links: tuple[str, ...]
    paths: tuple[str, ...]

    @classmethod
    def of(cls, cluster: Cluster) -> Traces:
        layout = cluster.layout
        marks = (layout.id, f"{layout.dir}/")
        links = json.loads(subprocess.check_output(["ip", "-json", "addr"]))
        addresses = {address["local"]: link["ifname"] for link in links for address in link["addr_info"]}
        return cls(
            processes=tuple(sorted(_processes(marks))),
            mounts=tuple(_lines("/proc/self/mountinfo", marks)),
            cgroups=tuple(map(str, Path("/sys/fs/cgroup").rglob(layout.id))),
            links=tuple(name for address, name in addresses.items() if address == cluster.host_ip),
            paths=tuple(
                str(path) for path in (layout.dir, Path("/run/netns", layout.netns)) if path.exists()
            ),
        )


def _lines(path: str, marks: tuple[str, ...]) -> list[str]:
    with contextlib.suppress(OSError):
        return [line for line in Path(path).read_text().splitlines() if any(mark in line for mark in marks)]
    return []


def _processes(marks: tuple[str, ...]) -> Iterator[str]:
    """Processes that are in the cluster's cgroups, or name it, or see mounts of it."""
    for path in Path("/proc").glob("[0-9]*"):
        files = (f"{path}/cgroup", f"{path}/cmdline", f"{path}/mountinfo")
        if any(_lines(file, marks) for file in files):
            yield path.name


def host_state() -> dict[str, Any]:
    """What starting a cluster must not change for the rest of the machine."""
    tunables = {name: Path("/proc/sys", name).read_text() for name in TUNABLES}
    return {**tunables, **{place: Path(place).exists() for place in PLACES}}


@pytest.fixture(scope="module")
def before() -> dict[str, Any]:
    return host_state()


@pytest.fixture(scope="module")
def cluster(before: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two real nodes and two fake ones, with an image loaded."""
    cluster = Cluster.up(cluster_name("a"), nodes=2, fake_nodes=2)
    archive = tmp_path_factory.mktemp("image") / "image.tar"
    images.write_busybox(archive, IMAGE)
    cluster.load(archive)
    yield cluster
    cluster.down()


def test_nodes_are_ready_hosts_of_one_slice(cluster: Cluster) -> None:
    nodes = {node.name: node for node in cluster.nodes()}
    assert set(nodes) == {"node-0", "node-1", "fake-node-0", "fake-node-1"}
    assert all(node.ready and node.chips == 4 for node in nodes.values())
    assert nodes["node-0"].pool == nodes["node-1"].pool == "tpu-pool-0"
    labelled = kubectl(
        cluster,
        "get",
        "nodes",
        "--selector=cloud.google.com/gke-tpu-accelerator=tpu-v5-lite-podslice,type!=kwok",
        "--output=jsonpath={.items[*].spec.taints[*].key}",
    )
    assert labelled.split() == ["google.com/tpu"] * 2


def test_pods_run_and_find_each_other_by_name(cluster: Cluster) -> None:
    page = "mkdir /www; echo hello >/www/index.html; exec httpd -f -p 8000 -h /www"
    resolve = "nslookup web.peers.default.svc.cluster.local; nslookup web.default.svc.cluster.local"
    get = r"printf 'GET / HTTP/1.0\r\n\r\n' | nc -w 2 $WEB_SERVICE_HOST 80"
    client = f"until {resolve}; do sleep 0.1; done; until {get} | grep hello; do sleep 0.1; done"
    apply(
        cluster,
        service("peers", "web", clusterIP="None", publishNotReadyAddresses=True),
        service("web", "web"),
        pod("web", ["sh", "-c", page], hostname="web", subdomain="peers", nodeName="node-0"),
    )
    kubectl(cluster, "wait", "pod/web", "--for=condition=Ready", "--timeout=60s")
    apply(cluster, pod("client", ["sh", "-c", client], restartPolicy="Never", nodeName="node-1"))
    kubectl(cluster, "wait", "pod/client", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
    assert "hello" in kubectl(cluster, "logs", "client")
    assert "nameserver 10.201.0.1" in kubectl(cluster, "exec", "web", "--", "cat", "/etc/resolv.conf")


def test_gang_of_fake_pods_runs_and_none_completes(cluster: Cluster) -> None:
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "gang"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    }
    member: dict[str, Any] = {"schedulingGroup": {"podGroupName": "gang"}, "nodeSelector": {"type": "kwok"}}
    held = pod("held", ["true"], nodeName="fake-node-0")
    held["metadata"]["annotations"] = {"devcluster/hold": "true"}
    apply(cluster, held, group, pod("gang-0", ["true"], **member))
    apply(cluster, pod("gang-1", ["true"], **member))
    # fake-node-0 is taken by the pod that is held.
    with pytest.raises(AssertionError, match="timed out"):
        kubectl(cluster, "wait", "pod/gang-0", "--for=condition=PodScheduled", "--timeout=1s")
    kubectl(cluster, "annotate", "pod/held", "devcluster/hold-")
    kubectl(cluster, "wait", "pod/held", "--for=condition=Ready", "--timeout=30s")
    kubectl(cluster, "delete", "pod/held")
    kubectl(cluster, "wait", "pod/gang-0", "pod/gang-1", "--for=condition=Ready", "--timeout=60s")


def test_file_that_is_no_image_is_named(cluster: Cluster, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    with pytest.raises(DevClusterError, match=r"cannot read image archive .*image\.tar: No such file"):
        cluster.load(archive)
    archive.write_text("this is not a tar file")
    with pytest.raises(DevClusterError, match=r"^node-\d cannot import .*image\.tar: ctr: "):
        cluster.load(archive)


def test_audit_log_has_the_users_requests_and_not_the_components(cluster: Cluster) -> None:
    users = {json.loads(line)["user"]["username"] for line in cluster.audit_log.read_text().splitlines()}
    assert "admin" in users
    assert not users & {"kubelet", "kube-scheduler", "kube-controller-manager", "kwok", "devcluster"}


def test_pods_and_commands_inside_reach_the_host(cluster: Cluster) -> None:
    with socket.create_server((cluster.host_ip, 0)) as listener:
        listener.settimeout(30)
        port = listener.getsockname()[1]
        connect = f"import socket; socket.create_connection(('{cluster.host_ip}', {port}), 5)"
        cluster.run_in_netns([sys.executable, "-c", connect], check=True)
        assert caller(listener) == cluster.record.server_ip
        apply(cluster, pod("caller", ["nc", cluster.host_ip, str(port)], nodeName="node-1"))
        assert caller(listener) == cluster.record.server_ip
    kubectl(cluster, "delete", "pod/caller")


def caller(listener: socket.socket) -> str:
    connection, (address, _) = listener.accept()
    connection.close()
    return str(address)


def test_second_cluster_beside_it(cluster: Cluster) -> None:
    other = Cluster.up(cluster_name("b"), nodes=0)
    try:
        assert other.server != cluster.server
        assert other.nodes() == []
        assert len(cluster.nodes()) == 4
        with pytest.raises(DevClusterError, match="has no real nodes"):
            other.load(Path("image.tar"))
        assert Cluster.attach(other.name) == other
        assert Cluster.up(other.name, nodes=0) == other
        with pytest.raises(DevClusterError, match="runs already, with 0 nodes"):
            Cluster.up(other.name, nodes=1)
    finally:
        other.down()
    assert not any(dataclasses.astuple(Traces.of(other)))
    assert len(cluster.nodes()) == 4


def test_component_that_cannot_start_is_named_with_its_log(cluster: Cluster) -> None:
    cluster.stop_component("kube-scheduler")
    assert cluster.find("kube-scheduler") is None
    with squatter(cluster.layout, 10259) as occupied:
        occupied.wait()
        with pytest.raises(
            DevClusterError,
            match=r"^kube-scheduler has ended(?s:.*)last lines of (?s:.*)address already in use",
        ):
            cluster.start_component("kube-scheduler")
    cluster.start_component("kube-scheduler")
    with pytest.raises(DevClusterError, match="is running already"):
        cluster.start_component("kube-scheduler")


def test_restarted_kubelet_keeps_its_chips(cluster: Cluster) -> None:
    cluster.signal("kubelet-1", signal.SIGKILL)
    until(lambda: cluster.find("kubelet-1") is None, "the kubelet has ended")
    began = kubectl(
        cluster, "get", "node", "node-1", "--output=jsonpath={.status.conditions[0].lastHeartbeatTime}"
    )
    cluster.start_component("kubelet-1")
    heartbeat = "--output=jsonpath={.status.conditions[0].lastHeartbeatTime}"
    until(lambda: kubectl(cluster, "get", "node", "node-1", heartbeat) != began, "the kubelet reports")
    assert all(node.ready and node.chips == 4 for node in cluster.nodes())


def test_down_leaves_nothing_of_running_pods_and_killed_components(
    cluster: Cluster, before: dict[str, Any]
) -> None:
    sleeper = pod("sleeper", ["sleep", "1000"], nodeName="node-1")
    del sleeper["spec"]["containers"][0]["resources"]
    apply(cluster, sleeper)
    kubectl(cluster, "wait", "pod/sleeper", "--for=condition=Ready", "--timeout=60s")
    alive = Traces.of(cluster)
    assert len(alive.processes) > len(cluster.components)
    assert all((alive.cgroups, alive.links, alive.paths))
    for component in ("containerd-1", "kubelet-0", "etcd"):
        cluster.signal(component, signal.SIGKILL)
    cluster.down()
    assert not any(dataclasses.astuple(Traces.of(cluster)))
    assert host_state() == before
    assert teardown.down(cluster.layout) is False
    with pytest.raises(DevClusterError, match="there is no cluster"):
        Cluster.attach(cluster.name)


def test_up_that_fails_says_why_and_keeps_only_the_logs() -> None:
    layout = Layout(cluster_name("c"))
    with squatter(layout, 10257):
        with pytest.raises(DevClusterError, match=r"^kube-controller-manager has ended(?s:.*)already in use"):
            Cluster.up(layout.name, nodes=0)
        assert not network.exists(layout.netns)
        assert not cgroups.exists(layout.cgroup)
        assert list(layout.dir.iterdir()) == [layout.logs]
    assert teardown.down(layout)
    assert not layout.dir.exists()


def test_down_after_up_was_killed() -> None:
    layout = Layout(cluster_name("d"))
    command = [sys.executable, "-m", "hack.devcluster", "up", "--name", layout.name, "--nodes", "1"]
    with subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.DEVNULL) as up:
        until((layout.pids / "node-0").exists, "the node is being made")
        up.kill()
    with pytest.raises(DevClusterError, match=r"is not running(?s:.*)take it down first"):
        Cluster.up(layout.name, nodes=1)
    left = Cluster.attach(layout.name)
    assert teardown.down(layout)
    assert not any(dataclasses.astuple(Traces.of(left)))


def test_files_without_processes_do_not_stop_a_new_cluster() -> None:
    layout = Layout(cluster_name("e"))
    layout.pids.mkdir(parents=True)
    # After a reboot: the pid is another process's now.
    (layout.pids / "etcd").write_text(str(os.getpid()))
    assert process.find(layout, "etcd") is None
    assert teardown.down(layout)
    assert not layout.dir.exists()

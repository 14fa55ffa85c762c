"""Real nodes: a kubelet and a containerd each, and what they share: kube-proxy and CoreDNS.

A node is a mount namespace with its own /run, /var/lib and /var/log, so that containerd and kubelet find all
their default places, some of which cannot be configured, and so that all mounts vanish with its last process.
"""

import json
from pathlib import Path
from typing import Any

from hack.devcluster import cgroups, packages, tpu
from hack.devcluster.network import BRIDGE, BRIDGE_IP, PODS
from hack.devcluster.process import Argv, Component
from hack.devcluster.state import DevClusterError, Layout, Record

PAUSE = "localhost/pause:dev"
"""Image of the pods' sandbox: a busybox with all its applets, so that it also serves tests as an image."""
_SETTINGS = "/var/lib/devcluster"
_TOOLS = "/var/lib/tools"
_FIRST_PORT = 10250
# The kubelet sets these for the whole machine; a node gets copies of its own.
_TUNABLES = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
# Arguments: directory of the node, shared CNI state, directories of the Kubernetes and containerd binaries,
# tunables. Overlays are other people's containers and image builds: a copy of the mount would keep them busy.
# /var/lib comes last, for the case that the clone is below it.
_HOLD = """
set -eu
node=$1 cni=$2 kubernetes=$3 containerd=$4
shift 4
awk '$3 == "overlay" && $2 != "/" {print $2}' /proc/self/mounts | xargs -r umount --lazy || true
mount --bind "$cni" "$node/lib/cni"
mount --bind "$kubernetes" "$node/lib/tools/kubernetes"
mount --bind "$containerd" "$node/lib/tools/containerd"
for name in "$@"; do
  mkdir -p "$node/sys/${name%/*}"
  cat "/proc/sys/$name" >"$node/sys/$name"
  mount --bind "$node/sys/$name" "/proc/sys/$name"
done
mount --bind "$node/log" /var/log
mount --bind "$node/run" /run
mount --rbind "$node/lib" /var/lib
: >/run/ready
exec sleep infinity
"""


def name(index: int) -> str:
    """Name of a node in the API, and of the component that holds its namespace."""
    return f"node-{index}"


def agent(index: int) -> str:
    """Name of the component that is the kubelet of a node."""
    return f"kubelet-{index}"


def write_files(layout: Layout, record: Record) -> None:
    """Write the configuration of all nodes, kube-proxy and CoreDNS. Needs the kubeconfigs."""
    _cni_state(layout).mkdir(parents=True)
    for index in range(record.shape.nodes):
        _write_node(layout, index)
    proxy = kube_proxy_config(layout.credentials("kube-proxy"))
    (layout.config / "kube-proxy.json").write_text(json.dumps(proxy))
    (layout.config / "Corefile").write_text(corefile(layout.credentials("coredns")))


def give_credentials(layout: Layout, record: Record) -> None:
    """Hand every node the kubelet's kubeconfig."""
    for index in range(record.shape.nodes):
        target = layout.node(index) / "lib" / "devcluster" / "kubeconfig"
        target.write_bytes(layout.credentials("kubelet").read_bytes())


def holders(layout: Layout, record: Record, bins: dict[str, Path]) -> list[Component]:
    """Describe the processes that make and keep the nodes' namespaces."""
    # Slave: what the host unmounts goes away here too, and what is mounted here does not show there.
    unshare = ("unshare", "--mount", "--propagation", "slave", "sh", "-c", _HOLD, "sh")
    shared: Argv = (_cni_state(layout), bins["kubelet"].parent, bins["containerd"].parent, *_TUNABLES)
    return [
        Component(name(index), [*unshare, layout.node(index), *shared]) for index in range(record.shape.nodes)
    ]


def runtimes(record: Record) -> list[Component]:
    """Describe the containerds."""
    return [
        Component(
            f"containerd-{index}",
            [f"{_TOOLS}/containerd/containerd", f"--config={_SETTINGS}/containerd.toml"],
            holder=name(index),
        )
        for index in range(record.shape.nodes)
    ]


def agents(layout: Layout, record: Record, bins: dict[str, Path]) -> list[Component]:
    """Describe the kubelets, kube-proxy and CoreDNS."""
    proxy: Argv = [bins["kube-proxy"], f"--config={layout.config / 'kube-proxy.json'}"]
    dns: Argv = [bins["coredns"], f"-conf={layout.config / 'Corefile'}"]
    return [
        *(_kubelet(index) for index in range(record.shape.nodes)),
        Component("kube-proxy", proxy, f"http://{record.server_ip}:10256/healthz"),
        Component("coredns", dns, f"http://{record.server_ip}:8181/ready"),
    ]


def complete(layout: Layout, index: int) -> Path:
    """File that appears when the namespace of a node is complete."""
    return layout.node(index) / "run" / "ready"


def socket(layout: Layout, index: int) -> Path:
    """File that appears when the containerd of a node listens."""
    return layout.node(index) / "run" / "containerd" / "containerd.sock"


def ctr(*arguments: str) -> list[str]:
    """Build a command, to be run on a node, that speaks to its containerd."""
    return [f"{_TOOLS}/containerd/ctr", "--namespace", "k8s.io", *arguments]


def _kubelet(index: int) -> Component:
    labels = ",".join(f"{key}={value}" for key, value in tpu.labels(index, "tpu-pool").items())
    return Component(
        agent(index),
        [
            f"{_TOOLS}/kubernetes/kubelet",
            f"--config={_SETTINGS}/kubelet.json",
            f"--kubeconfig={_SETTINGS}/kubeconfig",
            f"--hostname-override={name(index)}",
            # All nodes have one address; the API server tells their kubelets apart by the port in the node's
            # status.
            f"--node-ip={BRIDGE_IP}",
            f"--node-labels={labels}",
        ],
        holder=name(index),
    )


def _write_node(layout: Layout, index: int) -> None:
    node = layout.node(index)
    for path in (
        "run",
        "log",
        "lib/cni",
        "lib/tools/kubernetes",
        "lib/tools/containerd",
        "lib/devcluster/cni",
    ):
        (node / path).mkdir(parents=True)
    settings = node / "lib" / "devcluster"
    plugins = packages.cni_plugins()
    if plugins is None:
        raise DevClusterError("the CNI plugins are gone: install containernetworking-plugins")
    (settings / "containerd.toml").write_text(containerd_config(plugins))
    (settings / "cni" / "pods.conflist").write_text(json.dumps(cni_config()))
    cgroup = f"{layout.cgroup}/pods-{index}"
    cgroups.create(cgroup)
    kubelet = kubelet_config(_FIRST_PORT + index, f"/{cgroup}")
    (settings / "kubelet.json").write_text(json.dumps(kubelet))


def containerd_config(plugins: Path) -> str:
    """Configuration of containerd, with the default directories and socket."""
    return f"""version = 3
# NRI and opt make directories of their own outside of the node, and nothing here uses them.
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE}"

[plugins."io.containerd.cri.v1.runtime"]
# Where root lacks CAP_SYS_RESOURCE, runc dies of trying to lower the score below its own.
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{plugins}"]
conf_dir = "{_SETTINGS}/cni"
"""


def cni_config() -> dict[str, Any]:
    """One flat network for the pods of all nodes: one bridge, and addresses from one directory of leases."""
    return {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": BRIDGE,
                "isGateway": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": str(PODS), "gateway": BRIDGE_IP}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }


def kubelet_config(port: int, cgroup: str) -> dict[str, Any]:
    """Configuration of a kubelet."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "address": BRIDGE_IP,
        "port": port,
        "readOnlyPort": 0,
        "healthzPort": 0,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "clusterDNS": [BRIDGE_IP],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        "registerWithTaints": [tpu.TAINT],
        "failSwapOn": False,
        # Refused by default since 1.35.
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        # Each kubelet removes pods' cgroups that it does not know, so each needs a root of its own.
        "cgroupRoot": cgroup,
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": [],
        # Its default is in /usr.
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "makeIPTablesUtilChains": False,
        # A developer's disk is often nearly full, and images that are loaded by hand cannot be pulled again.
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
    }


def kube_proxy_config(kubeconfig: Path) -> dict[str, Any]:
    """Configuration of the one kube-proxy: all nodes are in one network namespace."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "hostnameOverride": name(0),
        "mode": "nftables",
        # Pods are on one bridge: the answer of a Service's pod would pass by the address translation
        # otherwise.
        "nftables": {"masqueradeAll": True},
        # The limits of connection tracking are the whole machine's.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def corefile(kubeconfig: Path) -> str:
    """Configuration of CoreDNS. What is not in the cluster does not exist, since there is nobody to ask."""
    return f"""cluster.local in-addr.arpa {{
  bind {BRIDGE_IP}
  errors
  ready
  cache 2
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig "{kubeconfig}"
    ttl 2
  }}
}}
. {{
  bind {BRIDGE_IP}
  template ANY ANY {{
    rcode NXDOMAIN
  }}
}}
"""


def _cni_state(layout: Layout) -> Path:
    return layout.dir / "nodes" / "cni"

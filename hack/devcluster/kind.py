"""The same cluster in kind, for machines with a Docker engine: CLUSTER=kind.

The kubectl is ours; kind itself must be on PATH.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hack.devcluster import binaries, process, tpu
from hack.devcluster.shell import run
from hack.devcluster.state import DevClusterError, Layout, Shape


def selected() -> bool:
    """Tell whether the environment asks for kind."""
    return os.environ.get("CLUSTER") == "kind"


def up(layout: Layout, shape: Shape) -> None:
    """Create the cluster, unless it exists."""
    if shape.fake_nodes or shape.api_qps:
        raise DevClusterError("--fake-nodes and --api-qps are not supported with CLUSTER=kind")
    if layout.id in _kind("get", "clusters").split():
        return
    layout.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(config(shape.nodes), file)
        file.flush()
        _kind("create", "cluster", *_name(layout), f"--config={file.name}", "--wait=3m", *_kubeconfig(layout))
    _give_chips(layout)


def down(layout: Layout) -> None:
    """Delete the cluster."""
    _kind("delete", "cluster", *_name(layout), *_kubeconfig(layout))
    layout.kubeconfig.unlink(missing_ok=True)


def load(layout: Layout, archive: Path) -> None:
    """Load an image archive into all nodes."""
    _kind("load", "image-archive", str(archive), *_name(layout))


def config(nodes: int) -> dict[str, Any]:
    """Configuration of a kind cluster with as many TPU hosts."""
    join = {"kind": "JoinConfiguration", "nodeRegistration": {"taints": [tpu.TAINT]}}
    workers = [
        {
            "role": "worker",
            "labels": tpu.labels(index, "tpu-pool"),
            "kubeadmConfigPatches": [json.dumps(join)],
        }
        for index in range(nodes)
    ]
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "featureGates": {"GenericWorkload": True},
        "runtimeConfig": {"scheduling.k8s.io/v1beta1": "true"},
        "nodes": [{"role": "control-plane"}, *workers],
    }


def _give_chips(layout: Layout) -> None:
    kubectl: process.Argv = [binaries.ensure(["kubectl"])["kubectl"], f"--kubeconfig={layout.kubeconfig}"]
    for node in run([*kubectl, "get", "nodes", f"--selector={tpu.POOL}", "--output=name"]).split():
        patch = f"--patch={json.dumps(tpu.STATUS)}"
        run([*kubectl, "patch", node, "--subresource=status", "--type=merge", patch])


def _name(layout: Layout) -> list[str]:
    return [f"--name={layout.id}"]


def _kubeconfig(layout: Layout) -> list[str]:
    return [f"--kubeconfig={layout.kubeconfig}"]


def _kind(*arguments: str) -> str:
    """Run kind in the caller's environment, which says where the Docker engine is; its progress is shown."""
    try:
        done = subprocess.run(["kind", *arguments], stdout=subprocess.PIPE, text=True, check=False)
    except FileNotFoundError:
        raise DevClusterError("CLUSTER=kind needs `kind` on PATH, and a Docker engine") from None
    if done.returncode:
        raise DevClusterError(f"kind {' '.join(arguments)} failed with exit code {done.returncode}")
    return done.stdout

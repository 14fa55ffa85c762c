"""People with few rights: service accounts of a cluster, as whom a client can connect."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from pathlib import Path

    from hack.devcluster import Cluster
    from tests.kube import Kube

RBAC = "rbac.authorization.k8s.io/v1"


def account(cluster: Cluster, kube: Kube, namespace: str, verbs: dict[str, list[str]], file: Path) -> Path:
    """A kubeconfig of somebody new, who may do to resources of ours and to pods what is said, and no more.

    Args:
        cluster: the cluster.
        kube: a client of it.
        namespace: where the rights are.
        verbs: by resource.
        file: where the kubeconfig goes; its name is the account's.
    """
    name = file.stem
    groups = ["", "tpu-operator.dev", "events.k8s.io"]
    rules = [{"apiGroups": groups, "resources": [what], "verbs": may} for what, may in verbs.items()]
    kube.create(("v1", "ServiceAccount"), {"metadata": {"name": name}}, namespace)
    kube.create((RBAC, "Role"), {"metadata": {"name": name}, "rules": rules}, namespace)
    binding = {
        "metadata": {"name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        "roleRef": {"apiGroup": RBAC.partition("/")[0], "kind": "Role", "name": name},
    }
    kube.create((RBAC, "RoleBinding"), binding, namespace)
    command: list[str | Path] = [cluster.kubectl, "--kubeconfig", cluster.kubeconfig, "create", "token"]
    token = subprocess.run(
        [*command, name, "-n", namespace], check=True, capture_output=True, text=True
    ).stdout.strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    config["contexts"][0]["context"]["namespace"] = namespace
    file.write_text(yaml.safe_dump(config))
    return file

"""The headless Service that gives pods their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpu_operator.core.plan import Manifest
    from tpu_operator.core.snapshot import Service


def headless_service(
    name: str,
    namespace: str,
    selector: Mapping[str, str],
    owner: Mapping[str, Any],
    ports: Mapping[str, int],
) -> Manifest:
    """A Service whose DNS records exist before its pods are ready: they need each other to become ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(selector),
            "ownerReferences": [dict(owner)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": dict(selector),
            "ports": [
                {"name": label, "port": port, "targetPort": port, "protocol": "TCP"}
                for label, port in ports.items()
            ],
        },
    }


def in_order(desired: Manifest, actual: Service) -> bool:
    """Whether the cluster's Service already is what we want, so that no write is needed."""
    spec = desired["spec"]
    return (
        actual.metadata.owner_uid == desired["metadata"]["ownerReferences"][0]["uid"]
        and desired["metadata"]["labels"].items() <= actual.metadata.labels.items()
        and actual.spec.cluster_ip == spec["clusterIP"]
        and actual.spec.publish_not_ready_addresses
        and actual.spec.selector == spec["selector"]
        and {(p["name"], p["port"]) for p in spec["ports"]} <= {(p.name, p.port) for p in actual.spec.ports}
    )

"""The headless Service that gives pods their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpu_operator.core.plan import Patch

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


def kept(desired: Manifest, found: Mapping[str, Service]) -> tuple[tuple[Patch, ...], tuple[Manifest, ...]]:
    """What makes the cluster's Service what it has to be: a change of the one there is, or a new one.

    Of one that belongs to somebody else the API server says that it is in the way.
    """
    meta = desired["metadata"]
    actual = found.get(meta["name"])
    if actual is None or actual.metadata.owner_uid != meta["ownerReferences"][0]["uid"]:
        return (), (desired,)
    return (() if _in_order(desired, actual) else (_correction(desired, actual),)), ()


def _correction(desired: Manifest, actual: Service) -> Patch:
    """A merge patch, as a server-side apply takes nothing away that it has not brought.

    A port with another number would stand beside the old one, under the same name, which is refused.
    """
    meta, spec = desired["metadata"], desired["spec"]
    selector = dict.fromkeys(actual.spec.selector) | spec["selector"]
    change = {"metadata": {"labels": meta["labels"]}, "spec": spec | {"selector": selector}}
    return Patch("Service", meta["namespace"], meta["name"], actual.metadata.resource_version, change)


def _in_order(desired: Manifest, actual: Service) -> bool:
    """Whether the cluster's Service already is what we want, so that no write is needed."""
    spec = desired["spec"]
    return (
        desired["metadata"]["labels"].items() <= actual.metadata.labels.items()
        and actual.spec.cluster_ip == spec["clusterIP"]
        and actual.spec.publish_not_ready_addresses
        and actual.spec.selector == spec["selector"]
        and {(p["name"], p["port"]) for p in spec["ports"]} <= {(p.name, p.port) for p in actual.spec.ports}
    )

"""How requests get from a gateway to replicas: InferencePool and HTTPRoute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpu_operator.core.plan import Manifest

POOL_GROUP: Final = "inference.networking.k8s.io"
ROUTE_GROUP: Final = "gateway.networking.k8s.io"
FOREVER: Final = "0s"
"""Of a time-out of the Gateway API: none. A stream lasts as long as a model has something to say."""


def inference_pool(
    metadata: Manifest, selector: Mapping[str, str], port: int, picker: Mapping[str, object]
) -> Manifest:
    """The pool of all pods that take requests.

    Args:
        metadata: its name, namespace, labels and owner.
        selector: labels of the pods, one for each replica.
        port: where they take requests.
        picker: reference to the endpoint picker.
    """
    spec: Manifest = {
        "selector": {"matchLabels": dict(selector)},
        "targetPorts": [{"number": port}],
        "endpointPickerRef": dict(picker),
    }
    return {"apiVersion": f"{POOL_GROUP}/v1", "kind": "InferencePool", "metadata": metadata, "spec": spec}


def http_route(
    metadata: Manifest, parents: Iterable[Manifest], hostnames: Iterable[str], pool: str
) -> Manifest:
    """The route from gateways to a pool.

    Args:
        metadata: its name, namespace, labels and owner.
        parents: references to the gateways.
        hostnames: what it is for; none for all.
        pool: name of the InferencePool.
    """
    rule = {
        "backendRefs": [{"group": POOL_GROUP, "kind": "InferencePool", "name": pool}],
        "timeouts": {"request": FOREVER, "backendRequest": FOREVER},
    }
    spec: Manifest = {"parentRefs": list(parents), "rules": [rule]}
    if names := list(hostnames):
        spec["hostnames"] = names
    return {"apiVersion": f"{ROUTE_GROUP}/v1", "kind": "HTTPRoute", "metadata": metadata, "spec": spec}

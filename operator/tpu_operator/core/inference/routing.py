"""The objects that bring requests to a TPUInference: which there should be, and what to do about it.

Each part of `spec.routing` stands for objects of ours: made when the part is there, put right when somebody
changes them, removed when the part goes. Two of the kinds are other projects', and a cluster need not have
them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tpu_operator.core import names
from tpu_operator.core.inference.engines.probes import grace_seconds
from tpu_operator.core.inference.picking import default_config, selector, serving
from tpu_operator.core.objects import picking, routes
from tpu_operator.core.objects.matching import matches
from tpu_operator.core.objects.picking import Picker
from tpu_operator.core.plan import Delete
from tpu_operator.core.snapshot import Metadata, View

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from tpu_operator.api import TPUInference
    from tpu_operator.core.inference.images import Images
    from tpu_operator.core.inference.picking import Serving
    from tpu_operator.core.plan import Manifest

PICKER_KINDS: Final = ("ServiceAccount", "RoleBinding", "Service", "Deployment")
FOREIGN_KINDS: Final = ("InferencePool", "HTTPRoute")
"""Those of other projects."""
KINDS: Final = (*PICKER_KINDS, *FOREIGN_KINDS)
"""In the order in which they are made."""
ORIGINS: Final = {
    "InferencePool": "the Gateway API inference extension",
    "HTTPRoute": "the Gateway API",
}
FIELDS: Final = {"InferencePool": "inferencePool", "HTTPRoute": "httpRoute"}


class RoutingObject(View, frozen=True):
    """An object of any of these kinds, with all that we set in it."""

    metadata: Metadata
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    role_ref: dict[str, Any] = msgspec.field(default_factory=dict)
    subjects: list[Any] = msgspec.field(default_factory=list)


Objects = Mapping[str, Mapping[str, RoutingObject]]
"""Objects by kind, then by name; a kind that the cluster does not serve is absent."""


@dataclass(frozen=True, slots=True)
class RoutingPlan:
    """What to do about routing.

    Attributes:
        applies: objects that are missing or not in order.
        deletes: objects of ours that the spec does not ask for any more.
        missing: kinds that the spec asks for and the cluster does not serve, each as a sentence.
        clashes: objects of somebody else where ours should be, each as a sentence.
    """

    applies: tuple[Manifest, ...] = ()
    deletes: tuple[Delete, ...] = ()
    missing: tuple[str, ...] = ()
    clashes: tuple[str, ...] = ()


def plan_routing(
    inference: TPUInference,
    owner: Manifest,
    images: Images,
    found: Objects,
    revisions: Sequence[Serving] = (),
) -> RoutingPlan:
    """Compare what the spec asks for with what there is.

    Args:
        inference: the object.
        owner: reference to it, for what is made.
        images: those of the installation.
        found: by kind and name, objects of these kinds in its namespace, whoever owns them; a kind that the
            cluster does not serve is absent.
        revisions: those that have replicas, the newest first; the spec's alone where there is none.
    """
    wanted = [_stamped(manifest) for manifest in desired(inference, owner, images, revisions)]
    absent = {manifest["kind"]: manifest for manifest in wanted if manifest["kind"] not in found}
    possible = [manifest for manifest in wanted if _possible(manifest, absent)]
    foreign = [manifest for manifest in possible if _is_foreign(manifest, found, owner["uid"])]
    leftovers = _leftovers(wanted, found, inference.metadata.name, owner["uid"])
    return RoutingPlan(
        applies=tuple(_seen(m, found) for m in possible if m not in foreign and not _stands(m, found)),
        deletes=tuple(_delete(kind, item) for kind, item in leftovers),
        missing=tuple(map(_not_served, absent.values())),
        clashes=tuple(map(_clash, foreign)),
    )


def desired(
    inference: TPUInference, owner: Manifest, images: Images, revisions: Sequence[Serving] = ()
) -> list[Manifest]:
    """All objects that the spec asks for, in the order in which they are made."""
    routing, name = inference.spec.routing, inference.metadata.name
    wanted: list[Manifest] = []
    picker = _picker(inference, owner, images, revisions)
    if picker:
        wanted += [
            picking.service_account(picker),
            picking.role_binding(picker),
            picking.service(picker),
            picking.deployment(picker),
        ]
    if pool := routing.inference_pool:
        reference = {
            "kind": "Service",
            "name": picker_name(name),
            "port": {"number": picking.GRPC_PORT},
            "failureMode": str(pool.failure_mode),
        }
        metadata, port = _metadata(inference, owner, name), inference.spec.engine.port
        wanted.append(routes.inference_pool(metadata, serving(name), port, reference))
    if route := routing.http_route:
        parents = [parent.wire() for parent in route.parent_refs]
        metadata = _metadata(inference, owner, name)
        wanted.append(routes.http_route(metadata, parents, route.hostnames, name))
    return wanted


def picker_name(inference: str) -> str:
    """Name of all objects of an endpoint picker."""
    return f"{inference}-epp"


def _picker(
    inference: TPUInference, owner: Manifest, images: Images, revisions: Sequence[Serving]
) -> Picker | None:
    spec = inference.spec.routing.endpoint_picker
    if spec is None:
        return None
    name, drain = inference.metadata.name, inference.spec.drain
    return Picker(
        metadata=_metadata(inference, owner, picker_name(name)),
        inference=name,
        image=spec.image or images.endpoint_picker,
        role=images.picker_role,
        config=spec.config or default_config(inference, revisions),
        arguments=[*_own_pods(inference), *spec.args],
        replicas=spec.replicas,
        resources={key: value for key, value in spec.resources.wire().items() if value},
        drain_seconds=drain.route_away_seconds,
        grace_seconds=grace_seconds(drain) + picking.SETTLE_SECONDS,
    )


def _own_pods(inference: TPUInference) -> list[str]:
    """By which a picker knows the pods that it picks from: their pool, or without one their labels."""
    name = inference.metadata.name
    if inference.spec.routing.inference_pool:
        return [f"--pool-name={name}", f"--pool-namespace={inference.metadata.namespace}"]
    return [f"--endpoint-selector={selector(name)}", f"--endpoint-target-ports={inference.spec.engine.port}"]


def _metadata(inference: TPUInference, owner: Manifest, name: str) -> Manifest:
    return {
        "name": name,
        "namespace": inference.metadata.namespace,
        "labels": {names.LABEL_INFERENCE: inference.metadata.name},
        "ownerReferences": [owner],
    }


def _stamped(manifest: Manifest) -> Manifest:
    """A manifest that says what it is made from, so that what is no longer in it is taken away too."""
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:10]
    stamp = {names.LABEL_REVISION: digest}
    metadata = manifest["metadata"]
    return manifest | {"metadata": metadata | {"labels": metadata["labels"] | stamp}}


def _possible(manifest: Manifest, absent: Container[str]) -> bool:
    """Whether it can be made; a picker without the kind of its pool would only fail, again and again."""
    waits = manifest["kind"] in PICKER_KINDS and "InferencePool" in absent
    return manifest["kind"] not in absent and not waits


def _find(manifest: Manifest, found: Objects) -> RoutingObject | None:
    return found[manifest["kind"]].get(manifest["metadata"]["name"])


def _seen(manifest: Manifest, found: Objects) -> Manifest:
    """A manifest for the object that was seen, and for none that has come in its place since."""
    actual = _find(manifest, found)
    uid = {"uid": actual.metadata.uid} if actual else {}
    return manifest | {"metadata": manifest["metadata"] | uid}


def _is_foreign(manifest: Manifest, found: Objects, owner: str) -> bool:
    actual = _find(manifest, found)
    return actual is not None and actual.metadata.owner_uid != owner


def _stands(manifest: Manifest, found: Objects) -> bool:
    """Whether there is nothing to write: it is as it should be, or on its way out."""
    actual = _find(manifest, found)
    return actual is not None and (_going(actual) or in_order(manifest, actual))


def in_order(manifest: Manifest, actual: RoutingObject) -> bool:
    """Whether the cluster's object already is what we want."""
    content = {key: value for key, value in manifest.items() if key not in {"apiVersion", "kind", "metadata"}}
    wanted = manifest["metadata"]["labels"].items()
    return wanted <= actual.metadata.labels.items() and matches(content, msgspec.to_builtins(actual))


def _leftovers(
    wanted: Iterable[Manifest], found: Objects, inference: str, owner: str
) -> Iterator[tuple[str, RoutingObject]]:
    """Objects of ours whose part of the spec has gone, those that refer to others first."""
    kept = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in wanted}
    for kind in reversed(KINDS):
        name = picker_name(inference) if kind in PICKER_KINDS else inference
        item = found.get(kind, {}).get(name)
        if item and item.metadata.owner_uid == owner and (kind, name) not in kept and not _going(item):
            yield kind, item


def _delete(kind: str, item: RoutingObject) -> Delete:
    return Delete(kind, item.metadata.namespace, item.metadata.name, item.metadata.uid)


def _going(item: RoutingObject) -> bool:
    return item.metadata.deletion_timestamp is not None


def _not_served(manifest: Manifest) -> str:
    kind = manifest["kind"]
    return (
        f"spec.routing.{FIELDS.get(kind, 'endpointPicker')}: the cluster does not serve {kind} of "
        f"{manifest['apiVersion']}: install {ORIGINS.get(kind, 'a Kubernetes that does')}"
    )


def _clash(manifest: Manifest) -> str:
    return (
        f"{manifest['kind']} {manifest['metadata']['name']} belongs to something else: delete or rename it, "
        "or take the part of spec.routing away that needs it"
    )

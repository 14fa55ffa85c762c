"""How many replicas each role should have, and the TPUInferenceScalers that may say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpu_operator.api import API_VERSION, Scaling
from tpu_operator.api.tpuinference_rules import MAX_GROUPS
from tpu_operator.core import names
from tpu_operator.core.inference.factory import owner_reference
from tpu_operator.core.plan import Delete, Patch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpu_operator.api import RoleSpec, TPUInference
    from tpu_operator.core.inference.view import InferenceView
    from tpu_operator.core.plan import Manifest
    from tpu_operator.core.snapshot import Scaler

KIND = "TPUInferenceScaler"


def selector(inference: str, role: str = "") -> str:
    """Labels that one pod of each replica has, of a role or of all, as a selector in words."""
    labels = {names.LABEL_INFERENCE: inference, names.LABEL_HOST: "0"}
    if role:
        labels[names.LABEL_ROLE] = role
    return ",".join(f"{key}={value}" for key, value in labels.items())


def targets(inference: TPUInference, scalers: Mapping[str, Scaler]) -> dict[str, int]:
    """Replicas that each role should have, over all copies."""
    return {role.name: _target(inference, role, scalers) for role in inference.spec.roles}


def _target(inference: TPUInference, role: RoleSpec, scalers: Mapping[str, Scaler]) -> int:
    copies = inference.spec.replicas
    if copies == 0 or role.scaling is Scaling.STATIC:
        return min(copies * role.replicas, MAX_GROUPS)
    scaler = _mine(inference, scalers).get(names.scaler_name(inference.metadata.name, role.name))
    asked = scaler.spec.get("replicas") if scaler else None
    return min(max(asked, 0), MAX_GROUPS) if isinstance(asked, int) else _first(inference, role)


def _first(inference: TPUInference, role: RoleSpec) -> int:
    """What a new scaler begins with: what its role was to have until now, which may not be so many yet."""
    before = {known.name: known.desired for known in inference.status.roles}
    return before.get(role.name) or role.replicas


def creates(view: InferenceView) -> list[Manifest]:
    """Scalers that External roles lack. Each begins with what its role was to have before."""
    there = _mine(view.inference, view.snapshot.scalers)
    return [_manifest(view, role) for role in _external(view) if _name(view, role) not in there]


def deletes(view: InferenceView) -> list[Delete]:
    """Scalers of roles that are not External any more."""
    wanted = {_name(view, role) for role in _external(view)}
    return [
        Delete(KIND, meta.namespace, meta.name, meta.uid)
        for scaler in _mine(view.inference, view.snapshot.scalers).values()
        if (meta := scaler.metadata).name not in wanted and meta.deletion_timestamp is None
    ]


def reports(view: InferenceView) -> list[Patch]:
    """Statuses of scalers that say something else than what there is."""
    there = _mine(view.inference, view.snapshot.scalers)
    found = []
    for role in _external(view):
        scaler = there.get(_name(view, role))
        if scaler is None:
            continue
        status = _status(view, role, scaler)
        meta = scaler.metadata
        if any(scaler.status.get(key) != value for key, value in status.items()):
            change = {"status": status}
            found.append(Patch(KIND, meta.namespace, meta.name, meta.resource_version, change, "status"))
    return found


def _external(view: InferenceView) -> list[RoleSpec]:
    return [role for role in view.inference.spec.roles if role.scaling is Scaling.EXTERNAL]


def _name(view: InferenceView, role: RoleSpec) -> str:
    return names.scaler_name(view.name, role.name)


def _mine(inference: TPUInference, scalers: Mapping[str, Scaler]) -> Mapping[str, Scaler]:
    uid = inference.metadata.uid
    return {name: scaler for name, scaler in scalers.items() if scaler.metadata.owner_uid == uid}


def _manifest(view: InferenceView, role: RoleSpec) -> Manifest:
    meta = view.inference.metadata
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": _name(view, role),
            "namespace": meta.namespace,
            "labels": {**view.selector, names.LABEL_ROLE: role.name},
            "ownerReferences": [owner_reference(view.inference)],
        },
        "spec": {"replicas": _first(view.inference, role)},
    }


def _status(view: InferenceView, role: RoleSpec, scaler: Scaler) -> dict[str, Any]:
    groups = [group for group in view.kept if group.key.role == role.name]
    return {
        "observedGeneration": scaler.metadata.generation,
        "replicas": len(groups),
        "ready": sum(group.ready for group in groups),
        "selector": selector(view.name, role.name),
    }

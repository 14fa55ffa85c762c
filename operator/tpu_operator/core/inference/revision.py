"""Revisions: all that the pods of a TPUInference are made from, under a name that follows from it.

What is left at its default is not part of it, so that an operator that knows more fields, or has another
default image, rolls nothing by itself. The images that a revision got when it was first seen stay its own.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from tpu_operator import catalog
from tpu_operator.api import TPUInferenceSpec
from tpu_operator.api.tpuinference_rules import REVISION_LENGTH

if TYPE_CHECKING:
    from tpu_operator.api import Model, RoleSpec, TPUInference
    from tpu_operator.catalog import SliceShape
    from tpu_operator.core.inference.images import Images
    from tpu_operator.core.inference.snapshot import ControllerRevision
    from tpu_operator.core.plan import Manifest

FIELDS: Final = ("model", "engine", "kvTransfer", "kvCompatibility", "drain")
ROLE_FIELDS: Final = ("name", "type", "tpu", "args", "env", "template")
ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
"""Letters and digits that make no words and are not taken for each other, as Kubernetes uses them."""
TOKEN_LENGTH: Final = 10


@dataclass(frozen=True)
class Revision:
    """One revision.

    Attributes:
        name: hash of all that follows.
        spec: the part of the spec that pods are made from.
        images: those of the installation when the revision was first seen.
        number: its place in the history, a higher one being newer; 0 while it is not remembered.
    """

    name: str
    spec: TPUInferenceSpec
    images: Images
    number: int = 0

    def role(self, name: str) -> RoleSpec | None:
        """The role of that name, if the revision has one."""
        return next((role for role in self.spec.roles if role.name == name), None)

    @property
    def kv_compat(self) -> str:
        """Token that is equal for revisions whose replicas can hand KV caches to each other."""
        return self.spec.kv_compatibility or digest(_kv_layout(self.spec, self.images.engine), TOKEN_LENGTH)


def shape_of(role: RoleSpec) -> SliceShape:
    """The slice of each replica of a role.

    Raises:
        CatalogError: its `tpu` names no shape that the catalog can make sense of.
    """
    return catalog.resolve(role.tpu.accelerator, role.tpu.topology, role.tpu.chips_per_host)


def asked_for(inference: TPUInference, images: Images) -> Revision:
    """The revision that the spec has now."""
    source = _source(inference.spec)
    name = digest([inference.metadata.name, source], REVISION_LENGTH)
    return Revision(name, TPUInferenceSpec.parse(source), images)


def remember(revision: Revision) -> Manifest:
    """What a ControllerRevision keeps of a revision."""
    images = {"engine": revision.images.engine, "sidecar": revision.images.sidecar}
    return {"spec": _source(revision.spec), "images": images}


def remembered(name: str, stored: ControllerRevision, images: Images) -> Revision | None:
    """The revision that a ControllerRevision keeps; None if it makes no sense.

    Args:
        name: name of the revision.
        stored: the ControllerRevision.
        images: those of the installation now, for what it does not keep.
    """
    kept = stored.data.get("images")
    try:
        spec = TPUInferenceSpec.parse(stored.data["spec"])
    except (ValidationError, KeyError, TypeError):
        return None
    own = {key: str(kept[key]) for key in ("engine", "sidecar") if isinstance(kept, dict) and kept.get(key)}
    return Revision(name, spec, replace(images, **own), max(1, stored.revision))


def digest(content: Any, length: int) -> str:
    """A name of so many characters for JSON content."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    number, name = int.from_bytes(hashlib.sha256(text.encode()).digest()), ""
    while len(name) < length:
        number, place = divmod(number, len(ALPHABET))
        name += ALPHABET[place]
    return name


def _source(spec: TPUInferenceSpec) -> Manifest:
    """The part of a spec that pods are made from, without defaults.

    Roles are in the order of their names, as theirs means nothing.
    """
    wire = _explicit(spec)
    sidecar = wire.get("routing", {}).get("sidecar")
    return {
        **{key: wire[key] for key in FIELDS if key in wire},
        "roles": [_role_source(role) for role in sorted(spec.roles, key=lambda role: role.name)],
        **({"routing": {"sidecar": sidecar}} if sidecar is not None else {}),
    }


def _role_source(role: RoleSpec) -> Manifest:
    wire = _explicit(role)
    # A null in a template removes what would be there otherwise.
    template = {"template": role.template} if role.template is not None else {}
    return {key: wire[key] for key in ROLE_FIELDS if key in wire} | template


def _explicit(model: Model) -> Manifest:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)


def _kv_layout(spec: TPUInferenceSpec, image: str) -> list[Any]:
    """What decides how KV caches are laid out: all that could, rather than too little."""
    source, engine = _source(spec), spec.engine
    shapes = [[role.get(key) for key in ("type", "tpu", "args")] for role in source["roles"]]
    return [
        engine.image or image,
        [engine.type, engine.command, engine.args],
        [spec.model.name, spec.model.source],
        sorted(shapes, key=json.dumps),
        source.get("kvTransfer"),
    ]

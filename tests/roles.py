"""TPUInferences by their roles, for tests of what runs in a role's pods and what leads to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.inference import IMAGES, UID
from tpu_operator.api import TPUInference
from tpu_operator.catalog import resolve

if TYPE_CHECKING:
    from tpu_operator.api import RoleSpec
    from tpu_operator.catalog import SliceShape

__all__ = ["FOUR_HOSTS", "IMAGES", "ONE_HOST", "UID", "inference", "role", "shape_of"]

ONE_HOST = {"accelerator": "v6e", "topology": "2x4", "chipsPerHost": 8}
FOUR_HOSTS = {"accelerator": "v6e", "topology": "4x4"}

Wire = dict[str, Any]


def role(name: str, kind: str | None = None, tpu: Wire = ONE_HOST, **more: Any) -> Wire:
    """A role as it is written; its type is its name unless said otherwise."""
    return {"name": name, "type": kind or name, "tpu": tpu} | more


def inference(*roles: Wire, name: str = "qwen", engine: Wire | None = None, **spec: Any) -> TPUInference:
    """A TPUInference of those roles; without any, of one that prefills and decodes on one host."""
    wire = {
        "model": {"name": "Qwen/Qwen3-32B"},
        "engine": {"type": "vllm", "image": "example/vllm:1"} | (engine or {}),
        "roles": list(roles) or [role("serve", "prefill-decode")],
    } | spec
    metadata = {"name": name, "namespace": "default", "uid": UID, "generation": 1, "resourceVersion": "1"}
    return TPUInference.parse({"metadata": metadata, "spec": wire})


def shape_of(spec: RoleSpec) -> SliceShape:
    """The slice of a role's replicas."""
    return resolve(spec.tpu.accelerator, spec.tpu.topology, spec.tpu.chips_per_host)

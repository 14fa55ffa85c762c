"""Where compiled programs and weights are kept, so that a rollout neither compiles nor downloads again.

Compiled programs fit one image, model, slice and command line: each of these has a directory of its own, to
which an old spec that is applied again comes back.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tpu_operator.api import CompileCache, ModelCache
    from tpu_operator.core.inference.engines.pod import Task
    from tpu_operator.core.plan import Manifest

COMPILED_DIR: Final = "/var/cache/tpu-operator"
WEIGHTS_DIR: Final = "/var/cache/weights"
MODEL_DIR: Final = "/models"
"""Where the claim of a `pvc://` source is."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Volumes, where they are, and the variables by which engines find them."""

    volumes: tuple[Manifest, ...] = ()
    mounts: tuple[Manifest, ...] = ()
    env: dict[str, str] = field(default_factory=dict)

    def __add__(self, other: Storage) -> Storage:
        return Storage(
            (*self.volumes, *other.volumes), (*self.mounts, *other.mounts), {**self.env, **other.env}
        )


@dataclass(frozen=True, slots=True)
class Weights:
    """How an engine is told which model to load.

    Attributes:
        location: a path, a URI, or a name at the hub of models.
        revision: of a model at the hub; empty for the newest.
    """

    location: str
    revision: str = ""

    @property
    def streamed(self) -> bool:
        """Whether the engine has to read it from object storage."""
        return self.location.startswith("gs://")


def weights(task: Task) -> Weights:
    """What `spec.model.source` says."""
    model = task.inference.spec.model
    scheme, _, rest = (model.source or f"hf://{model.name}").partition("://")
    if scheme == "hf":
        name, _, revision = rest.partition("@")
        return Weights(name, revision)
    if scheme == "pvc":
        return Weights("/".join([MODEL_DIR, *rest.split("/")[1:]]).rstrip("/"))
    return Weights(f"{scheme}://{rest}")


def cache_key(task: Task) -> str:
    """Name of the directory of compiled programs."""
    shape, model = task.seat.shape, task.inference.spec.model
    inputs = [
        task.image,
        [model.name, model.source],
        [shape.accelerator, shape.topology, shape.chips_per_host],
        [task.engine.type, task.engine.command, task.user_args],
    ]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]


def storage(task: Task) -> Storage:
    """All that a host keeps or reads."""
    model = task.inference.spec.model
    found = _compiled(task, task.engine.compile_cache)
    if model.cache:
        found += _weights_cache(model.cache)
    if model.source and model.source.startswith("pvc://"):
        claim = model.source.removeprefix("pvc://").split("/")[0]
        found += _mounted(
            "model", {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}, MODEL_DIR
        )
    return found


def _compiled(task: Task, cache: CompileCache | None) -> Storage:
    if cache is None:
        return Storage()
    root = f"{(cache.uri or COMPILED_DIR).rstrip('/')}/{cache_key(task)}"
    env = {"TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": root, "JAX_COMPILATION_CACHE_DIR": f"{root}/jax"}
    if cache.uri:
        return Storage(env=env)
    place = _mounted("compile-cache", _source(cache), COMPILED_DIR)
    return place + Storage(env=env | {"VLLM_CACHE_ROOT": f"{root}/vllm"})


def _weights_cache(cache: ModelCache) -> Storage:
    return _mounted("weights", _source(cache), WEIGHTS_DIR) + Storage(env={"HF_HOME": WEIGHTS_DIR})


def _source(cache: CompileCache | ModelCache) -> Manifest:
    if cache.persistent_volume_claim:
        return {"persistentVolumeClaim": {"claimName": cache.persistent_volume_claim}}
    return {"hostPath": {"path": cache.host_path, "type": "DirectoryOrCreate"}}


def _mounted(name: str, source: Manifest, path: str) -> Storage:
    mount: Manifest = {"name": name, "mountPath": path}
    return Storage(({"name": name, **source},), (mount,))

"""Engines: what the pods of a role run, as pure functions of the spec and the host's place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpu_operator.api import EngineType
from tpu_operator.core.inference.engines import custom, sglang, vllm
from tpu_operator.core.inference.engines.assemble import assemble
from tpu_operator.core.inference.engines.pod import EnginePod, Seat, Task

if TYPE_CHECKING:
    from tpu_operator.api import RoleSpec, TPUInference
    from tpu_operator.core.inference.images import Images

__all__ = ["EnginePod", "Seat", "for_role"]

_ADAPTERS: Final = {
    EngineType.VLLM: vllm.run,
    EngineType.SGLANG: sglang.run,
    EngineType.CUSTOM: custom.run,
}


def for_role(inference: TPUInference, role: RoleSpec, seat: Seat, images: Images) -> EnginePod:
    """What the main container of one host of a role's slice is made of.

    Args:
        inference: the whole object: model, engine, KV transfer, drain and sidecar.
        role: one of its roles.
        seat: the host.
        images: those of the installation.
    """
    task = Task(inference, role, seat, images)
    return assemble(task, _ADAPTERS[inference.spec.engine.type](task))

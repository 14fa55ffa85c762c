"""Engines: what the pods of a role run, as pure functions of the spec and the host's place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpu_operator.core.inference.engines.pod import EnginePod, Seat

if TYPE_CHECKING:
    from tpu_operator.api import Role, TPUInference

__all__ = ["EnginePod", "Seat", "for_role"]


def for_role(inference: TPUInference, role: Role, seat: Seat) -> EnginePod:
    """What the main container of one host of a role's slice is made of.

    Args:
        inference: the whole object: model, engine, KV transfer, drain and sidecar.
        role: one of its roles.
        seat: the host.
    """
    raise NotImplementedError

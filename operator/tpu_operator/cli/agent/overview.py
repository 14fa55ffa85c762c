"""What there is in a namespace: TPUJobs and TPUInferences in a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tpu_operator.engine.resources import INFERENCES, TPUJOBS

if TYPE_CHECKING:
    from tpu_operator.cli.server import Server

Object = dict[str, Any]


class Brief(msgspec.Struct, frozen=True):
    """A TPUJob or a TPUInference.

    Attributes:
        kind: TPUJob or TPUInference.
        namespace: where it is.
        name: its name.
        phase: `status.phase`; empty if no operator has looked at it yet.
        reason: why it does not run, or what holds its rollout; empty if nothing does.
        message: the same in words.
    """

    kind: str
    namespace: str
    name: str
    phase: str
    reason: str = ""
    message: str = ""


async def read(server: Server, *, everywhere: bool) -> list[Brief]:
    """All TPUJobs and TPUInferences of the namespace, or of all namespaces."""
    jobs = await server.read(TPUJOBS, Object, everywhere=everywhere)
    inferences = await server.try_read(INFERENCES, Object, everywhere=everywhere) or []
    return [
        *(brief(TPUJOBS.kind, wire) for wire in jobs),
        *(brief(INFERENCES.kind, wire) for wire in inferences),
    ]


def brief(kind: str, wire: Object) -> Brief:
    """An object of the API server in brief."""
    meta, status = wire["metadata"], wire.get("status", {})
    hold = status.get("rollout", {}).get("hold") or {}
    waits = status.get("pending") or {"reason": hold.get("gate", ""), "message": hold.get("reason", "")}
    failed = [c for c in status.get("conditions", []) if (c["type"], c["status"]) == ("Failed", "True")]
    why = failed[0] if failed else waits
    return Brief(
        kind,
        meta.get("namespace", ""),
        meta["name"],
        status.get("phase", ""),
        why.get("reason", ""),
        why.get("message", ""),
    )

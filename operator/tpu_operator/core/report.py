"""The launcher's termination message, as far as decisions read it (contract A4)."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

LAST: Final = ',"log":'
"""The last field; no JSON string holds this. Kubelets cut the messages of pods with many containers."""


class Earlier(msgspec.Struct, rename="camel", frozen=True):
    """How an earlier attempt ended on the same host, in brief."""

    attempt: int
    cause: str | None = None
    exit_code: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    signal: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    time: Annotated[float, msgspec.Meta(gt=0, lt=1 << 33)] | None = None
    error: str | None = None


class Report(msgspec.Struct, rename="camel", frozen=True):
    """What the launcher leaves behind; what does not have this form is not from it."""

    v: int
    cause: str | None = None
    signal: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    time: Annotated[float, msgspec.Meta(gt=0, lt=1 << 33)] | None = None
    error: str | None = None
    terminated: bool = False
    """It was told to stop before anything had failed."""
    attempt: Annotated[int, msgspec.Meta(ge=0)] | None = None
    earlier: tuple[Earlier, ...] = ()


def read(message: str) -> Report | None:
    """The report in a container's termination message, None when that is something else."""
    if not message.startswith("{"):
        return None
    whole, cut, _ = message.partition(LAST)
    return _decode(message) or (_decode(whole + "}") if cut else None)


def _decode(message: str) -> Report | None:
    try:
        return msgspec.json.decode(message, type=Report)
    except (msgspec.MsgspecError, RecursionError):
        return None

"""Something drawn once, or anew with every change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from tpu_operator.cli.command import Call, Exit

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime

    from tpu_operator.cli.follow import Follower
    from tpu_operator.cli.text import Style

TICK: Final = 5.0
"""Seconds after which ages are drawn anew where nothing has changed; no request is made for that."""

S = TypeVar("S")
M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Picture(Generic[S, M]):
    """How something is shown.

    Attributes:
        model: from what is seen of it to what is shown.
        draw: that as text.
        ended: the exit code, once there is nothing more to wait for.
    """

    model: Callable[[S, datetime], M]
    draw: Callable[[M, datetime, Style], list[str]]
    ended: Callable[[M], Exit | None] = field(default=lambda _: None)


def show(call: Call, picture: Picture[S, M], seen: S) -> None:
    """Answer with what is seen."""
    now = call.clock()
    model = picture.model(seen, now)
    call.show(model, lambda: picture.draw(model, now, call.terminal.style))


async def watch(
    call: Call, picture: Picture[S, M], following: AbstractAsyncContextManager[Follower[S]]
) -> int:
    """Draw with every change until the end; without a terminal, not for ages alone."""
    last: M | None = None
    async with following as follower:
        while True:
            try:
                seen = await follower.next(TICK if call.terminal.interactive and last else None)
            except TimeoutError:
                seen = follower.now()
            if seen is None:
                call.terminal.lines([f"{follower.name} is deleted"])
                return Exit.NOT_FOUND
            model = picture.model(seen, call.clock())
            if model != last or call.terminal.interactive:
                _again(call, picture, model)
            last = model
            if (code := picture.ended(model)) is not None:
                return code


def _again(call: Call, picture: Picture[S, M], model: M) -> None:
    if call.format != "text":
        call.show(model, list)
        return
    lines = picture.draw(model, call.clock(), call.terminal.style)
    if call.terminal.interactive:
        call.terminal.redraw(lines)
    else:
        call.terminal.lines([*lines, ""])

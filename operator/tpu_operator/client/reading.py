"""Requests for logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpu_operator.cli import logs
from tpu_operator.cli.command import CommandError, Exit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpu_operator.cli.lines import Line


def query(container: str, tail: int | None, since: int | None) -> dict[str, str]:
    """Parameters of the requests for logs."""
    limits = {"tailLines": tail, "sinceSeconds": since}
    return logs.everything(container) | {
        name: str(value) for name, value in limits.items() if value is not None
    }


def some(found: Sequence[list[Line]]) -> Sequence[list[Line]]:
    """Logs, if there are hosts at all.

    Raises:
        CommandError: there are none.
    """
    if not found:
        advice = "wait until its pods are there; its status says what it waits for"
        raise CommandError("there are no pods of these hosts", Exit.NOT_FOUND, advice)
    return found

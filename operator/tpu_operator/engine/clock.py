"""The time of day, for what is written down. What is measured goes by the event loop's clock instead."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]
"""Tells the time of day, in UTC."""


def wall_clock() -> datetime:
    """This machine's time of day."""
    return datetime.now(UTC)

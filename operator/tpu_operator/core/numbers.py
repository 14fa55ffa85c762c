"""Whole numbers in strings that anybody can have written: labels, resources, variables."""

from __future__ import annotations

from typing import Final

MAX_DIGITS: Final = 9
"""Longer numbers are none of ours, and Python refuses to read very long ones."""


def whole(text: str | None) -> int | None:
    """The number that a string of up to nine digits stands for, None for any other string."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= MAX_DIGITS else None

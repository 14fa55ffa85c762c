"""Numbers in strings that anybody can have written: labels, resources, variables."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

MAX_DIGITS: Final = 9
"""Longer numbers are none of ours, and Python refuses to read very long ones."""


def whole(text: str | None) -> int | None:
    """The number that a string of up to nine digits stands for, None for any other string."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= MAX_DIGITS else None


_POWERS: Final = (-9, -6, -3, 3, 6, 9, 12, 15, 18)
_QUANTITY: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)([numkKMGTPE]?i?)")
_DECIMAL: Final = {suffix: Decimal(10) ** power for suffix, power in zip("numkMGTPE", _POWERS, strict=True)}


def quantity(value: str | float) -> Decimal | None:
    """The amount that a Kubernetes quantity stands for; None for what is none.

    The API server writes them in its own way: 1000m as 1, 0.5 as 500m.
    """
    found = _QUANTITY.fullmatch(str(value))
    if not found:
        return None
    number, suffix = found.groups()
    if suffix.endswith("i"):
        return Decimal(number) * 1024 ** ("KMGTPE".index(suffix[0]) + 1) if suffix[0] in "KMGTPE" else None
    factor = _DECIMAL.get(suffix, Decimal(1) if not suffix else None)
    return Decimal(number) * factor if factor is not None else None

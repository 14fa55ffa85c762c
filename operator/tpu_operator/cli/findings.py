"""What a check finds."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Finding(msgspec.Struct, frozen=True, rename="camel"):
    """What a check has found.

    Attributes:
        check: name of the check.
        severity: how bad it is.
        found: what it is, in a sentence.
        remedy: what to do about it.
    """

    check: str
    severity: Severity
    found: str
    remedy: str = ""

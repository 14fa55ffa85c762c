"""Command lines of engines: the adapter's flags behind those that the user has given."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def flag(arguments: Sequence[str], *spellings: str) -> str | None:
    """Value of a flag, as `--flag value`, `--flag=value` or alone (then empty); the last one wins.

    Args:
        arguments: the command line.
        spellings: all names that the engine knows the flag by.
    """
    found: str | None = None
    for index, argument in enumerate(arguments):
        name, separator, value = argument.partition("=")
        if name in spellings:
            following = arguments[index + 1] if index + 1 < len(arguments) else ""
            found = value if separator else "" if following.startswith("--") else following
    return found


def number(arguments: Sequence[str], *spellings: str) -> int | None:
    """Value of a flag that is a whole number; None where it is absent or none."""
    value = flag(arguments, *spellings)
    return int(value) if value and value.isdecimal() else None


def with_flags(ours: Iterable[tuple[str, ...]], user: Sequence[str]) -> list[str]:
    """Our flags, each with its values, without those that the user has given; then the user's."""
    kept = [part for each in ours if flag(user, each[0]) is None for part in each]
    return [*kept, *user]

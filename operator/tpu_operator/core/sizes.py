"""How much room text takes in an object, of which the API server keeps 1.5 MiB at most."""

from __future__ import annotations

from typing import Final

_SHORT: Final = frozenset('"\\\n\r\t\b\f')
_ESCAPED: Final = frozenset("<>&\u2028\u2029")
"""What Go writes as six bytes, beside control characters: its JSON may be put into HTML."""


def clipped(text: str, room: int) -> str:
    """The beginning of a text that takes no more bytes than that as JSON of the API server's."""
    for index, char in enumerate(text):
        room -= _bytes(char)
        if room < 0:
            return text[:index]
    return text


def _bytes(char: str) -> int:
    if char in _SHORT:
        return 2
    return 6 if char in _ESCAPED or char < " " else len(char.encode(errors="surrogatepass"))

"""Fields of Kubernetes kinds, read from the Go types that their operator is made of."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r'^\t(?:\w+ )?([\w.*\[\]]+) `json:"(\w*)(?:,(\w+))?', re.MULTILINE)


@cache
def structs(directory: Path) -> dict[str, dict[str, str]]:
    """Types of the fields of each struct of a package, by their names in JSON."""
    text = "\n".join(path.read_text() for path in directory.glob("*.go"))
    bodies = dict(STRUCT.findall(text))
    return {name: dict(_fields(name, bodies)) for name in bodies}


def _fields(name: str, bodies: dict[str, str]) -> Iterator[tuple[str, str]]:
    for type_, key, option in FIELD.findall(bodies[name]):
        if option == "inline":
            yield from _fields(_base(type_), bodies) if _base(type_) in bodies else ()
        elif key:
            yield key, _base(type_)


def _base(type_: str) -> str:
    return type_.replace("[]", "").lstrip("*")


def unknown(value: Any, name: str, directory: Path, path: str) -> Iterator[str]:
    """Fields of a value that its type does not have: an API server would drop them."""
    found = structs(directory).get(name)
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from unknown(item, name, directory, f"{path}[{index}]")
    elif isinstance(value, dict) and found is not None:
        for key, inner in value.items():
            if key in found:
                yield from unknown(inner, found[key], directory, f"{path}.{key}")
            else:
                yield f"{path}.{key}"

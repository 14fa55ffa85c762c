"""The field reference in docs/api.md, made from the same schemas as the CRDs.

python -m tpu_operator.api.reference --write docs/api.md
python -m tpu_operator.api.reference --check docs/api.md   fail unless it is up to date
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tpu_operator.api.common import API_VERSION
from tpu_operator.api.crd import KINDS, Kind
from tpu_operator.api.schema import structural

_HEAD = f"""<!-- Generated from operator/tpu_operator/api by `make generate`. -->
# API reference

Group and version `{API_VERSION}`. `kubectl explain tpujob.spec` shows the same text.
Fields in **bold** are required.
"""


def render() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *(line for kind in KINDS for line in _kind(kind))])


def _kind(kind: Kind) -> Iterator[str]:
    schema = structural(kind.model)
    yield f"## {kind.model.__name__}\n"
    yield f"{schema['description']}\n"
    for part in ("spec", "status"):
        yield "| field | type | meaning |"
        yield "|---|---|---|"
        yield from _rows(schema["properties"][part], part)
        yield ""


def _rows(schema: dict[str, Any], path: str) -> Iterator[str]:
    """Yield a row for every field below an object, depth first."""
    for name, field in schema.get("properties", {}).items():
        inner, mark = (field["items"], "[]") if field.get("type") == "array" else (field, "")
        here = f"{path}.{name}{mark}"
        shown = f"**`{here}`**" if name in schema.get("required", ()) else f"`{here}`"
        yield f"| {shown} | {type_of(field)} | {field['description'].replace('|', '&#124;')} |"
        yield from _rows(inner, here)


def type_of(schema: dict[str, Any]) -> str:
    """The type of a field, in words."""
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "x-kubernetes-int-or-string" in schema:
        return "integer or string"
    if schema["type"] == "array":
        return f"list of {type_of(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map to {type_of(schema['additionalProperties'])}"
    if schema.get("format") == "date-time":
        return "time"
    bounds = [f"{sign} {schema[key]}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in schema]
    return " ".join([schema["type"], ", ".join(bounds)]).strip()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tpu_operator.api.reference", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", type=Path, metavar="FILE")
    action.add_argument("--check", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if options.write:
        options.write.write_text(render(), encoding="utf-8")
        return 0
    if options.check.exists() and options.check.read_text(encoding="utf-8") == render():
        return 0
    sys.stderr.write(f"{options.check} is out of date: run `make generate` and commit the result\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())

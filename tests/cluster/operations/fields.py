"""The fields and rules of the TPUJob's schema, as the committed CRD has them, and edits of specs by path.

A path is written without `spec.`: `run.env[].name` is the name of the first variable, and
`run.resources.limits{}` one amount.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Object = dict[str, Any]

CRD: Final = Path(__file__).parents[3] / "crds" / "tpu-operator.dev_tpujobs.yaml"
UNSET: Final = type("Unset", (), {"__repr__": lambda _: "unset"})()
"""In place of a value: remove the field."""
KEYS: Final = {"run.resources.requests{}": "cpu", "run.resources.limits{}": "cpu"}
"""Keys of maps by path, where any key will not do."""
KEY: Final = "example.com/key"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the spec.

    Attributes:
        path: where it is.
        schema: its schema.
        required: whether it may not be left out.
    """

    path: str
    schema: Object
    required: bool

    @property
    def kind(self) -> str:
        """What its values are: a type of JSON, or `enum`, `map`, `free` or `quantity`."""
        schema = self.schema
        if "enum" in schema:
            return "enum"
        if schema.get("x-kubernetes-int-or-string"):
            return "quantity"
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            return "free"
        if "additionalProperties" in schema:
            return "map"
        return str(schema["type"])


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule in CEL.

    Attributes:
        field: the field that it speaks of, from the object's root, such as `spec.tpu`.
        says: pattern of its message.
    """

    field: str
    says: str

    def explains(self, refusal: str) -> bool:
        """Whether a refusal is this rule's, with its field and its message."""
        return bool(re.search(rf"{pattern(self.field)}: [^:]+: .*{self.says}", refusal, re.DOTALL))


def root() -> Object:
    """The schema of a TPUJob."""
    crd = yaml.safe_load(CRD.read_text())
    found: Object = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def fields() -> dict[str, Field]:
    """All fields of the spec, by path."""
    return {
        field.path: field for field in _walk(root()["properties"]["spec"], "", required=True) if field.path
    }


def rules() -> list[Rule]:
    """All rules of the schema, apart from those of the status."""
    schema = root()
    top = _rules_of(schema, "")
    return [*top, *_walk_rules(schema["properties"]["spec"], "spec")]


def _walk(schema: Object, path: str, *, required: bool) -> Iterator[Field]:
    yield Field(path, schema, required)
    for below, inner, needed in _children(schema, path):
        yield from _walk(inner, below, required=needed)


def _walk_rules(schema: Object, path: str) -> Iterator[Rule]:
    yield from _rules_of(schema, path)
    for below, inner, _ in _children(schema, path):
        yield from _walk_rules(inner, below)


def _children(schema: Object, path: str) -> Iterator[tuple[str, Object, bool]]:
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}.{name}".lstrip("."), inner, name in schema.get("required", ())
    if "items" in schema:
        yield f"{path}[]", schema["items"], True
    if "additionalProperties" in schema:
        yield f"{path}{{}}", schema["additionalProperties"], True


def _rules_of(schema: Object, path: str) -> Iterator[Rule]:
    for rule in schema.get("x-kubernetes-validations", ()):
        field = f"{path}{rule.get('fieldPath', '')}".lstrip(".")
        message = rule.get("message") or json.JSONDecoder().raw_decode(rule["messageExpression"])[0]
        yield Rule(field, re.sub("%[sd]", ".*", re.escape(message)))


def pattern(path: str) -> str:
    """Pattern of the way in which the API server writes a path."""
    return re.escape(path).replace(r"\[\]", r"\[\d+\]").replace(r"\{\}", r"(\.|\[)[^:]+")


def edited(spec: Object, settings: Mapping[str, Any], schema: Mapping[str, Field]) -> Object:
    """A copy of a spec with other values at some paths; what is missing above them is made."""
    result = deepcopy(spec)
    for path, value in settings.items():
        _set(result, path, value, schema)
    return result


def _set(spec: Object, path: str, value: Any, schema: Mapping[str, Field]) -> None:
    target: Any = spec
    *above, last = _steps(path)
    for step, where in above:
        target = _enter(target, step, where, schema, make=value is not UNSET)
        if target is None:
            return
    step = last[0]
    if value is UNSET:
        if isinstance(target, dict):
            target.pop(step, None)
    elif isinstance(target, list):
        target[:1] = [deepcopy(value)]
    else:
        target[step] = deepcopy(value)


def _enter(target: Any, step: str | int, where: str, schema: Mapping[str, Field], *, make: bool) -> Any:
    """What is one step further down; None if it is not there and should not be made."""
    there = len(target) > 0 if isinstance(target, list) else target.get(step) is not None
    if not there and not make:
        return None
    if not there and isinstance(target, list):
        target.append(skeleton(where, schema))
    elif not there:
        target[step] = skeleton(where, schema)
    return target[step]


def _steps(path: str) -> list[tuple[Any, str]]:
    """Keys and indexes that lead to a path, each with the path so far."""
    found: list[tuple[Any, str]] = []
    for match in re.finditer(r"[^.\[\]{}]+|\[\]|\{\}", path):
        where, word = path[: match.end()], match.group()
        found.append((0 if word == "[]" else KEYS.get(where, KEY) if word == "{}" else word, where))
    return found


def skeleton(path: str, schema: Mapping[str, Field]) -> Any:
    """The least that a field may be set to, so that something can be set in it."""
    field = schema[path]
    if field.kind == "array":
        return []
    required = field.schema.get("required", ())
    return {name: deepcopy(SKELETONS[f"{path}.{name}"]) for name in required}


SKELETONS: Final[Object] = {
    "tpu.accelerator": "v5e",
    "tpu.topology": "2x2",
    "run.command": ["python"],
    "run.env[].name": "EXAMPLE",
    "run.resources.claims[].name": "example",
    "failurePolicy.rules[].action": "Restart",
}
"""Values of required fields in what is made on the way to others."""

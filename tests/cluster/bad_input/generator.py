"""Objects from the schemas of our kinds: made of what people write, with something odd at a few places."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from tests.cluster.operations.templates import BAD_HEADS, BAD_POD_SPECS, POD_SPECS
from tests.cluster.operations.values import BASE

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    Object = dict[str, Any]
    Schema = Mapping[str, Any]

ROOT: Final = Path(__file__).parents[3]
STRINGS: Final = [
    "",
    " ",
    "a",
    "A_B",
    "-",
    "2x2",
    "4x4",
    "0x0",
    "v5e",
    "tpu7x",
    "example/train:1",
    "gs://bucket/path",
    "hf://a/b@c",
    "pvc://claim/x",
    "/var/cache",
    "../../etc",
    "$(TPU_WORKER_ID)",
    "$(id); `id`",
    "x" * 63,
    "x" * 64,
    "x" * 5000,
    "日本語",
    "\u202e\u0000\ud7ff",
    "null",
    "1",
    "0.5",
    "10Gi",
    "%",
    "100%",
    "{{ .Values }}",
    "\n---\nkind: Secret",
]
"""What may stand in any string."""
INTEGERS: Final = [0, 1, 2, 3, 8, 100, 65536, 2**31 - 1, 2**31, 2**63 - 1, 2**64, -1, -(2**63)]
ODD: Final[list[Any]] = [
    None,
    True,
    0,
    -1,
    1.5,
    1e308,
    "",
    "x",
    [],
    {},
    [[]],
    [None],
    {"": ""},
    {"a": {"b": [1]}},
]
"""Of the wrong type nearly everywhere."""
SPECS: Final = [*POD_SPECS, *(spec for spec, *_ in (*BAD_POD_SPECS, *BAD_HEADS))]
NAMES: Final = ["UPPER", "with.dots", "-start", "end-", "x" * 64, "x" * 260, "with space", "ünï", "1", "a/b"]
PLAUSIBLE: Final = 0.6
"""How often a changed field gets a value of its own type."""
LIKELY: Final = 0.12
"""How often an optional field is set where an object is made."""
DEEP: Final = 0.85
"""How often a change is made further down rather than here."""


@dataclass(frozen=True)
class Kind:
    """A kind of ours.

    Attributes:
        name: the kind.
        plural: as it is in paths.
        schema: of its spec.
        bases: specs that people write.
    """

    name: str
    plural: str
    schema: Schema
    bases: list[Object]


def kinds() -> list[Kind]:
    """TPUJob and TPUInference, as their committed CRDs have them."""
    return [_kind("TPUJob", [BASE]), _kind("TPUInference", [])]


def _kind(name: str, bases: list[Object]) -> Kind:
    plural = f"{name.lower()}s"
    crd = yaml.safe_load((ROOT / "crds" / f"tpu-operator.dev_{plural}.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    files = sorted((ROOT / "examples").glob("*.yaml"))
    documents = [each for file in files for each in yaml.safe_load_all(file.read_text())]
    return Kind(name, plural, schema, bases + [each["spec"] for each in documents if each["kind"] == name])


def generate(kind: Kind, number: int, rng: random.Random) -> Object:
    """An object of a kind, with a name of its own in most cases."""
    spec: Any = deepcopy(rng.choice(kind.bases))
    for _ in range(rng.choice([0, 1, 1, 1, 2, 2, 3, 5])):
        spec = _mutated(spec, kind.schema, rng)
    name = rng.choice(NAMES) if rng.random() < 0.01 else f"{kind.name.lower()}-{number}"
    return {
        "apiVersion": "tpu-operator.dev/v1alpha1",
        "kind": kind.name,
        "metadata": {"name": name},
        "spec": spec,
    }


def _mutated(value: Any, schema: Schema, rng: random.Random) -> Any:
    """A value in which something is otherwise, here or further down."""
    if rng.random() < DEEP:
        if isinstance(value, dict) and schema.get("properties"):
            return _mutated_object(value, schema, rng)
        if isinstance(value, list) and "items" in schema:
            return _mutated_list(value, schema["items"], rng)
        if isinstance(value, dict) and isinstance(schema.get("additionalProperties"), dict):
            return {**value, rng.choice(STRINGS): _other(schema["additionalProperties"], rng)}
    return _other(schema, rng)


def _mutated_object(value: Object, schema: Schema, rng: random.Random) -> Object:
    result = dict(value)
    if rng.random() < 0.03:
        result[rng.choice(["bogus", "Spec", "$ref", ""])] = rng.choice(ODD)
        return result
    name = rng.choice(sorted(schema["properties"]))
    inner = schema["properties"][name]
    if name in result and rng.random() < 0.1:
        del result[name]
    elif name in result:
        result[name] = _mutated(result[name], inner, rng)
    else:
        result[name] = _other(inner, rng)
    return result


def _mutated_list(value: list[Any], items: Schema, rng: random.Random) -> list[Any]:
    result = list(value)
    at = rng.randrange(len(result) + 1)
    if at == len(result):
        return [*result, _other(items, rng)]
    change = rng.random()
    if change < 0.1:
        return result * 2
    if change < 0.2:
        del result[at]
    else:
        result[at] = _mutated(result[at], items, rng)
    return result


def _other(schema: Schema, rng: random.Random) -> Any:
    return _made(schema, rng) if rng.random() < PLAUSIBLE else rng.choice(ODD)


def _made(schema: Schema, rng: random.Random) -> Any:
    """A value of the right type, which a rule may still refuse."""
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return rng.choice([*STRINGS, *INTEGERS])
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return deepcopy(rng.choice([*SPECS, *ODD]))
    makers: dict[str, Callable[[Schema, random.Random], Any]] = {
        "object": _made_object,
        "array": lambda of, rng: [_made(of["items"], rng) for _ in range(rng.choice([0, 1, 1, 2, 9]))],
        "boolean": lambda _, rng: rng.random() < 0.5,
        "integer": _made_integer,
        "string": _made_string,
        "number": lambda _, rng: rng.choice([0, 0.5, 1, 100]),
    }
    return makers[schema["type"]](schema, rng)


def _made_object(schema: Schema, rng: random.Random) -> Object:
    properties, required = schema.get("properties", {}), schema.get("required", ())
    made = {
        name: _made(inner, rng)
        for name, inner in properties.items()
        if name in required or rng.random() < LIKELY
    }
    if isinstance(schema.get("additionalProperties"), dict):
        made[rng.choice(["cpu", "memory", "example.com/key", ""])] = _made(
            schema["additionalProperties"], rng
        )
    return made


def _made_integer(schema: Schema, rng: random.Random) -> int:
    low, high = schema.get("minimum", -1), schema.get("maximum", 2**31)
    return int(rng.choice([low, low + 1, high, high + 1, low - 1, rng.choice(INTEGERS)]))


def _made_string(schema: Schema, rng: random.Random) -> str:
    longest = schema.get("maxLength", 256)
    return str(rng.choice([*STRINGS, "a" * longest, "a" * (longest + 1)]))

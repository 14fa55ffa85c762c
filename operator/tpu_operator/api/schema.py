"""From pydantic's JSON schema to the structural schema that Kubernetes accepts in a CRD.

Kubernetes takes a subset of OpenAPI v3: no references, no unions, no null, one type at every node. What
can be said in it is translated; what cannot is refused when the CRD is generated, not when it is installed.
"""

from typing import Any

from pydantic import BaseModel

from tpu_operator.api.extensions import SERVER_DEFAULT

Schema = dict[str, Any]

_KEPT = frozenset(
    {
        *("type", "description", "format", "enum", "pattern", "required", "anyOf", SERVER_DEFAULT),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    }
)
_TRANSLATED = frozenset({"properties", "items", "additionalProperties", "const", "uniqueItems"})
_DROPPED = frozenset({"title", "examples", "deprecated", "default", "propertyNames"})
_NO_UNIONS = "unions do not exist in CRDs: use one optional field per case and a rule"
_REFUSED = {
    "prefixItems": "tuples do not exist in CRDs: use a list or an object",
    "patternProperties": "patterns of keys do not exist in CRDs: use a dict",
    "discriminator": _NO_UNIONS,
    "oneOf": _NO_UNIONS,
    "allOf": "allOf cannot carry types in CRDs: spell the object out",
    "not": "'not' cannot carry types in CRDs: use a rule",
}
_INT_OR_STRING: Schema = {
    "x-kubernetes-int-or-string": True,
    "anyOf": [{"type": "integer"}, {"type": "string"}],
}
_INT32_MAX = 2**31 - 1


class SchemaError(ValueError):
    """A model says something that a CRD cannot; the message names the field and the way out."""


def structural(model: type[BaseModel]) -> Schema:
    """Return the structural schema of a model.

    Raises:
        SchemaError: the model uses something that Kubernetes does not accept.
    """
    schema = model.model_json_schema(by_alias=True)
    definitions = schema.pop("$defs", {})
    return _node(_inline(schema, definitions, ()), model.__name__)


def _inline(node: Any, definitions: Schema, parents: tuple[str, ...]) -> Any:
    """Put definitions in place of references; what stands beside a reference wins."""
    if isinstance(node, list):
        return [_inline(item, definitions, parents) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if name in parents:
            raise SchemaError(f"{name}: contains itself, which CRDs cannot say: use a free object inside")
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return _inline(definitions[name] | beside, definitions, (*parents, name))
    return {key: _inline(value, definitions, parents) for key, value in node.items()}


def _node(schema: Schema, path: str) -> Schema:
    """Translate one node and all below it."""
    schema = _without_null(schema, path)
    _refuse(schema, path)
    result = {key: value for key, value in schema.items() if key in _KEPT or key.startswith("x-kubernetes-")}
    result |= _respelled(schema)
    if "properties" in schema:
        result["properties"] = {
            name: _property(value, f"{path}.{name}") for name, value in schema["properties"].items()
        }
    elif isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = _node(schema["additionalProperties"], f"{path}{{}}")
    if "items" in schema:
        result["items"] = _node(schema["items"], f"{path}[]")
        _check_list(result, path)
    return _ordered(result)


def _property(schema: Schema, path: str) -> Schema:
    result = _node(schema, path)
    if not result.get("description"):
        raise SchemaError(f"{path}: has no description: give its Field one")
    default = schema.get("default")
    if result.pop(SERVER_DEFAULT, False):
        result["default"] = default
    if isinstance(default, str | int) and default:
        result["description"] += f" Default: {default}."
    return result


def _without_null(schema: Schema, path: str) -> Schema:
    """Absent and null are the same to Kubernetes, so an optional T is a T that is not required."""
    if "anyOf" not in schema:
        return schema
    options: list[Schema] = [option for option in schema["anyOf"] if option != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    if len(options) == 1:
        return options[0] | rest
    if sorted(options, key=str) == _INT_OR_STRING["anyOf"]:
        return rest | _INT_OR_STRING
    raise SchemaError(f"{path}: {_NO_UNIONS}")


def _refuse(schema: Schema, path: str) -> None:
    for key in sorted(schema.keys() - _KEPT - _TRANSLATED - _DROPPED):
        if not key.startswith("x-kubernetes-"):
            advice = _REFUSED.get(key, f"{key} does not exist in CRDs: use a rule")
            raise SchemaError(f"{path}: {advice}")
    if any(look in schema.get("pattern", "") for look in ("(?=", "(?!", "(?<")):
        raise SchemaError(f"{path}: the pattern looks around, which RE2 cannot: write it without")
    if schema.keys().isdisjoint({"type", "x-kubernetes-int-or-string"}):
        raise SchemaError(f"{path}: has no type: name one, or use a free object")
    _refuse_open_object(schema, path)


def _refuse_open_object(schema: Schema, path: str) -> None:
    extra = schema.get("additionalProperties")
    if extra is False:
        raise SchemaError(f"{path}: cannot forbid fields (the server drops unknown ones): use extra='ignore'")
    if isinstance(extra, dict) and "properties" in schema:
        raise SchemaError(f"{path}: cannot have both fields and free keys: move the keys into a dict field")
    if extra is True and schema.keys().isdisjoint({"x-kubernetes-preserve-unknown-fields", "properties"}):
        raise SchemaError(f"{path}: holds anything: name its fields, or use a free object")


def _respelled(schema: Schema) -> Schema:
    """Return the keys that Kubernetes spells differently, and those that it needs in addition."""
    result: Schema = {}
    if "const" in schema:
        result["enum"] = [schema["const"]]
    for bound in ("Minimum", "Maximum"):
        if f"exclusive{bound}" in schema:
            result |= {bound.lower(): schema[f"exclusive{bound}"], f"exclusive{bound}": True}
    if schema.get("type") == "integer":
        result["format"] = "int32" if schema.get("maximum", _INT32_MAX + 1) <= _INT32_MAX else "int64"
    if schema.get("uniqueItems"):
        result["x-kubernetes-list-type"] = "set"
    return result


def _check_list(schema: Schema, path: str) -> None:
    """Demand a list type: without one, server-side apply replaces lists as a whole by accident."""
    kind = schema.get("x-kubernetes-list-type")
    if kind not in {"atomic", "set", "map"}:
        raise SchemaError(f"{path}: has no list type: mark it as atomic, set or map")
    if kind == "set" and schema["items"].get("type") in {"object", "array"}:
        raise SchemaError(f"{path}: only scalars can be a set: mark it as a map by a key, or atomic")
    for key in schema.get("x-kubernetes-list-map-keys", ()):
        if key not in schema["items"].get("required", ()):
            raise SchemaError(f"{path}: its key {key} is optional: make it required")


def _ordered(schema: Schema) -> Schema:
    """Put what a reader looks for first and what is long last; the order never depends on the model."""
    first = [key for key in ("type", "description", "default", "required") if key in schema]
    last = [key for key in ("items", "properties") if key in schema]
    middle = sorted(schema.keys() - set(first) - set(last))
    return {key: schema[key] for key in (*first, *middle, *last)}

"""From pydantic's JSON schema to the structural schema that Kubernetes accepts in a CRD.

Kubernetes takes a subset of OpenAPI v3: no references, no unions, no null, one type at every node. What
can be said in it is translated; what cannot is refused when the CRD is generated, not when it is installed.
"""

from typing import Any

from pydantic import BaseModel

from tpu_operator.api.extensions import SERVER_DEFAULT

Schema = dict[str, Any]

_REFS = "#/$defs/"
_DROPPED = frozenset(
    {
        *("$defs", "title", "examples", "deprecated", "default"),
        *("additionalProperties", "propertyNames", "const", "uniqueItems"),
    }
)
_KEPT = frozenset(
    {
        *("type", "description", "format", "enum", "pattern", "required", "properties", "items"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        *("anyOf", SERVER_DEFAULT),
    }
)
_REFUSED = {
    "prefixItems": "tuples do not exist in CRDs: use a list or an object",
    "patternProperties": "patterns of keys do not exist in CRDs: use a dict",
    "discriminator": "tagged unions do not exist in CRDs: use one optional field per case and a rule",
    "oneOf": "unions do not exist in CRDs: use one optional field per case and a rule",
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
    return _node(schema, schema.get("$defs", {}), model.__name__, ())


def _node(schema: Schema, defs: Schema, path: str, parents: tuple[str, ...]) -> Schema:
    """Translate one node; `parents` are the definitions it is inside of, to find recursion."""
    schema = _without_null(schema, path)
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REFS)
        if name in parents:
            raise SchemaError(f"{path}: {name} contains itself: use a free object in its place")
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        return _node(defs[name] | siblings, defs, path, (*parents, name))
    if {"type": "integer"} in schema.get("anyOf", ()) and "type" not in schema:
        return _ordered(schema | _INT_OR_STRING)
    _refuse(schema, path)
    result = {key: value for key, value in schema.items() if key not in _DROPPED}
    result |= _kubernetes(schema)
    if "properties" in schema:
        result["properties"] = {
            name: _property(value, defs, f"{path}.{name}", parents)
            for name, value in schema["properties"].items()
        }
    if "items" in schema:
        result["items"] = _node(schema["items"], defs, f"{path}[]", parents)
        _check_list(result, path)
    if isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = _node(schema["additionalProperties"], defs, f"{path}{{}}", parents)
    return _ordered(result)


def _property(schema: Schema, defs: Schema, path: str, parents: tuple[str, ...]) -> Schema:
    result = _node(schema, defs, path, parents)
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
        return rest | {"anyOf": _INT_OR_STRING["anyOf"]}
    raise SchemaError(f"{path}: unions do not exist in CRDs: use one optional field per case and a rule")


def _refuse(schema: Schema, path: str) -> None:
    for key, advice in _REFUSED.items():
        if key in schema:
            raise SchemaError(f"{path}: {advice}")
    for key in schema:
        if key not in _KEPT | _DROPPED and not key.startswith("x-kubernetes-"):
            raise SchemaError(f"{path}: {key} does not exist in CRDs: use a rule")
    if any(look in schema.get("pattern", "") for look in ("(?=", "(?!", "(?<")):
        raise SchemaError(f"{path}: the pattern looks around, which RE2 cannot: write it without")
    if "const" not in schema and "type" not in schema:
        raise SchemaError(f"{path}: has no type: name one, or use a free object")
    free = "x-kubernetes-preserve-unknown-fields" in schema or "properties" in schema
    if schema.get("additionalProperties") is True and not free:
        raise SchemaError(f"{path}: holds anything: name its fields, or use a free object")
    if schema.get("additionalProperties") is False:
        raise SchemaError(f"{path}: cannot forbid fields (the server drops unknown ones): use extra='ignore'")


def _kubernetes(schema: Schema) -> Schema:
    """Return the keys that Kubernetes spells differently, and those that it needs in addition."""
    result: Schema = {}
    if "const" in schema:
        result |= {"enum": [schema["const"]]}
    for bound in ("Minimum", "Maximum"):
        if f"exclusive{bound}" in schema:
            result |= {bound.lower(): schema[f"exclusive{bound}"], f"exclusive{bound}": True}
    if schema.get("type") == "integer":
        result["format"] = "int32" if schema.get("maximum", _INT32_MAX + 1) <= _INT32_MAX else "int64"
    if schema.get("uniqueItems"):
        result["x-kubernetes-list-type"] = "set"
    return result


def _check_list(schema: Schema, path: str) -> None:
    kind = schema.get("x-kubernetes-list-type")
    if kind is None:
        raise SchemaError(f"{path}: has no list type: mark it as atomic, set or map")
    required = schema["items"].get("required", [])
    for key in schema.get("x-kubernetes-list-map-keys", ()):
        if key not in required:
            raise SchemaError(f"{path}: its key {key} is optional: make it required")


def _ordered(schema: Schema) -> Schema:
    """Put what a reader looks for first; the rest is sorted, so that the output is stable."""
    first = [key for key in ("type", "description", "default", "required") if key in schema]
    rest = sorted(key for key in schema if key not in first and key != "properties")
    last = ["properties"] if "properties" in schema else []
    return {key: schema[key] for key in (*first, *rest, *last)}

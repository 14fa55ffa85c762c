"""Small vocabulary for the Kubernetes extensions that models carry in their JSON schema.

`api.schema` passes keys that start with `x-kubernetes-` through to the CRD, and turns `SERVER_DEFAULT`
into a default that the API server fills in.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

Rule = dict[str, str]
"""One entry of `x-kubernetes-validations`."""

SERVER_DEFAULT = "server-default"
"""Marks a field whose default the API server writes into stored objects. Rare: see docs/adr/0002."""

FREE_OBJECT: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
"""An object whose fields Kubernetes itself defines and checks, such as a pod's spec."""

POD_TEMPLATE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "metadata": {
            "type": "object",
            "description": "Labels and annotations of the pod.",
            "properties": {
                key: {
                    "type": "object",
                    "description": f"{key.capitalize()} of the pod.",
                    "additionalProperties": {"type": "string"},
                }
                for key in ("labels", "annotations")
            },
        },
        "spec": {"description": "Spec of the pod, as in a Pod.", **FREE_OBJECT},
    },
}
"""A partial PodTemplateSpec: the API server checks its fields when the pods are created."""

ATOMIC_LIST: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
SET_LIST: dict[str, Any] = {"x-kubernetes-list-type": "set"}


def map_list(key: str) -> dict[str, Any]:
    """Mark a list of objects as a map by `key`, so that several writers can own entries of it."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


def rule(cel: str, message: str, *, values: Sequence[str] = (), path: str = "", reason: str = "") -> Rule:
    """Build one validation rule.

    Args:
        cel: CEL expression that holds for valid objects.
        message: what is wrong and what to write instead, with a %s or %d for each of
        values: CEL expressions of strings or integers.
        path: field below the object that the rule sits on, such as ".topology".
        reason: kind of error; the API server's default is FieldValueInvalid.
    """
    # Concatenation with string() is over the API server's cost limit; format() is not.
    template = f"{json.dumps(message, ensure_ascii=False)}.format([{', '.join(values)}])"
    entries = {
        "rule": cel,
        "message": "" if values else message,
        "messageExpression": template if values else "",
        "fieldPath": path,
        "reason": reason,
    }
    return {key: entry for key, entry in entries.items() if entry}


def strings(values: Iterable[str]) -> str:
    """CEL: a list of string literals."""
    return "[" + ", ".join(f"'{value}'" for value in values) + "]"


def validations(*rules: Rule) -> dict[str, Any]:
    """Attach rules to a field or model: use as `json_schema_extra`."""
    return {"x-kubernetes-validations": list(rules)}


def names_service() -> Rule:
    """The object's name is that of a Service as well, and so has to have that form."""
    return rule(
        "!format.dns1035Label().validate(self.metadata.name).hasValue()",
        "names a Service too: write at most 63 lower-case letters, digits or '-', "
        "starting with a letter and ending with a letter or digit",
        path=".metadata.name",
    )

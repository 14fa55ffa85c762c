"""Merge a user's partial PodTemplateSpec over what we build, as strategic merge patch would.

Lists of named things are merged by their key, the same keys that Kubernetes gives these lists (`listMapKey`
in its API types). Tolerations and terms of affinity between pods are added: the user's are further wishes,
and ours keep the slice together. Any other list is replaced.
"""

from __future__ import annotations

from typing import Any, Final

KEYS: Final = {
    "containers": ("name",),
    "volumes": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "ports": ("containerPort", "protocol"),
}
DEFAULTS: Final = {"protocol": "TCP"}
APPENDED: Final = frozenset({"tolerations", "requiredDuringSchedulingIgnoredDuringExecution"})


def merge(base: Any, over: Any, field: str = "") -> Any:
    """`over` laid on `base`; neither is changed, and the result shares nothing with `over`.

    A null in `over` removes the field.
    """
    if isinstance(base, dict) and isinstance(over, dict):
        merged = {key: merge(base.get(key), value, key) for key, value in over.items() if value is not None}
        return {key: value for key, value in base.items() if key not in over} | merged
    if isinstance(base, list) and isinstance(over, list):
        if field in APPENDED:
            return base + [item for item in _copied(over) if item not in base]
        if field in KEYS:
            return _merge_named(base, over, KEYS[field])
    return _copied(over)


def _copied(value: Any) -> Any:
    """A deep copy, without fields that are null."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items() if inner is not None}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _merge_named(base: list[Any], over: list[Any], key: tuple[str, ...]) -> list[Any]:
    merged = list(base)
    places = {_identity(item, key): place for place, item in enumerate(base)}
    for item in over:
        place = places.get(_identity(item, key))
        if place is None:
            merged.append(_copied(item))
        else:
            merged[place] = merge(merged[place], item)
    return merged


def _identity(item: dict[str, Any], key: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(item.get(field, DEFAULTS.get(field)) for field in key)

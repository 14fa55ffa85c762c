"""Merge a user's partial PodTemplateSpec over what we build, as strategic merge patch would.

Lists of named things are merged by their key, tolerations are added, any other list is replaced: the same
keys that Kubernetes gives these lists (`patchMergeKey` in its API types).
"""

from __future__ import annotations

from typing import Any, Final

KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
APPENDED: Final = frozenset({"tolerations"})


def merge(base: Any, over: Any, field: str = "") -> Any:
    """`over` laid on `base`; neither is changed. A null in `over` removes the field."""
    if isinstance(base, dict) and isinstance(over, dict):
        merged = {key: merge(base.get(key), value, key) for key, value in over.items() if value is not None}
        return {key: value for key, value in base.items() if key not in over} | merged
    if isinstance(base, list) and isinstance(over, list):
        if field in APPENDED:
            return base + [item for item in over if item not in base]
        if field in KEYS:
            return _merge_named(base, over, KEYS[field])
    return over


def _merge_named(base: list[Any], over: list[Any], key: str) -> list[Any]:
    patches = {item[key]: item for item in over}
    merged = [merge(item, patches.pop(item[key], {})) for item in base]
    return merged + list(patches.values())

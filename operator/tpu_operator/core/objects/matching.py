"""Whether an object in the cluster is as we would apply it."""

from __future__ import annotations

from typing import Any, Final

from tpu_operator.core.numbers import quantity
from tpu_operator.core.objects.merge import DEFAULTS, KEYS

AMOUNTS: Final = frozenset({"requests", "limits"})
"""Fields whose values are quantities, which the API server writes in its own way."""


def matches(desired: Any, actual: Any, field: str = "") -> bool:
    """Whether everything in `desired` is in `actual`, as after server-side apply.

    What others have added counts for nothing where apply would leave it there: further fields, and further
    items of lists whose items have a key. Other lists are replaced as a whole, so there it counts.
    """
    if isinstance(desired, dict):
        if field in AMOUNTS:
            desired, actual = _amounts(desired), _amounts(actual)
        return isinstance(actual, dict) and all(
            key in actual and matches(value, actual[key], key) for key, value in desired.items()
        )
    if not isinstance(desired, list):
        return bool(desired == actual)
    if not isinstance(actual, list):
        return False
    if field in KEYS and desired and isinstance(desired[0], dict):
        return _keyed(desired, actual, _key(field, desired))
    return len(desired) == len(actual) and all(map(matches, desired, actual))


def _amounts(values: Any) -> Any:
    return {key: quantity(value) for key, value in values.items()} if isinstance(values, dict) else values


def _key(field: str, items: list[Any]) -> tuple[str, ...]:
    """Fields that tell the items of a list apart; a Service has other ports than a container."""
    return ("port", "protocol") if field == "ports" and "port" in items[0] else KEYS[field]


def _keyed(desired: list[Any], actual: list[Any], key: tuple[str, ...]) -> bool:
    found = {_identity(item, key): item for item in actual}
    return all(matches(item, found.get(_identity(item, key))) for item in desired)


def _identity(item: Any, key: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(item.get(part, DEFAULTS.get(part)) for part in key)

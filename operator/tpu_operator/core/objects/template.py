"""What is wrong with a user's PodTemplateSpec before anything is made from it.

The CRD leaves the template's `spec` open: a schema of all of PodSpec would soon be out of date. The
API server judges the pods; here only the form is checked that merging relies on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpu_operator.core.objects.merge import DEFAULTS, KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable


def problems(template: Any, field: str) -> list[str]:
    """Every fault of form, each with the field that has it.

    Args:
        template: the template, or a part of it.
        field: where that is in the job.
    """
    if isinstance(template, list):
        return [p for i, item in enumerate(template) for p in problems(item, f"{field}[{i}]")]
    if not isinstance(template, dict):
        return []
    found: list[str] = []
    for key, value in template.items():
        inner = f"{field}.{key}"
        found += _list_problems(value, inner, KEYS[key]) if key in KEYS else []
        found += problems(value, inner)
    return found


def _list_problems(value: Any, field: str, keys: tuple[str, ...]) -> Iterable[str]:
    if not isinstance(value, list):
        return [f"{field} must be a list, it is {value!r}"]
    required = [key for key in keys if key not in DEFAULTS]
    return [
        f"{field}[{i}] must be an object with {' and '.join(required)}, it is {item!r}"
        for i, item in enumerate(value)
        if not isinstance(item, dict) or any(item.get(key) is None for key in required)
    ]

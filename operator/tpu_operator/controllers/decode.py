"""From undecoded objects of our kinds to models, and what is wrong with those that make none."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from tpu_operator.api import Model

if TYPE_CHECKING:
    from pydantic import ValidationError

    from tpu_operator.core.snapshot import Custom

M = TypeVar("M", bound=Model)


def decode(kind: type[M], custom: Custom) -> M:
    """The object as a model.

    Raises:
        ValidationError: its spec or status is not of the form that the model has.
    """
    meta = custom.metadata
    return kind.parse(
        {
            "metadata": {
                "name": meta.name,
                "namespace": meta.namespace,
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
                "generation": meta.generation,
                "deletionTimestamp": meta.deletion_timestamp,
                "labels": meta.labels,
                "annotations": msgspec.to_builtins(meta.annotations),
            },
            "spec": msgspec.json.decode(custom.spec),
            "status": custom.status,
        }
    )


def explain(error: ValidationError) -> str:
    """The first problems of a spec, each with its field and value."""
    problems = [
        f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']} (is {problem['input']!r:.200})"
        for problem in error.errors()[:3]
    ]
    return "; ".join(problems)

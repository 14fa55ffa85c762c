"""TPUInferences from files of YAML, as people write them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from pydantic import ValidationError

from tpu_operator.api import API_VERSION, TPUInference, TPUInferenceSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

STDIN: Final = "-"


class ManifestError(Exception):
    """A file that says no TPUInference, or none that makes sense; tells what to write."""


def read_inference(path: str, name: str = "") -> TPUInference:
    """The TPUInference of a file; other objects in it are passed over.

    Args:
        path: the file; `-` for what comes on standard input.
        name: which, where it has several.

    Raises:
        ManifestError: there is none, or more than one, or it has fields that there are not.
    """
    found = [inference(document, path) for document in _documents(path) if _is_inference(document)]
    named = [one for one in found if not name or one.metadata.name == name]
    if not named:
        which = f"TPUInference {name}" if name and found else f"TPUInference of {API_VERSION}"
        raise ManifestError(f"{path} has no {which}")
    if len(named) > 1:
        there = ", ".join(one.metadata.name for one in named)
        raise ManifestError(f"{path} has {len(named)} TPUInferences: say which is meant, of {there}")
    return named[0]


def old_and_new(paths: Sequence[str], name: str = "") -> tuple[TPUInference | None, TPUInference]:
    """What a TPUInference was, if there are two files, and what it is to be.

    Raises:
        ManifestError: as for `read_inference`; or they are not the same.
    """
    *before, new = [read_inference(path, name) for path in paths]
    if len(before) > 1:
        raise ManifestError("give one file with -f, or an old one and a new one")
    old = before[0] if before else None
    if old is not None and old.metadata.name != new.metadata.name:
        names = f"{old.metadata.name} and {new.metadata.name}"
        raise ManifestError(f"metadata.name: {names} are two TPUInferences, and none becomes the other")
    return old, new


def inference(wire: Any, path: str) -> TPUInference:
    """A TPUInference as it is written; unlike the API server's it has no fields that there are not.

    Raises:
        ManifestError: it makes no sense.
    """
    try:
        TPUInferenceSpec.model_validate(wire.get("spec"), by_alias=True, by_name=False, extra="forbid")
        return TPUInference.parse(wire)
    except ValidationError as error:
        first = error.errors()[0]
        parts = [str(part) for part in first["loc"]]
        field = ".".join(parts if parts[:1] == ["metadata"] else ["spec", *parts])
        raise ManifestError(f"{path}: {field}: {first['msg']}") from error


def _documents(path: str) -> list[Any]:
    try:
        text = sys.stdin.read() if path == STDIN else Path(path).read_text(encoding="utf-8")
        return list(yaml.safe_load_all(text))
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ManifestError(f"{path} is no YAML: {error}") from error


def _is_inference(document: Any) -> bool:
    return (
        isinstance(document, dict)
        and (document.get("apiVersion"), document.get("kind")) == (API_VERSION, TPUInference.__name__)
        and isinstance(document.get("metadata"), dict)
    )

"""The revisions that a TPUInference has had: what they were, how they differ, and the way back to one."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tpu_operator.api import TPUInference
from tpu_operator.cli.command import CommandError, Exit
from tpu_operator.core import names
from tpu_operator.core.inference.forecast import NOBODYS
from tpu_operator.core.inference.revision import FIELDS, ROLE_FIELDS, asked_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from tpu_operator.core.inference.snapshot import ControllerRevision

Object = dict[str, Any]

RESTARTED: Final = names.PREFIX + "restarted-at"
"""Annotation of pods by which a revision differs from another that is the same otherwise."""
SHORT: Final = 60
"""Characters of a value that is told."""


class Entry(msgspec.Struct, frozen=True, rename="camel"):
    """A revision that is remembered.

    Attributes:
        number: its place in the history, a higher one being newer.
        name: its name, the hash.
        created: when it was first asked for.
        state: `current` if all replicas were last of it, `asked` if the spec asks for it, `replicas` if it
            has some otherwise; empty if none of these.
        changes: how it differs from the revision before it.
        spec: the part of the spec that its pods are made from.
    """

    number: int
    name: str
    created: datetime | None
    state: str
    changes: tuple[str, ...]
    spec: Object


def history(inference: TPUInference, stored: Iterable[ControllerRevision]) -> list[Entry]:
    """The revisions of a TPUInference, from old to new."""
    meta = inference.metadata
    mine = sorted((one for one in stored if one.metadata.owner_uid == meta.uid), key=lambda one: one.revision)
    found, before = list[Entry](), None
    for one in mine:
        spec = one.data.get("spec")
        if not isinstance(spec, dict):
            continue
        name = one.metadata.name.removeprefix(names.revision_name(meta.name, ""))
        changes = tuple(differences(before, spec)) if before is not None else ()
        created = one.metadata.creation_timestamp
        found.append(Entry(one.revision, name, created, _state(inference, name), changes, spec))
        before = spec
    return found


def asked(inference: TPUInference) -> str:
    """Name of the revision that the spec asks for."""
    return asked_for(inference, NOBODYS.images).name


def _state(inference: TPUInference, name: str) -> str:
    status = inference.status
    if name == status.current_revision:
        return "current"
    if name == asked(inference):
        return "asked"
    return "replicas" if any(group.revision == name for group in status.groups) else ""


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """How a spec differs from another, field by field."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    for path in dict.fromkeys([*before, *after]):
        if path not in after:
            yield f"{path}: {before[path]} taken away"
        elif path not in before:
            yield f"{path}: {after[path]} added"
        elif before[path] != after[path]:
            yield f"{path}: {before[path]} -> {after[path]}"


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Paths of all values, elements of lists being called by their names."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and all(isinstance(one, dict) and "name" in one for one in value):
        for one in value:
            rest = {key: inner for key, inner in one.items() if key != "name"}
            yield from _leaves(rest, f"{path}[{one['name']}]")
    else:
        text = value if isinstance(value, str) else json.dumps(value)
        yield path, text if len(text) <= SHORT else f"{text[:SHORT]}..."


def chosen(entries: Sequence[Entry], inference: TPUInference, wanted: str = "") -> Entry:
    """The revision to go back to.

    Args:
        entries: the history.
        inference: the TPUInference.
        wanted: number or name; empty for the last that all replicas were of, or where the spec asks for that
            the one before it.

    Raises:
        CommandError: there is none.
    """
    there = ", ".join(f"{one.number} ({one.name})" for one in entries) or "none"
    advice = f"revisions that are remembered: {there}"
    now = asked(inference)
    if wanted:
        found = next((one for one in entries if wanted in {one.name, str(one.number)}), None)
        if found is None:
            raise CommandError(f"there is no revision {wanted}", Exit.NOT_FOUND, advice)
    else:
        found = _before(entries, now, inference.status.current_revision)
        if found is None:
            raise CommandError("there is no revision before the present one", Exit.NOT_FOUND, advice)
    if found.name == now:
        raise CommandError(f"the spec asks for revision {found.name} already", Exit.BAD, advice)
    return found


def _before(entries: Sequence[Entry], now: str, current: str) -> Entry | None:
    if current and current != now:
        return next((one for one in entries if one.name == current), None)
    number = next((one.number for one in entries if one.name == now), None)
    older = [one for one in entries if one.name != now and (number is None or one.number < number)]
    return older[-1] if older else None


def returned(wire: Object, entry: Entry) -> Object:
    """A TPUInference that asks for a revision that it had; what no pod is made from stays as it is.

    Raises:
        CommandError: the spec would be another revision all the same.
    """
    changed = copy.deepcopy(wire)
    spec: Object = changed["spec"]
    for key in FIELDS:
        _set(spec, key, entry.spec.get(key))
    present = {role["name"]: role for role in spec["roles"]}
    spec["roles"] = [_role(present.get(role["name"], {}), role) for role in entry.spec["roles"]]
    routing = dict(spec.get("routing") or {})
    _set(routing, "sidecar", entry.spec.get("routing", {}).get("sidecar"))
    _set(spec, "routing", routing or None)
    if asked(TPUInference.parse(changed)) != entry.name:
        raise CommandError(
            f"revision {entry.name} cannot be asked for by this version",
            advice="use the kubectl-tpu of the version of the operator",
        )
    return changed


def _role(present: Mapping[str, Any], remembered: Mapping[str, Any]) -> Object:
    """A role as it was, with the replicas and budgets that it has now."""
    kept = {key: value for key, value in present.items() if key not in ROLE_FIELDS}
    return dict(remembered) | kept


def _set(place: Object, key: str, value: Any) -> None:
    if value is None:
        place.pop(key, None)
    else:
        place[key] = value


def restarted(wire: Object, now: datetime) -> Object:
    """A TPUInference all of whose pods are to be made anew: by a revision that differs in an annotation."""
    changed = copy.deepcopy(wire)
    for role in changed["spec"]["roles"]:
        template = role.get("template") or {}
        metadata = template.get("metadata") or {}
        annotations = metadata.get("annotations") or {}
        annotations = annotations | {RESTARTED: f"{now:%Y-%m-%dT%H:%M:%SZ}"}
        role["template"] = template | {"metadata": metadata | {"annotations": annotations}}
    return changed

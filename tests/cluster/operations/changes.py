"""Changes of a job's spec, generated from its schema."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from tests.cluster.operations.fields import UNSET, edited, pattern
from tests.cluster.operations.values import BREAKS, NEEDS, boundaries, examples, sample, wrong

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.cluster.operations.fields import Field, Object, Rule

Kind = Literal["change", "boundary", "unset", "invalid", "unknown", "rule", "blocked"]
ERRORS: Final = "(Invalid value|Required value|Unsupported value|Duplicate value|Too long|Too many|Forbidden)"
QUIET: Final = frozenset({"tpu.slices", "tpu.spareSlices", "tpu.topology"})
"""Fields whose largest values ask for more pods than a test should make: jobs stay suspended with them."""
FINAL: Final = "activeDeadlineSeconds"
"""Small values of it end a job, for good."""
LONG: Final = 3600


@dataclass(frozen=True, slots=True)
class Change:
    """One edit of a spec.

    Attributes:
        path: the field that it is about.
        kind: what it does to it. `change`, `boundary` and `unset` are within the schema, and may be refused
            by a rule alone; `invalid`, `unknown` and `rule` must be refused; `blocked` is what the schema
            cannot see.
        settings: values by path.
        says: patterns that the refusal, or the message of the condition Blocked, must match.
        reason: the reason of that condition.
        first: a change to be made before it, so that there is something to take away.
    """

    path: str
    kind: Kind
    settings: Mapping[str, Any]
    says: tuple[str, ...] = ()
    reason: str = ""
    first: Change | None = None

    def __str__(self) -> str:
        return f"{self.kind} of spec.{self.path}: {_short(self.settings)}"

    @property
    def must_be_refused(self) -> bool:
        """Whether the API server may not accept it."""
        return self.kind in {"invalid", "unknown", "rule"}

    @property
    def last(self) -> bool:
        """Whether no other change can be seen after it."""
        ends = isinstance(limit := self.settings.get(FINAL), int) and limit < LONG
        return bool(ends) or (self.kind == "boundary" and self.path in QUIET)

    def of(self, spec: Object, schema: Mapping[str, Field]) -> Object:
        """The changed spec."""
        return edited(spec, self.settings, schema)

    def is_explained(self, refusal: str, rules: list[Rule]) -> bool:
        """Whether a refusal says which field is wrong, and why."""
        if self.kind in {"invalid", "unknown"}:
            return all(re.search(says, refusal) for says in self.says)
        return any(rule.explains(refusal) for rule in rules)


def changes(schema: Mapping[str, Field]) -> list[Change]:
    """At least one of every kind that makes sense, for every field."""
    return [change for field in schema.values() for change in _of(field, schema)]


def _of(field: Field, schema: Mapping[str, Field]) -> Iterator[Change]:
    path, needs = field.path, dict(NEEDS.get(field.path, {}))
    for value in examples(field, schema):
        yield Change(path, "change", needs | {path: value})
    for value in boundaries(field, schema):
        quiet = {"suspend": True} if path in QUIET else {}
        yield Change(path, "boundary", needs | {path: value} | quiet)
    yield from _removals(field, schema, needs)
    for value in wrong(field, schema):
        yield Change(path, "invalid", needs | {path: value}, (_refused(path),))
    if field.kind == "object":
        says = rf'unknown field "{pattern("spec." + path)}\.bogus"'
        yield Change(path, "unknown", needs | {f"{path}.bogus": 1}, (says,))
    for settings in BREAKS.get(path, ()):
        yield Change(path, "rule", settings)


def _removals(field: Field, schema: Mapping[str, Field], needs: Object) -> Iterator[Change]:
    """The field is left out, or null, which is the same."""
    path, above = field.path, field.path.rpartition(".")[0]
    if path.endswith(("[]", "{}")):
        return
    there = {above: sample(schema[above], schema)} if above else {}
    says = (_refused(path),)
    for value in (UNSET, None):
        if field.required:
            yield Change(path, "invalid", there | {path: value}, says)
        else:
            first = Change(path, "change", needs | {path: sample(field, schema)})
            yield Change(path, "unset", {path: value}, first=first)


def _refused(path: str) -> str:
    return rf"spec\.{pattern(path)}(\[[^\]]*\])?: {ERRORS}"


def _short(settings: Mapping[str, Any]) -> str:
    texts = (f"{path} = {value!r}" for path, value in settings.items())
    return ", ".join(text if len(text) < 80 else f"{text[:70]}… ({len(text)} characters)" for text in texts)

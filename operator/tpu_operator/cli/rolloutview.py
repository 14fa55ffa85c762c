"""How `kubectl tpu rollout` draws a rollout and a history."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from tpu_operator.cli.rolestatus import summary
from tpu_operator.cli.text import Cell, Style, age, flat, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from tpu_operator.cli.history import Entry
    from tpu_operator.cli.roletree import Revision, RoleTree
    from tpu_operator.cli.text import Row


def draw(model: RoleTree, now: datetime, style: Style) -> list[str]:
    """A rollout as text: what holds it, and ready replicas by revision and role."""
    roles = list(
        dict.fromkeys([*model.targets, *(part.role for one in model.revisions for part in one.parts)])
    )
    titles = [Cell(text.upper(), "bold") for text in ("revision", "state", *roles, "serves")]
    rows: list[Row] = [tuple(titles)]
    rows += [_revision(one, model, roles) for one in model.revisions]
    rows.append(("wanted", "", *(str(model.targets.get(role, 0)) for role in roles), ""))
    return [*table(list(summary(model, now)), style), "", *table(rows, style)]


def _revision(one: Revision, model: RoleTree, roles: Sequence[str]) -> Row:
    """A line: `2/3 (-1)` is two ready of three that are to stay, and one that leaves."""
    parts = {part.role: part for part in one.parts}
    cells = []
    for role in roles:
        part = parts.get(role)
        leaving = f" (-{part.leaving})" if part and part.leaving else ""
        cells.append(f"{part.ready}/{part.kept}{leaving}" if part else "")
    state = "new" if one.newest and not one.current else "current" if one.current else "old"
    serves = Cell("yes", "green") if one.servable else Cell("no", "yellow")
    return one.name, state if len(model.revisions) > 1 else "current", *cells, serves


def draw_history(entries: Iterable[Entry], now: datetime, style: Style) -> list[str]:
    """The revisions as a table, from old to new."""
    rows: list[Row] = [
        (str(one.number), one.name, age(one.created, now), one.state, flat("; ".join(one.changes)))
        for one in entries
    ]
    if not rows:
        return ["no revision is remembered yet"]
    titles = ("NUMBER", "REVISION", "AGE", "STATE", "CHANGES")
    return table([tuple(Cell(text, "bold") for text in titles), *rows], style)


def draw_entry(entry: Entry, now: datetime) -> list[str]:
    """One revision, with all that its pods are made from."""
    made = f", {age(entry.created, now)} old" if entry.created else ""
    spec = yaml.safe_dump(entry.spec, sort_keys=False, allow_unicode=True)
    return [f"revision {entry.name}, number {entry.number}{made}", *spec.splitlines()]

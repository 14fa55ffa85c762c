"""`kubectl tpu explain`: fields, reasons, causes and gates, in words; needs no cluster."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tpu_operator.api.crd import KINDS, Kind
from tpu_operator.api.reference import type_of
from tpu_operator.api.schema import structural
from tpu_operator.cli.advice import BLOCKED, CAUSES, ENDS, GATES, Advice
from tpu_operator.cli.command import Call, Command, CommandError, Exit, Parser, add_output
from tpu_operator.cli.text import Style, table

if TYPE_CHECKING:
    from collections.abc import Mapping

Schema = dict[str, Any]


class Entry(msgspec.Struct, frozen=True, rename="camel"):
    """What a word or a field means.

    Attributes:
        name: the word, or the path of the field.
        type: of the field, or what kind of word it is.
        description: in words.
        remedies: what to do, for reasons, causes and gates.
        fields: those below it, each with its type and description; name with `*`: required.
    """

    name: str
    type: str
    description: str
    remedies: tuple[str, ...] = ()
    fields: tuple[tuple[str, str, str], ...] = ()


def words() -> Mapping[str, tuple[str, Advice]]:
    """Reasons, causes and gates, with what they are."""
    return {
        **{str(key): ("reason of the condition Blocked", advice) for key, advice in BLOCKED.items()},
        **{str(key): ("cause of a failure", advice) for key, advice in CAUSES.items()},
        **{key: ("reason of the condition Failed", advice) for key, advice in ENDS.items()},
        **{str(key): ("gate that holds a rollout", advice) for key, advice in GATES.items()},
    }


def explain(what: str) -> Entry:
    """The entry for a word, or for a field such as spec.tpu (of a TPUJob) or tpuinference.spec.roles.

    Raises:
        CommandError: there is no such thing; says what is near.
    """
    known = {word.lower(): word for word in words()}
    if (word := known.get(what.lower())) is not None:
        kind, advice = words()[word]
        return Entry(word, kind, advice.meaning, tuple(r.replace("{job}", "NAME") for r in advice.remedies))
    return _field(what)


def _field(what: str) -> Entry:
    parts = [part.removesuffix("[]") for part in what.split(".") if part]
    named = _kind(parts[0]) if parts else None
    kind = named or KINDS[0]
    schema: Schema = structural(kind.model)
    path = [kind.model.__name__.lower()]
    for part in parts[1:] if named else parts:
        below = _properties(schema)
        found = {name.lower(): name for name in below}.get(part.lower())
        if found is None:
            raise _unknown(what, path, below)
        schema = below[found]
        path.append(found)
    return Entry(
        name=".".join(path),
        type=_type(schema) if len(path) > 1 else "object",
        description=schema.get("description", ""),
        fields=tuple(_row(schema, name, field) for name, field in _properties(schema).items()),
    )


def _kind(word: str) -> Kind | None:
    """The kind that a word names, in any of the spellings that kubectl takes."""
    spellings = ({kind.model.__name__.lower(), kind.plural, kind.short_name} for kind in KINDS)
    return next((kind for kind, names in zip(KINDS, spellings, strict=True) if word.lower() in names), None)


def _type(schema: Schema) -> str:
    return type_of(schema).replace("`", "")


def _properties(schema: Schema) -> Schema:
    inner: Schema = schema.get("items", schema)
    found: Schema = inner.get("properties", {})
    return found


def _row(schema: Schema, name: str, field: Schema) -> tuple[str, str, str]:
    required = schema.get("items", schema).get("required", ())
    mark = "*" if name in required else ""
    return name + mark, _type(field), field.get("description", "")


def _unknown(what: str, path: list[str], below: Schema) -> CommandError:
    near = difflib.get_close_matches(what.rpartition(".")[2], [*below, *words()], 1)
    where = ".".join(path)
    advice = f"did you mean {near[0]}?" if near else f"fields there: {', '.join(below) or 'none'}"
    return CommandError(
        f"{what}: {where} has no such field, and no reason or cause is called so", Exit.NOT_FOUND, advice
    )


def add(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "what",
        metavar="WHAT",
        nargs="?",
        default="spec",
        help="a field such as spec.failurePolicy, or a word such as CapacityInUse or OutOfMemory (spec)",
    )
    add_output(parser)


async def run(call: Call) -> int:
    """Explain it."""
    entry = explain(call.options.what)
    call.show(entry, lambda: draw(entry, call.terminal.style))
    return Exit.DONE


def draw(entry: Entry, style: Style) -> list[str]:
    """An entry as text."""
    lines = [f"{style.paint(entry.name, 'bold')}  <{entry.type}>", *style.wrap(entry.description, "  ")]
    if entry.remedies:
        lines += ["", style.paint("What to do:", "bold"), *(f"- {remedy}" for remedy in entry.remedies)]
    if entry.fields:
        lines += ["", style.paint("Fields (* required):", "bold")]
        lines += table([(name, f"<{kind}>", text) for name, kind, text in entry.fields], style, "  ")
    return lines


COMMAND: Final = Command("explain", "what a field, a reason or a cause means", add, run)

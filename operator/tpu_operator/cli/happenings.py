"""`kubectl tpu events NAME`: what has happened to a job or a TPUInference and its pods, in order."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tpu_operator.api import TPUJob
from tpu_operator.cli.command import Call, Command, Exit, Parser, add_output, add_place, add_target
from tpu_operator.cli.server import connect
from tpu_operator.cli.text import Cell, Style, age, flat, table
from tpu_operator.core import names
from tpu_operator.engine.resources import CONTROLLER_REVISIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpu_operator.api import ObjectMeta, TPUInference
    from tpu_operator.cli.server import Server

Object = dict[str, Any]


class Happening(msgspec.Struct, frozen=True, rename="camel"):
    """An event.

    Attributes:
        time: when it was last seen.
        type: Normal or Warning.
        about: kind and name of what it is about.
        reason: in one word.
        message: in words.
        count: how often it was seen.
        reporter: who says so.
    """

    time: datetime | None
    type: str
    about: str
    reason: str
    message: str
    count: int
    reporter: str


def happening(event: Mapping[str, Any]) -> Happening:
    """An event from the wire; what its writer has left out is empty."""
    about = event.get("regarding") or {}
    series = event.get("series") or {}
    return Happening(
        time=_time(
            series.get("lastObservedTime")
            or event.get("deprecatedLastTimestamp")
            or event.get("eventTime")
            or event.get("metadata", {}).get("creationTimestamp")
        ),
        type=event.get("type") or "Normal",
        about=f"{(about.get('kind') or 'object').lower()}/{about.get('name', '')}",
        reason=event.get("reason") or "",
        message=event.get("note") or "",
        count=series.get("count") or event.get("deprecatedCount") or 1,
        reporter=event.get("reportingController") or "",
    )


def _time(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    except ValueError:
        return None


def ordered(events: Iterable[Happening]) -> list[Happening]:
    """Events in the order in which they happened; those without a time first."""
    return sorted(events, key=lambda one: one.time or datetime.min.replace(tzinfo=UTC))


def of_job(job: TPUJob, about_jobs: Iterable[Object], about_pods: Iterable[Object]) -> list[Happening]:
    """Events about a job, its pods and those of its earlier attempts, in order."""
    # <job>-<slice>-<host>, or <job>-head
    pod = re.compile(rf"{re.escape(job.metadata.name)}-(head|\d+-\d+)")
    return _of(job.metadata, about_jobs, about_pods, pod)


def of_inference(
    inference: TPUInference,
    revisions: Iterable[str],
    about_inferences: Iterable[Object],
    about_pods: Iterable[Object],
) -> list[Happening]:
    """Events about a TPUInference and the pods of its revisions, in order.

    Args:
        inference: the TPUInference.
        revisions: names of its revisions, which no other TPUInference has.
        about_inferences: events about objects of its kind and name.
        about_pods: events about pods of its namespace.
    """
    # <inference>-<role>-<revision>-<replica>-<host>
    hashes = "|".join(map(re.escape, revisions))
    pod = re.compile(rf"{re.escape(inference.metadata.name)}-.+-({hashes})-\d+-\d+")
    return _of(inference.metadata, about_inferences, about_pods, pod)


def _of(
    owner: ObjectMeta, about_owner: Iterable[Object], about_pods: Iterable[Object], pod: re.Pattern[str]
) -> list[Happening]:
    mine = [e for e in about_owner if (e.get("regarding") or {}).get("uid") in {owner.uid, None, ""}]
    theirs = [e for e in about_pods if pod.fullmatch((e.get("regarding") or {}).get("name", ""))]
    since = owner.creation_timestamp
    found = map(happening, [*mine, *theirs])
    return ordered(one for one in found if not since or not one.time or one.time >= since)


async def read(server: Server, owner: TPUJob | TPUInference) -> list[Happening]:
    """Events of a job or a TPUInference and its pods."""
    name = owner.metadata.name
    if isinstance(owner, TPUJob):
        return of_job(owner, await server.events("TPUJob", name), await server.events("Pod"))
    known = await server.try_read(
        CONTROLLER_REVISIONS, Object, labelSelector=f"{names.LABEL_INFERENCE}={name}"
    )
    kept = [one["metadata"]["name"].removeprefix(names.revision_name(name, "")) for one in known or []]
    revisions = dict.fromkeys([*kept, *(one.name for one in owner.status.revisions)])
    about = await server.events("TPUInference", name)
    return of_inference(owner, revisions, about, await server.events("Pod"))


def add(parser: Parser) -> None:
    """Add the arguments."""
    add_target(parser)
    parser.add_argument("--warnings", action="store_true", help="warnings only")
    add_output(parser)
    add_place(parser)


async def run(call: Call) -> int:
    """Show the events."""
    async with connect(call.place) as server:
        events = await read(server, await server.find(call.options.target))
    shown = [one for one in events if one.type != "Normal" or not call.options.warnings]
    now = call.clock()
    call.show(shown, lambda: draw(shown, now, call.terminal.style))
    return Exit.DONE


def draw(events: Iterable[Happening], now: datetime, style: Style) -> list[str]:
    """Events as a table."""
    rows = [
        (
            age(one.time, now),
            Cell(one.type, "yellow" if one.type == "Warning" else ""),
            one.about,
            one.reason,
            flat(one.message) + (f" (x{one.count})" if one.count > 1 else ""),
        )
        for one in events
    ]
    if not rows:
        return ["no events; the API server forgets them after an hour"]
    head = [Cell(text, "bold") for text in ("AGE", "TYPE", "OBJECT", "REASON", "MESSAGE")]
    return table([head, *rows], style)


COMMAND: Final = Command(
    "events", "what has happened to a job or a TPUInference and its pods, in order", add, run
)

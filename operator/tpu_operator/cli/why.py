"""`kubectl tpu why NAME`: why a job or a TPUInference does not run, or why it failed, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpu_operator.cli import happenings
from tpu_operator.cli.command import Call, Command, Exit, Parser, add_output, add_place, add_target
from tpu_operator.cli.diagnosis import diagnose
from tpu_operator.cli.follow import Seen, look
from tpu_operator.cli.rolediagnosis import diagnose_inference
from tpu_operator.cli.server import connect
from tpu_operator.cli.text import Style, age, clean, flat

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tpu_operator.cli.diagnosis import Answer


def add(parser: Parser) -> None:
    """Add the arguments."""
    add_target(parser)
    add_output(parser)
    add_place(parser)


async def run(call: Call) -> int:
    """Say what is the matter; the exit code is 1 if something is."""
    async with connect(call.place) as server:
        seen = await look(server, call.options.target)
        events = await happenings.read(server, seen.job if isinstance(seen, Seen) else seen.inference)
    now = call.clock()
    answer = diagnose(seen, events, now) if isinstance(seen, Seen) else diagnose_inference(seen, events, now)
    call.show(answer, lambda: draw(answer, now, call.terminal.style))
    return Exit.DONE if answer.well else Exit.BAD


def draw(answer: Answer, now: datetime, style: Style) -> list[str]:
    """The answer as text."""
    since = f" (since {age(answer.since, now)})" if answer.since else ""
    lines = [style.paint(f"{flat(answer.verdict)}{since}", "green" if answer.well else "red")]
    if answer.cause:
        lines += style.wrap(clean(answer.cause), "  ")
    if answer.meaning:
        lines += ["", *style.wrap(answer.meaning)]
    if answer.log:
        lines += ["", "Its last lines:", *(style.paint(f"  | {clean(line)}", "dim") for line in answer.log)]
    lines += _list("What is known:", answer.evidence, style)
    lines += _list("What to do:", answer.remedies, style)
    return lines


def _list(title: str, items: Sequence[str], style: Style) -> list[str]:
    if not items:
        return []
    lines = ["", style.paint(title, "bold")]
    for item in items:
        first, *rest = style.wrap(flat(item), "  ")
        lines += [f"- {first[2:]}", *rest]
    return lines


COMMAND: Final = Command(
    "why", "why a job or a TPUInference does not run, or why it has failed, and what to do", add, run
)

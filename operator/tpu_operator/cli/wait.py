"""`kubectl tpu wait NAME --for=…`: until a job has come somewhere, or cannot any more."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from tpu_operator.api import ConditionType
from tpu_operator.cli.command import Call, Command, CommandError, Exit, Parser, add_job, add_place, span
from tpu_operator.cli.follow import follow
from tpu_operator.cli.server import connect
from tpu_operator.cli.text import flat

if TYPE_CHECKING:
    from tpu_operator.api import TPUJob
    from tpu_operator.cli.follow import Follower, Seen

GOALS: Final = {
    "running": frozenset({"Running"}),
    "suspended": frozenset({"Suspended"}),
    "succeeded": frozenset({"Succeeded"}),
    "failed": frozenset({"Failed"}),
    "finished": frozenset({"Succeeded", "Failed"}),
}
"""Phases that each goal means."""
DELETED: Final = "deleted"
CONDITION: Final = "condition="
FINAL: Final = frozenset({"Succeeded", "Failed"})


class Verdict(NamedTuple):
    """Where a job is on its way.

    Attributes:
        code: DONE when it is there, BAD when it can never be, None while it may come.
        message: the same in words.
    """

    code: Exit | None
    message: str


def goal(text: str) -> str:
    """What may be waited for."""
    kinds = [str(kind) for kind in ConditionType]
    if text in GOALS or text == DELETED:
        return text
    kind, _, status = text.removeprefix(CONDITION).partition("=")
    if text.startswith(CONDITION) and kind in kinds and status in {"", "True", "False"}:
        return text
    goals = ", ".join([*GOALS, DELETED])
    raise argparse.ArgumentTypeError(
        f"{text!r}: write {goals} or condition=TYPE[=False], TYPE one of {', '.join(kinds)}"
    )


def verdict(job: TPUJob | None, wanted: str) -> Verdict:
    """Where a job is on its way; None: it is deleted."""
    if job is None:
        return Verdict(Exit.DONE if wanted == DELETED else Exit.BAD, "is deleted")
    phase = str(job.status.phase)
    if wanted == DELETED:
        return Verdict(None, f"is {phase}")
    # A status of an older spec says nothing of what was asked for since, but for the end, which is final.
    current = job.status.observed_generation == job.metadata.generation or phase in FINAL
    if not current:
        return Verdict(None, "has a spec that the operator has not seen yet")
    if _reached(job, wanted):
        return Verdict(Exit.DONE, f"is {phase}" if wanted in GOALS else f"has {wanted}")
    waits = job.status.pending
    why = (
        f" ({waits.reason}: {flat(waits.message)})"
        if waits
        else f" ({job.status.reason})"
        if job.status.reason
        else ""
    )
    return Verdict(Exit.BAD if phase in FINAL else None, f"is {phase}{why}")


def _reached(job: TPUJob, wanted: str) -> bool:
    if wanted in GOALS:
        return str(job.status.phase) in GOALS[wanted]
    kind, _, status = wanted.removeprefix(CONDITION).partition("=")
    found = next((c for c in job.status.conditions if c.type == kind), None)
    return (found is not None and found.status == "True") is (status != "False")


def add(parser: Parser) -> None:
    """Add the arguments."""
    add_job(parser)
    parser.add_argument(
        "--for",
        dest="goal",
        type=goal,
        required=True,
        metavar="GOAL",
        help=f"{', '.join([*GOALS, DELETED])}, condition=TYPE or condition=TYPE=False",
    )
    parser.add_argument("--timeout", type=span, metavar="TIME", help="such as 90s, 5m, 2h; default: for ever")
    add_place(parser)


async def run(call: Call) -> int:
    """Wait. The exit code is 0 at the goal, 1 if it cannot be reached any more, 6 if time is up."""
    name = call.options.name
    async with connect(call.place) as server:
        if call.options.goal != DELETED:
            await server.job(name)
        async with follow(server, name, pods=False) as follower:
            try:
                async with asyncio.timeout(call.options.timeout):
                    found = await _wait(follower, call.options.goal)
            except TimeoutError:
                at = verdict(_job(follower.now()), call.options.goal)
                raise CommandError(
                    f"time is up: TPUJob {name} {at.message}",
                    Exit.TIMEOUT,
                    f"`kubectl tpu why {name}` says what it waits for",
                ) from None
    if found.code is Exit.DONE:
        call.terminal.lines([f"tpujob/{name} {found.message}"])
        return Exit.DONE
    raise CommandError(f"TPUJob {name} {found.message}: it will never be {call.options.goal}")


async def _wait(follower: Follower, wanted: str) -> Verdict:
    while True:
        found = verdict(_job(await follower.next()), wanted)
        if found.code is not None:
            return found


def _job(seen: Seen | None) -> TPUJob | None:
    return seen.job if seen else None


COMMAND: Final = Command("wait", "until a job is running, has succeeded, …; exit codes tell", add, run)

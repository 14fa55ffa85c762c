"""`kubectl tpu wait NAME --for=…`: until a job or a TPUInference has come somewhere, or cannot any more."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from tpu_operator.api import ConditionType, InferenceConditionType, TPUInference, TPUJob
from tpu_operator.cli.command import Call, Command, CommandError, Exit, Parser, add_place, add_target, span
from tpu_operator.cli.follow import Seen, follow, follow_inference
from tpu_operator.cli.roletree import rollout_of
from tpu_operator.cli.server import connect
from tpu_operator.cli.text import flat
from tpu_operator.engine.resources import TPUJOBS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpu_operator.api import Condition, InferencePending, Pending
    from tpu_operator.cli.command import Target
    from tpu_operator.cli.follow import Follower, Served

Thing = TPUJob | TPUInference

GOALS: Final = {
    "running": frozenset({"Running"}),
    "suspended": frozenset({"Suspended"}),
    "succeeded": frozenset({"Succeeded"}),
    "failed": frozenset({"Failed"}),
    "finished": frozenset({"Succeeded", "Failed"}),
}
"""Phases of a job that each goal means."""
SERVING: Final = "serving"
COMPLETE: Final = "complete"
STOPPED: Final = "stopped"
INFERENCE_GOALS: Final = (SERVING, COMPLETE, STOPPED)
"""A revision serves; the rollout has ended well; all roles are scaled to zero."""
DELETED: Final = "deleted"
CONDITION: Final = "condition="
FINAL: Final = frozenset({"Succeeded", "Failed"})


class Verdict(NamedTuple):
    """Where something is on its way.

    Attributes:
        code: DONE when it is there, BAD when that is out of reach, None while it may come.
        message: the same in words.
    """

    code: Exit | None
    message: str


def goal(text: str) -> str:
    """What may be waited for."""
    kinds = [*map(str, ConditionType), *map(str, InferenceConditionType)]
    if text in {*GOALS, *INFERENCE_GOALS, DELETED} or _is_condition(text, kinds):
        return text
    goals = ", ".join([*GOALS, *INFERENCE_GOALS, DELETED])
    conditions = ", ".join(dict.fromkeys(kinds))
    raise argparse.ArgumentTypeError(
        f"{text!r}: write {goals} or condition=TYPE[=False], TYPE one of {conditions}"
    )


def _is_condition(text: str, kinds: Sequence[str]) -> bool:
    kind, _, status = text.removeprefix(CONDITION).partition("=")
    return text.startswith(CONDITION) and kind in kinds and status in {"", "True", "False"}


def objection(kind: str, wanted: str) -> str:
    """What to write instead of a goal that is none of a kind; empty if it is one."""
    job = kind == TPUJOBS.kind
    kinds = [str(kind) for kind in (ConditionType if job else InferenceConditionType)]
    known = [*(GOALS if job else INFERENCE_GOALS), DELETED]
    if wanted in known or _is_condition(wanted, kinds):
        return ""
    return f"write {', '.join(known)} or condition=TYPE[=False], TYPE one of {', '.join(kinds)}"


def check(thing: Thing, wanted: str) -> None:
    """See to it that a goal is one for its kind.

    Raises:
        CommandError: it is one for the other kind.
    """
    if advice := objection(thing.kind, wanted):
        name = f"{thing.kind} {thing.metadata.name}"
        raise CommandError(
            f"--for={wanted} is nothing that a {thing.kind} can be, and {name} is one",
            Exit.USAGE,
            advice,
        )


def verdict(thing: Thing | None, wanted: str) -> Verdict:
    """Where something is on its way; None: it is deleted."""
    if thing is None:
        return Verdict(Exit.DONE if wanted == DELETED else Exit.BAD, "is deleted")
    phase = str(thing.status.phase)
    if wanted == DELETED:
        return Verdict(None, f"is {phase}")
    # A status of an older spec says nothing of what was asked for since, but for the end, which is final.
    current = thing.status.observed_generation == thing.metadata.generation or phase in FINAL
    if not current:
        return Verdict(None, "has a spec that the operator has not seen yet")
    if wanted.startswith(CONDITION):
        reached = has(thing.status.conditions, wanted)
        return Verdict(Exit.DONE, f"has {wanted}") if reached else _not_yet(thing)
    return _job(thing, wanted) if isinstance(thing, TPUJob) else _inference(thing, wanted)


def _job(job: TPUJob, wanted: str) -> Verdict:
    phase = str(job.status.phase)
    return Verdict(Exit.DONE, f"is {phase}") if phase in GOALS[wanted] else _not_yet(job)


def _inference(inference: TPUInference, wanted: str) -> Verdict:
    rollout = rollout_of(inference)
    if wanted == COMPLETE:
        if rollout.complete:
            return Verdict(Exit.DONE, f"is complete: all replicas are of {inference.status.updated_revision}")
        if rollout.rejected:
            return Verdict(
                Exit.BAD, f"goes back, as an analysis has rejected revision {flat(rollout.rejected)}"
            )
        if rollout.overdue:
            why = rollout.hold.reason if rollout.hold else ""
            return Verdict(Exit.BAD, f"does not progress: {flat(why)}")
        return _not_yet(inference)
    if wanted == SERVING:
        reached = has(inference.status.conditions, f"{CONDITION}Available")
    else:
        reached = str(inference.status.phase) == "Stopped"
    return Verdict(Exit.DONE, f"is {inference.status.phase}") if reached else _not_yet(inference)


def has(conditions: Sequence[Condition], wanted: str) -> bool:
    """Whether conditions are as a goal such as `condition=TYPE` or `condition=TYPE=False` says."""
    kind, _, status = wanted.removeprefix(CONDITION).partition("=")
    found = next((c for c in conditions if c.type == kind), None)
    return (found is not None and found.status == "True") is (status != "False")


def _not_yet(thing: Thing) -> Verdict:
    """Out of reach only for what has ended."""
    phase, waits = str(thing.status.phase), thing.status.pending
    why = _waits(waits) if waits else f" ({thing.status.reason})" if thing.status.reason else ""
    return Verdict(Exit.BAD if phase in FINAL else None, f"is {phase}{why}")


def _waits(waits: Pending | InferencePending) -> str:
    return f" ({waits.reason}: {flat(waits.message)})"


def add(parser: Parser) -> None:
    """Add the arguments."""
    add_target(parser)
    parser.add_argument(
        "--for",
        dest="goal",
        type=goal,
        required=True,
        metavar="GOAL",
        help=f"of a job: {', '.join([*GOALS, DELETED])}; of a TPUInference: {', '.join(INFERENCE_GOALS)} "
        f"or {DELETED}; of both: condition=TYPE or condition=TYPE=False",
    )
    parser.add_argument("--timeout", type=span, metavar="TIME", help="such as 90s, 5m, 2h; default: for ever")
    add_place(parser)


async def run(call: Call) -> int:
    """Wait. The exit code is 0 at the goal, 1 if it cannot be reached any more, 6 if time is up."""
    wanted = call.options.goal
    async with connect(call.place) as server:
        try:
            thing = await server.find(call.options.target)
        except CommandError as error:
            if wanted == DELETED and error.code is Exit.NOT_FOUND:
                target: Target = call.options.target
                call.terminal.lines([f"{(target.kind or 'TPUJob').lower()}/{target.name} is deleted"])
                return Exit.DONE
            raise
        check(thing, wanted)
        name = thing.metadata.name
        following = follow(server, name, pods=False) if isinstance(thing, TPUJob) else None
        async with following or follow_inference(server, name, pods=False) as follower:
            try:
                async with asyncio.timeout(call.options.timeout):
                    found = await _wait(follower, wanted)
            except TimeoutError:
                at = verdict(_thing(follower.now()), wanted)
                raise CommandError(
                    f"time is up: {follower.name} {at.message}",
                    Exit.TIMEOUT,
                    f"`kubectl tpu why {name}` says what it waits for",
                ) from None
    if found.code is Exit.DONE:
        call.terminal.lines([f"{thing.kind.lower()}/{name} {found.message}"])
        return Exit.DONE
    never = f": it will never be {wanted}" if isinstance(thing, TPUJob) else ""
    raise CommandError(f"{thing.kind} {name} {found.message}{never}")


async def _wait(follower: Follower[Seen] | Follower[Served], wanted: str) -> Verdict:
    while True:
        found = verdict(_thing(await follower.next()), wanted)
        if found.code is not None:
            return found


def _thing(seen: Seen | Served | None) -> Thing | None:
    if seen is None:
        return None
    return seen.job if isinstance(seen, Seen) else seen.inference


COMMAND: Final = Command(
    "wait", "until a job is running, has succeeded, …, or a TPUInference serves; exit codes tell", add, run
)

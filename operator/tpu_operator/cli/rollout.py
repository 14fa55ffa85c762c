"""`kubectl tpu rollout`: look at the rollout of a TPUInference, stop it, let it go on, and go back.

All but `promote` change the spec, so that a person who edits it can do the same. A promotion counts one step
of the canary as done, by an annotation for this spec alone, since the next rollout begins from 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tpu_operator.api import HoldGate
from tpu_operator.cli import planning, rolloutview
from tpu_operator.cli.command import (
    Call,
    Command,
    CommandError,
    Exit,
    Parser,
    add_inference,
    add_output,
    add_place,
)
from tpu_operator.cli.follow import Served, follow_inference
from tpu_operator.cli.history import chosen, differences, history, restarted, returned
from tpu_operator.cli.roletree import role_tree, rollout_of
from tpu_operator.cli.server import connect, read_inference
from tpu_operator.cli.watch import Picture, show, watch
from tpu_operator.core import names
from tpu_operator.core.inference.snapshot import ControllerRevision
from tpu_operator.core.pending import some
from tpu_operator.engine.client import ApiError
from tpu_operator.engine.resources import CONTROLLER_REVISIONS, INFERENCES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tpu_operator.api import TPUInference
    from tpu_operator.cli.history import Entry
    from tpu_operator.cli.roletree import RoleTree
    from tpu_operator.cli.server import Server

Object = dict[str, Any]

TRIES: Final = 5
"""How often a change is tried again that the operator got ahead of: it writes the status all the time."""
LOOK: Final = "`kubectl tpu rollout status {} --watch` shows how far it comes"


def add_status(parser: Parser) -> None:
    """Add the arguments."""
    add_inference(parser)
    parser.add_argument(
        "-w", "--watch", action="store_true", help="draw anew with every change, until it ends"
    )
    add_output(parser)
    add_place(parser)


async def run_status(call: Call) -> int:
    """Show the rollout; with --watch the exit code is 1 if it does not progress in time."""
    picture = Picture(role_tree, rolloutview.draw, ended)
    async with connect(call.place) as server:
        inference = await server.inference(call.options.name)
        if call.options.watch:
            return await watch(call, picture, follow_inference(server, inference.metadata.name, pods=False))
        show(call, picture, Served(inference))
        return Exit.DONE


def ended(model: RoleTree) -> Exit | None:
    """The exit code once a rollout has ended, or has not progressed in time."""
    if not model.up_to_date:
        return None
    if model.rollout.overdue or model.rollout.rejected:
        return Exit.BAD
    return Exit.DONE if model.rollout.complete else None


def add_one(parser: Parser) -> None:
    """Add the arguments of commands that need nothing but a name."""
    add_inference(parser)
    add_place(parser)


async def run_pause(call: Call) -> int:
    """Set spec.rollout.paused."""
    return await _pause(call, paused=True)


async def run_resume(call: Call) -> int:
    """Unset spec.rollout.paused."""
    return await _pause(call, paused=False)


async def _pause(call: Call, *, paused: bool) -> int:
    async with connect(call.place) as server:
        inference = await server.inference(call.options.name)
        there = inference.spec.rollout.paused == paused
        if not there:
            await server.patch(inference, spec={"rollout": {"paused": paused}})
    call.terminal.lines([_paused(inference, paused=paused, there=there)])
    return Exit.DONE


def _paused(inference: TPUInference, *, paused: bool, there: bool) -> str:
    name = f"tpuinference/{inference.metadata.name}"
    hold = inference.status.rollout.hold
    if there and not paused and hold is not None and hold.gate in {HoldGate.PAUSE, HoldGate.ANALYSIS}:
        return (
            f"{name} is not paused; its canary waits: `kubectl tpu rollout promote {inference.metadata.name}`"
        )
    if there:
        return f"{name} is paused already" if paused else f"{name} is not paused"
    if paused:
        return f"{name} paused: its rollout stops where it is; what fails is still repaired"
    return f"{name} resumed; {LOOK.format(inference.metadata.name)}"


def add_promote(parser: Parser) -> None:
    """Add the arguments."""
    add_inference(parser)
    parser.add_argument("--full", action="store_true", help="all steps that are left, not only the present")
    add_place(parser)


async def run_promote(call: Call) -> int:
    """Count a step of the canary as done, whether its replicas are ready or not."""
    async with connect(call.place) as server:
        inference = await server.inference(call.options.name)
        steps = promoted(inference, full=call.options.full)
        await server.annotate(
            inference, {names.ANNOTATION_PROMOTED: f"{inference.metadata.generation}/{steps}"}
        )
    name, canary = inference.metadata.name, inference.spec.rollout.canary
    done = f"{steps} of {len(canary.steps) if canary else steps} steps of its canary are done"
    call.terminal.lines([f"tpuinference/{name} promoted: {done}; {LOOK.format(name)}"])
    return Exit.DONE


def promoted(inference: TPUInference, *, full: bool) -> int:
    """How many steps of the canary are done after a promotion.

    Raises:
        CommandError: there is no step to promote.
    """
    name, spec, status = inference.metadata.name, inference.spec.rollout, inference.status
    if status.observed_generation != inference.metadata.generation:
        raise CommandError("the operator has not seen the last change of the spec yet", advice="try again")
    if rejected := rollout_of(inference).rejected:
        raise CommandError(
            f"an analysis has rejected revision {rejected}",
            advice="ask for another revision, or change spec.rollout.canary to try it again",
        )
    if rollout_of(inference).complete:
        raise CommandError(f"TPUInference {name} has no rollout under way")
    hold = status.rollout.hold
    if hold is not None and hold.gate is HoldGate.PARTITION:
        raise CommandError(
            f"spec.rollout.partition is {spec.partition}: that many copies stay at the revisions before",
            advice="lower it; 0 lets all copies go on",
        )
    steps, done = len(spec.canary.steps) if spec.canary else 0, status.rollout.canary_step
    if done >= steps:
        what = "all steps of its canary are done" if steps else "its rollout has no canary"
        advice = LOOK.format(name).replace(" --watch", "").replace("how far it comes", "what it waits for")
        raise CommandError(f"TPUInference {name}: {what}", advice=advice)
    return steps if full else done + 1


async def run_restart(call: Call) -> int:
    """Ask for a revision that differs in an annotation alone, so that all pods are made anew."""
    async with connect(call.place) as server:

        async def restart() -> None:
            await server.replace(restarted(await _wire(server, call), call.clock()))

        await _try(restart)
    name = call.options.name
    what = "by a new revision that is the same otherwise, within the budgets of spec.rollout"
    call.terminal.lines([f"tpuinference/{name} restarts {what}; {LOOK.format(name)}"])
    return Exit.DONE


def add_rollback(parser: Parser) -> None:
    """Add the arguments."""
    add_inference(parser)
    parser.add_argument(
        "--to-revision",
        metavar="REVISION",
        default="",
        help="name or number of a revision that `history` shows; default: the last that all replicas were of",
    )
    add_place(parser)


async def run_rollback(call: Call) -> int:
    """Ask for an earlier revision."""
    told = ""
    async with connect(call.place) as server:

        async def rollback() -> None:
            nonlocal told
            wire = await _wire(server, call)
            inference = read_inference(wire)
            entries = await entries_of(server, inference)
            entry = chosen(entries, inference, call.options.to_revision)
            await server.replace(returned(wire, entry))
            told = _told(inference, entries, entry)

        await _try(rollback)
    call.terminal.lines([told])
    return Exit.DONE


def _told(inference: TPUInference, entries: Sequence[Entry], entry: Entry) -> str:
    name = inference.metadata.name
    now = next((one for one in entries if one.name == inference.status.updated_revision), None)
    changes = some(list(differences(now.spec, entry.spec)), "; ") if now else ""
    what = f" ({changes})" if changes else ""
    stands = (
        "spec.rollout.paused is true, so that nothing moves before" if inference.spec.rollout.paused else ""
    )
    more = f"{stands} `kubectl tpu rollout resume {name}`" if stands else LOOK.format(name)
    return f"tpuinference/{name} goes back to revision {entry.name}, number {entry.number}{what}; {more}"


def add_history(parser: Parser) -> None:
    """Add the arguments."""
    add_inference(parser)
    parser.add_argument("--revision", metavar="REVISION", default="", help="all of one, by name or number")
    add_output(parser)
    add_place(parser)


async def run_history(call: Call) -> int:
    """Show the revisions that are remembered."""
    wanted = call.options.revision
    async with connect(call.place) as server:
        entries = await entries_of(server, await server.inference(call.options.name))
    if wanted:
        found = [one for one in entries if wanted in {one.name, str(one.number)}]
        if not found:
            there = ", ".join(f"{one.number} ({one.name})" for one in entries) or "none"
            raise CommandError(f"there is no revision {wanted}", Exit.NOT_FOUND, f"there are {there}")
        call.show(found[0], lambda: rolloutview.draw_entry(found[0], call.clock()))
        return Exit.DONE
    call.show(entries, lambda: rolloutview.draw_history(entries, call.clock(), call.terminal.style))
    return Exit.DONE


async def entries_of(server: Server, inference: TPUInference) -> list[Entry]:
    """The history of a TPUInference, from old to new."""
    selector = f"{names.LABEL_INFERENCE}={inference.metadata.name}"
    stored = await server.read(CONTROLLER_REVISIONS, ControllerRevision, labelSelector=selector)
    return history(inference, stored)


async def _wire(server: Server, call: Call) -> Object:
    return await server.get(INFERENCES, call.options.name)


async def _try(change: Callable[[], Awaitable[None]]) -> None:
    """Make a change to what is there now; again, where that was written in between."""
    for left in reversed(range(TRIES)):
        try:
            await change()
        except ApiError as error:
            if not error.conflict or not left:
                raise
        else:
            return


COMMANDS: Final = (
    Command("rollout status", "how far a rollout is, and what holds it", add_status, run_status),
    planning.COMMAND,
    Command("rollout pause", "stop a rollout where it is; repair goes on", add_one, run_pause),
    Command("rollout resume", "let a paused rollout go on", add_one, run_resume),
    Command("rollout promote", "end the present step of a canary, or all of them", add_promote, run_promote),
    Command("rollout rollback", "go back to a revision before", add_rollback, run_rollback),
    Command("rollout history", "revisions, and how each differs from the last", add_history, run_history),
    Command("rollout restart", "make all pods anew, within the budgets of rollouts", add_one, run_restart),
)

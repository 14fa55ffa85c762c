"""`kubectl tpu status NAME`: how a job or a TPUInference stands, once or for as long as it runs."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Final

from tpu_operator.cli import rolestatus
from tpu_operator.cli.command import Call, Command, Exit, Parser, add_output, add_place, add_target
from tpu_operator.cli.follow import Seen, follow, follow_inference, look
from tpu_operator.cli.hostrows import FOLD, HEADER, host_nodes, host_row
from tpu_operator.cli.hosts import ranges
from tpu_operator.cli.roletree import role_tree
from tpu_operator.cli.server import connect
from tpu_operator.cli.text import STATES, Cell, Node, Style, age, branches, flat, table
from tpu_operator.cli.tree import ENDED, Fault, Tree, tree
from tpu_operator.cli.watch import Picture, show, watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from tpu_operator.cli.text import Row
    from tpu_operator.cli.tree import Slice


def add(parser: Parser) -> None:
    """Add the arguments."""
    add_target(parser)
    parser.add_argument(
        "-w", "--watch", action="store_true", help="draw anew with every change, until it ends"
    )
    parser.add_argument("--all", action="store_true", help="a line for each host, however many there are")
    add_output(parser)
    add_place(parser)


async def run(call: Call) -> int:
    """Show the job, or the TPUInference."""
    everything = call.options.all
    jobs = Picture(tree, partial(draw, everything=everything), _ended)
    served = Picture(role_tree, partial(rolestatus.draw, everything=everything))
    async with connect(call.place) as server:
        seen = await look(server, call.options.target)
        if isinstance(seen, Seen):
            if call.options.watch:
                return await watch(call, jobs, follow(server, seen.job.metadata.name))
            show(call, jobs, seen)
            return Exit.DONE
        if call.options.watch:
            return await watch(call, served, follow_inference(server, seen.inference.metadata.name))
        show(call, served, seen)
        return Exit.DONE


def _ended(model: Tree) -> Exit | None:
    if model.phase not in ENDED:
        return None
    return Exit.DONE if model.phase == "Succeeded" else Exit.BAD


def draw(model: Tree, now: datetime, style: Style, *, everything: bool = False) -> list[str]:
    """The model as text."""
    head = table(list(_summary(model, now)), style)
    rows: list[Row] = [tuple(Cell(text, "bold") for text in HEADER)]
    rows.append(_root(model, now))
    rows += branches(_slices(model, everything=everything, now=now), style)
    return [*head, "", *table(rows, style)]


def _summary(model: Tree, now: datetime) -> Iterator[Row]:
    yield "Name:", f"{model.namespace}/{model.name}"
    hosts = f", {model.ready} hosts ready" if model.ready and model.phase not in ENDED else ""
    yield "Phase:", Cell(model.phase + hosts, STATES.get(model.phase, ""))
    if model.phase == "Unknown":
        yield "", "no operator has looked at the job yet; `kubectl tpu doctor` tells whether one runs"
    elif not model.up_to_date:
        yield "", "the operator has not seen the last change of the spec yet"
    yield "TPU:", f"{model.accelerator} {model.topology}" + (f", {model.shape}" if model.shape else "")
    if model.started:
        ended = f", ended {age(model.completed, now)} ago" if model.completed else ""
        yield "Started:", f"{age(model.started, now)} ago{ended}"
    yield "Restarts:", _restarts(model)
    if model.phase != "Succeeded":
        yield from _trouble(model, now)


def _restarts(model: Tree) -> str:
    restarts = model.restarts
    causes = ", ".join(f"{cause} {count}" for cause, count in restarts.by_cause.items())
    by_cause = f" ({causes})" if causes else ""
    return f"{restarts.total}{by_cause}, charged {restarts.counted} of {restarts.limit}"


def _trouble(model: Tree, now: datetime) -> Iterator[Row]:
    """What holds the job up, or has ended it, and what has failed last."""
    if model.pending:
        since = f" for {age(model.pending.since, now)}" if model.pending.since else ""
        yield "Waits:", Cell(f"{model.pending.reason}{since}: {flat(model.pending.message)}", "yellow")
    elif model.reason:
        colour = "red" if model.phase == "Failed" else "yellow"
        yield "Reason:", Cell(f"{model.reason}: {flat(model.message)}", colour)
    if model.last_failure:
        yield "Last failure:", _failure(model.last_failure, now)
    if model.maintenance:
        yield "Maintenance:", Cell(flat(model.maintenance), "yellow")


def _failure(fault: Fault, now: datetime) -> str:
    ago = f", {age(fault.time, now)} ago" if fault.time else ""
    return f"{fault.where}, attempt {fault.attempt}{ago}: {flat(fault.message)}"


def _root(model: Tree, now: datetime) -> Row:
    state = Cell(model.phase, STATES.get(model.phase, ""))
    return model.name, state, model.ready, str(model.restarts.total), age(model.created, now), "", ""


def _slices(model: Tree, *, everything: bool, now: datetime) -> list[Node]:
    groups = _grouped(model, everything=everything)
    found = [_slice(group, now, everything=everything) for group in groups]
    return [*found, *([Node(host_row(model.head, now))] if model.head else [])]


def _grouped(model: Tree, *, everything: bool) -> list[list[Slice]]:
    """Slices that have a line together: those that are whole and alike, where there are many."""
    if everything or len(model.slices) <= FOLD:
        return [[one] for one in model.slices]
    groups: defaultdict[tuple[object, ...], list[Slice]] = defaultdict(list)
    for one in model.slices:
        ready, _, of = one.ready.partition("/")
        alike = (one.state, one.ready, one.attempt) if ready == of else (one.index,)
        groups[alike].append(one)
    return sorted(groups.values(), key=lambda group: group[0].index)


def _slice(group: Sequence[Slice], now: datetime, *, everything: bool) -> Node:
    one = group[0]
    several = len(group) > 1
    name = f"slices {ranges(s.index for s in group)}" if several else f"slice {one.index}"
    state = Cell(one.state, STATES.get(one.state, ""))
    info = f"{len(group)} slices alike" if several else ""
    row = (name, state, one.ready, str(one.attempt), "", "" if several else one.node_pool, info)
    return Node(row, () if several else host_nodes(one.hosts, now, everything=everything))


COMMAND: Final = Command(
    "status", "how a job or a TPUInference stands: slices, hosts, restarts, what it waits for", add, run
)

"""`kubectl tpu status NAME`: how a job stands, once or for as long as it runs."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from tpu_operator.cli.command import Call, Command, Exit, Parser, add_job, add_output, add_place
from tpu_operator.cli.follow import Seen, follow, look
from tpu_operator.cli.hosts import ranges
from tpu_operator.cli.server import connect
from tpu_operator.cli.text import STATES, Cell, Style, age, flat, table
from tpu_operator.cli.tree import ENDED, Fault, Tree, tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from tpu_operator.cli.follow import Follower
    from tpu_operator.cli.hosts import Host
    from tpu_operator.cli.tree import Slice

FOLD: Final = 16
"""Hosts of a slice, and slices, up to which each has a line of its own."""
TICK: Final = 5.0
"""Seconds after which ages are drawn anew where nothing has changed; no request is made for that."""
HEADER: Final = ("NAME", "STATE", "READY", "RESTARTS", "AGE", "NODE", "INFO")

Row = tuple[str | Cell, ...]


def add(parser: Parser) -> None:
    """Add the arguments."""
    add_job(parser)
    parser.add_argument(
        "-w", "--watch", action="store_true", help="draw anew with every change, until it ends"
    )
    parser.add_argument("--all", action="store_true", help="a line for each host, however many there are")
    add_output(parser)
    add_place(parser)


async def run(call: Call) -> int:
    """Show the job."""
    name = call.options.name
    async with connect(call.place) as server:
        seen = await look(server, name)
        if not call.options.watch:
            _show(call, seen)
            return Exit.DONE
        async with follow(server, name) as follower:
            return await _watch(call, follower)


async def _watch(call: Call, follower: Follower) -> int:
    """Draw with every change; without a terminal only what has changed for more than its age."""
    last: Tree | None = None
    while True:
        try:
            seen = await follower.next(TICK if call.terminal.interactive and last else None)
        except TimeoutError:
            seen = follower.now()
        if seen is None:
            call.terminal.lines([f"TPUJob {call.options.name} is deleted"])
            return Exit.NOT_FOUND
        model = tree(seen, call.clock())
        if model != last or call.terminal.interactive:
            _show(call, seen, again=True)
        last = model
        if model.phase in ENDED:
            return Exit.DONE if model.phase == "Succeeded" else Exit.BAD


def _show(call: Call, seen: Seen, *, again: bool = False) -> None:
    now = call.clock()
    model = tree(seen, now)
    style = call.terminal.style
    if again and call.format == "text":
        lines = draw(model, now, style, everything=call.options.all)
        if call.terminal.interactive:
            call.terminal.redraw(lines)
        else:
            call.terminal.lines([*lines, ""])
        return
    call.show(model, lambda: draw(model, now, style, everything=call.options.all))


def draw(model: Tree, now: datetime, style: Style, *, everything: bool = False) -> list[str]:
    """The model as text."""
    head = table(list(_summary(model, now)), style)
    rows: list[Row] = [tuple(Cell(text, "bold") for text in HEADER)]
    rows.append(_root(model, now))
    rows += _slices(model, now, style, everything=everything)
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


def _slices(model: Tree, now: datetime, style: Style, *, everything: bool) -> Iterator[Row]:
    groups = _grouped(model, everything=everything)
    heads = [model.head] if model.head else []
    for number, group in enumerate(groups):
        last = number == len(groups) - 1 and not heads
        yield _slice_row(group, style.branch(last=last))
        if len(group) == 1:
            yield from _hosts(group[0].hosts, now, style, over=not last, everything=everything)
    for head in heads:
        yield _host_row(head, style.branch(last=True), now)


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


def _slice_row(group: Sequence[Slice], branch: str) -> Row:
    one = group[0]
    several = len(group) > 1
    name = f"slices {ranges(s.index for s in group)}" if several else f"slice {one.index}"
    state = Cell(one.state, STATES.get(one.state, ""))
    info = f"{len(group)} slices alike" if several else ""
    return f"{branch}{name}", state, one.ready, str(one.attempt), "", "" if several else one.node_pool, info


def _hosts(
    hosts: Sequence[Host], now: datetime, style: Style, *, over: bool, everything: bool
) -> Iterator[Row]:
    groups = [[one] for one in hosts] if everything or len(hosts) <= FOLD else _alike(hosts)
    for number, group in enumerate(groups):
        branch = style.branch(last=number == len(groups) - 1, depth=1, over=over)
        yield _host_row(group[0], branch, now) if len(group) == 1 else _fold(group, branch)


def _alike(hosts: Sequence[Host]) -> list[list[Host]]:
    """Hosts that have a line together: those in the same state with nothing to say about them."""
    groups: defaultdict[tuple[object, ...], list[Host]] = defaultdict(list)
    for one in hosts:
        groups[(one.pod,) if one.detail else (one.state, one.attempt)].append(one)
    return sorted(groups.values(), key=lambda group: group[0].host or 0)


def _fold(group: Sequence[Host], branch: str) -> Row:
    one = group[0]
    numbers = ranges(host.host for host in group if host.host is not None)
    ready = f"{sum(host.ready for host in group)}/{len(group)}"
    return f"{branch}hosts {numbers}", Cell(one.state, STATES.get(one.state, "")), ready, "", "", "", ""


def _host_row(host: Host, branch: str, now: datetime) -> Row:
    state = Cell(host.state, STATES.get(host.state, ""))
    restarts = str(host.restarts) if host.attempt >= 0 else ""
    ready = ("1/1" if host.ready else "0/1") if host.attempt >= 0 else ""
    name = f"{branch}{host.pod}"
    return name, state, ready, restarts, age(host.since, now), host.node, flat(host.detail)


COMMAND: Final = Command("status", "how a job stands: slices, hosts, restarts, what it waits for", add, run)

"""How `kubectl tpu status` draws a TPUInference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpu_operator.cli.hostrows import FOLD, HEADER, host_nodes
from tpu_operator.cli.hosts import ranges
from tpu_operator.cli.text import STATES, Cell, Node, Style, age, branches, flat, table
from tpu_operator.core.pending import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from tpu_operator.cli.roletree import Part, Replica, Revision, RoleTree, Rollout
    from tpu_operator.cli.text import Row

READY: Final = "Ready"


def draw(model: RoleTree, now: datetime, style: Style, *, everything: bool = False) -> list[str]:
    """The model as text."""
    head = table(list(summary(model, now)), style)
    root = (model.name, _state(model.phase), "", str(model.restarts), age(model.created, now), "", "")
    nodes = [_revision(one, model, now, everything=everything) for one in model.revisions]
    titles = tuple(Cell(text, "bold") for text in HEADER)
    return [*head, "", *table([titles, root, *branches(nodes, style)], style)]


def summary(model: RoleTree, now: datetime) -> Iterator[Row]:
    """What is said above the tree."""
    yield "Name:", f"{model.namespace}/{model.name}"
    ready = f", ready {model.ready}" if model.ready else ""
    yield "Phase:", Cell(model.phase + ready, STATES.get(model.phase, ""))
    if model.phase == "Unknown":
        yield "", "no operator has looked at it yet; `kubectl tpu doctor` tells whether one runs"
    elif not model.up_to_date:
        yield "", "the operator has not seen the last change of the spec yet"
    yield "Model:", f"{flat(model.model)}, by {model.engine}"
    yield from rollout_rows(model, now)
    if model.pending:
        since = f" for {age(model.pending.since, now)}" if model.pending.since else ""
        yield "Waits:", Cell(f"{model.pending.reason}{since}: {flat(model.pending.message)}", "yellow")
    elif model.reason and not (model.rollout.hold and model.reason == model.rollout.hold.gate):
        yield "Reason:", Cell(f"{model.reason}: {flat(model.message)}", "yellow")
    yield "Restarts:", str(model.restarts)
    if failure := model.last_failure:
        ago = f", {age(failure.time, now)} ago" if failure.time else ""
        yield "Last failure:", f"{failure.where}{ago}: {flat(failure.message)}"


def rollout_rows(model: RoleTree, now: datetime) -> Iterator[Row]:
    """How far the rollout is, and what holds it."""
    rollout = model.rollout
    yield "Rollout:", Cell(_rollout(model), STATES.get(rollout.state, ""))
    if rollout.canary_steps and not rollout.complete:
        yield "Canary:", _canary(rollout)
    if rollout.rejected:
        yield "Rejected:", Cell(flat(rollout.rejected), "red")
    if rollout.hold:
        since = f" for {age(rollout.hold.since, now)}" if rollout.hold.since else ""
        colour = "red" if rollout.overdue else "yellow"
        yield "Held by:", Cell(f"{rollout.hold.gate}{since}: {flat(rollout.hold.reason)}", colour)


def _rollout(model: RoleTree) -> str:
    rollout, newest = model.rollout, model.updated_revision
    if rollout.state == "Idle":
        return f"{rollout.state}, revision {newest}" if newest else rollout.state
    way = f"{model.current_revision} -> {newest}" if model.current_revision else f"to {newest}"
    return f"{rollout.state}, {way}, of which are ready {rollout.step}"


def _canary(rollout: Rollout) -> str:
    done, steps = rollout.canary_step, rollout.canary_steps
    return f"step {done + 1} of {steps}" if done < steps else f"all {counted(steps, 'step', 'steps')} done"


def _state(word: str) -> Cell:
    return Cell(word, STATES.get(word, ""))


def _revision(one: Revision, model: RoleTree, now: datetime, *, everything: bool) -> Node:
    state = Cell("Servable", "green") if one.servable else Cell("Incomplete", "yellow")
    several = len(model.revisions) > 1
    info = ("new" if one.newest else "old") if several else ""
    targets = model.targets if one.newest else {}
    parts = [_part(part, targets.get(part.role), now, everything=everything) for part in one.parts]
    return Node((f"revision {one.name}", state, "", "", "", "", info), parts)


def _part(part: Part, target: int | None, now: datetime, *, everything: bool) -> Node:
    info = [
        f"{part.kept} of {target}" if target is not None and part.kept != target else "",
        f"{part.leaving} leaving" if part.leaving else "",
    ]
    row = (part.role, "", f"{part.ready}/{part.kept}", "", "", "", ", ".join(filter(None, info)))
    return Node(
        row, [_replicas(group, now, everything=everything) for group in _grouped(part, everything=everything)]
    )


def _grouped(part: Part, *, everything: bool) -> list[list[Replica]]:
    """Replicas that have a line together: those that are ready, where there are many."""
    if everything or len(part.replicas) <= FOLD:
        return [[one] for one in part.replicas]
    ready = [one for one in part.replicas if one.state == READY]
    rest = [[one] for one in part.replicas if one.state != READY]
    return sorted([*([ready] if ready else []), *rest], key=lambda group: group[0].index)


def _replicas(group: Sequence[Replica], now: datetime, *, everything: bool) -> Node:
    one = group[0]
    if len(group) > 1:
        name = f"replicas {ranges(each.index for each in group)}"
        return Node((name, _state(one.state), f"{len(group)}/{len(group)}", "", "", "", ""))
    restarts, since = str(one.restarts), age(one.since, now)
    row = (f"replica {one.index}", _state(one.state), one.ready, restarts, since, one.node_pool, one.reason)
    shown = one.hosts if everything else [host for host in one.hosts if host.state != "Running"]
    return Node(row, host_nodes(shown, now, everything=everything))

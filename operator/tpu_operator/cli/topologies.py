"""`kubectl tpu topologies`: which slices there are, and which of them the cluster has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tpu_operator.catalog import (
    GENERATIONS,
    CatalogError,
    Generation,
    SliceShape,
    expected_topology,
    find,
    resolve,
)
from tpu_operator.cli.command import Call, Command, CommandError, Exit, Parser, add_output, add_place
from tpu_operator.cli.pools import Pool, pools
from tpu_operator.cli.server import connect
from tpu_operator.cli.text import Cell, Style, table
from tpu_operator.core import names
from tpu_operator.core.snapshot import Node, Pod
from tpu_operator.engine.resources import NODES, PODS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MACHINES: Final = (1, 4, 8)
"""Chips that a host can have."""


class Topology(msgspec.Struct, frozen=True, rename="camel"):
    """A slice that exists.

    Attributes:
        accelerator: short name.
        topology: chips in each dimension.
        chips: of the slice.
        hosts: of the slice.
        chips_per_host: of each host.
        ambiguous: whether spec.tpu.chipsPerHost has to choose between this one and another.
        label: value of GKE's node label.
    """

    accelerator: str
    topology: str
    chips: int
    hosts: int
    chips_per_host: int
    ambiguous: bool
    label: str


def topologies(generations: Sequence[Generation]) -> list[Topology]:
    """The slices that have a name; larger ones are made of cubes."""
    return [found for generation in generations for found in _of(generation)]


def _of(generation: Generation) -> Iterator[Topology]:
    for topology in generation.topologies:
        shapes = _shapes(generation, topology)
        for shape in shapes:
            yield Topology(
                accelerator=generation.name,
                topology=topology,
                chips=shape.chips,
                hosts=shape.hosts,
                chips_per_host=shape.chips_per_host,
                ambiguous=len(shapes) > 1,
                label=generation.accelerator,
            )


def _shapes(generation: Generation, topology: str) -> list[SliceShape]:
    """What a topology can be: of one kind of machine in most cases."""
    found = []
    for chips in MACHINES:
        try:
            found.append(resolve(generation.name, topology, chips))
        except CatalogError:
            continue
    return found


def add(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("accelerator", metavar="ACCELERATOR", nargs="?", help="only this one, such as v5e")
    parser.add_argument(
        "--available", action="store_true", help="node pools of the cluster, and who is in them"
    )
    add_output(parser)
    add_place(parser)


async def run(call: Call) -> int:
    """List topologies, or node pools."""
    generations = _chosen(call.options.accelerator)
    style = call.terminal.style
    if call.options.available:
        found = await _available(call, generations)
        call.show(found, lambda: draw_pools(found, style))
        return Exit.DONE
    known = topologies(generations)
    call.show(known, lambda: draw(known, generations, style))
    return Exit.DONE


def _chosen(accelerator: str | None) -> Sequence[Generation]:
    if not accelerator:
        return GENERATIONS
    if (found := find(accelerator)) is not None:
        return (found,)
    known = ", ".join(generation.name for generation in GENERATIONS)
    raise CommandError(
        f"accelerator {accelerator} is not in the catalog",
        Exit.NOT_FOUND,
        f"it has {known}; a job may use others if it says spec.tpu.chipsPerHost",
    )


async def _available(call: Call, generations: Sequence[Generation]) -> list[Pool]:
    async with connect(call.place) as server:
        nodes = await server.read(NODES, Node, everywhere=True, labelSelector=names.NODE_ACCELERATOR)
        pods = await server.try_read(PODS, Pod, everywhere=True, labelSelector=names.LABEL_JOB)
    labels = {generation.accelerator for generation in generations} if call.options.accelerator else None
    return [pool for pool in pools(nodes, pods) if labels is None or pool.accelerator in labels]


def draw(known: Sequence[Topology], generations: Sequence[Generation], style: Style) -> list[str]:
    """Topologies as a table, and what there is beside them."""
    head = [Cell(text, "bold") for text in ("ACCELERATOR", "TOPOLOGY", "CHIPS", "HOSTS", "CHIPS/HOST", "")]
    rows = [
        (
            one.accelerator,
            one.topology,
            str(one.chips),
            str(one.hosts),
            str(one.chips_per_host),
            f"with chipsPerHost: {one.chips_per_host}" if one.ambiguous else "",
        )
        for one in known
    ]
    more = [
        f"{generation.name}, larger ones: {expected_topology(generation).partition(', or ')[2]}"
        for generation in generations
        if generation.max_cubes
    ]
    return [*table([head, *rows], style), *([""] if more else []), *more]


def draw_pools(found: Sequence[Pool], style: Style) -> list[str]:
    """Node pools as a table."""
    if not found:
        return ["the cluster has no nodes with TPUs of that kind"]
    titles = ("NODE POOL", "ACCELERATOR", "TOPOLOGY", "CHIPS/HOST", "HOSTS", "USABLE", "HELD BY")
    rows = [
        (
            pool.name,
            pool.accelerator,
            pool.topology,
            str(pool.chips_per_host),
            f"{pool.nodes}/{pool.hosts}" if pool.hosts else str(pool.nodes),
            Cell(str(pool.usable), "green" if pool.usable == pool.nodes else "yellow"),
            _holders(pool),
        )
        for pool in found
    ]
    return table([[Cell(text, "bold") for text in titles], *rows], style)


def _holders(pool: Pool) -> str | Cell:
    if pool.held_by is None:
        return "(you may not look at pods of all namespaces)"
    return ", ".join(pool.held_by) or Cell("free", "green")


COMMAND: Final = Command("topologies", "which slices there are; --available: those of the cluster", add, run)

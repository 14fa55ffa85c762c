"""`kubectl tpu top NAME`: what hosts use, and whether their processes are at work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from tpu_operator.cli import choose, launchers
from tpu_operator.cli.command import Call, Command, Exit, Parser, add_job, add_output, add_place
from tpu_operator.cli.server import connect
from tpu_operator.cli.text import Cell, Style, duration, table
from tpu_operator.core import names
from tpu_operator.engine.client import ApiError
from tpu_operator.engine.resources import Resource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpu_operator.cli.server import Server

Object = dict[str, Any]

USAGE: Final = Resource("metrics.k8s.io", "v1beta1", "pods", "PodMetrics")
PREFIX: Final = "tpu_launch_"
QUIET: Final = 60.0
"""Seconds without output after which a host is pointed out."""


class Row(msgspec.Struct, frozen=True, rename="camel"):
    """What a host is doing; None for what is not known.

    Attributes:
        pod: its name.
        node: where it is.
        cpu: cores in use, as metrics.k8s.io writes them.
        memory: memory in use, the same.
        processes: processes that run.
        gate_seconds: seconds at the launcher's gate, so far or in all.
        gate_passed: whether it has passed it.
        quiet_seconds: since a process last wrote something.
    """

    pod: str
    node: str
    cpu: str | None = None
    memory: str | None = None
    processes: int | None = None
    gate_seconds: float | None = None
    gate_passed: bool | None = None
    quiet_seconds: float | None = None


def row(pod: Object, usage: Object | None, metrics: str | None) -> Row:
    """What is known of a host: from its pod, metrics.k8s.io, and the launcher's /metrics."""
    figures = launcher(metrics or "")
    main: Object = next(
        (c for c in (usage or {}).get("containers", []) if c["name"] == names.MAIN_CONTAINER), {}
    )
    used = main.get("usage", {})
    passed = figures.get("gate_passed")
    running = figures.get("processes_running")
    return Row(
        pod=pod["metadata"]["name"],
        node=pod["spec"].get("nodeName", ""),
        cpu=used.get("cpu"),
        memory=used.get("memory"),
        processes=None if running is None else int(running),
        gate_seconds=figures.get("gate_seconds"),
        gate_passed=None if passed is None else bool(passed),
        quiet_seconds=figures.get("heartbeat_age_seconds"),
    )


def launcher(text: str) -> Mapping[str, float]:
    """The launcher's figures by name, without its prefix."""
    return {
        sample.name.removeprefix(PREFIX): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(PREFIX)
    }


def add(parser: Parser) -> None:
    """Add the arguments."""
    add_job(parser)
    choose.add(parser)
    add_output(parser)
    add_place(parser)


async def run(call: Call) -> int:
    """Show the figures."""
    async with connect(call.place) as server:
        pods = await launchers.hosts(server, call.options)
        selector = f"{names.LABEL_JOB}={call.options.name}"
        usage = await server.try_read(USAGE, Object, labelSelector=selector)
        rows = await _rows(server, pods, usage or [])
    call.show(rows, lambda: draw(rows, call.terminal.style, usage=usage is not None))
    return Exit.DONE


async def _rows(server: Server, pods: Sequence[Object], usage: Sequence[Object]) -> list[Row]:
    by_name = {one["metadata"]["name"]: one for one in usage}

    async def read(pod: Object) -> Row:
        return row(pod, by_name.get(pod["metadata"]["name"]), await _metrics(server, pod))

    return await launchers.of_each(pods, read)


async def _metrics(server: Server, pod: Object) -> str | None:
    """The launcher's metrics; None where they cannot be had: it does not run, or the caller may not ask."""
    path = launchers.path(server, pod, "metrics")
    try:
        return (await server.api.request("GET", path, timeout=launchers.PATIENCE)).decode(errors="replace")
    except ApiError:
        return None


def draw(rows: Sequence[Row], style: Style, *, usage: bool) -> list[str]:
    """Figures as a table."""
    titles = ("HOST", "NODE", "CPU", "MEMORY", "PROCESSES", "GATE", "QUIET FOR")
    lines = [(one.pod, one.node, one.cpu or "-", one.memory or "-", *_launched(one)) for one in rows]
    more = [] if usage else ["CPU and memory need the metrics server, which this cluster does not have"]
    return [*table([[Cell(text, "bold") for text in titles], *lines], style), *more]


def _launched(one: Row) -> tuple[str | Cell, ...]:
    if one.processes is None or one.gate_seconds is None:
        return "-", "-", "-"
    gate = (
        f"passed in {duration(one.gate_seconds)}"
        if one.gate_passed
        else f"waits {duration(one.gate_seconds)}"
    )
    quiet = one.quiet_seconds
    silent = "-" if quiet is None else Cell(duration(quiet), "yellow" if quiet > QUIET else "")
    return str(one.processes), Cell(gate, "" if one.gate_passed else "yellow"), silent


COMMAND: Final = Command("top", "what hosts use, and whether their processes are at work", add, run)

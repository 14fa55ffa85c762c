"""`kubectl tpu stacks NAME`: where the processes of a job stand, all hosts at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tpu_operator.cli import choose, launchers
from tpu_operator.cli.command import Call, Command, Exit, Parser, add_job, add_output, add_place
from tpu_operator.cli.server import connect
from tpu_operator.cli.text import clean
from tpu_operator.engine.client import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpu_operator.cli.server import Server
    from tpu_operator.cli.text import Style

Object = dict[str, Any]


class Host(msgspec.Struct, frozen=True):
    """Where the processes of a host stand.

    Attributes:
        pod: its name.
        stacks: the stacks of all threads of its processes, or why there are none.
        error: why the host does not answer; empty if it does.
    """

    pod: str
    stacks: str = ""
    error: str = ""


def add(parser: Parser) -> None:
    """Add the arguments."""
    add_job(parser)
    choose.add(parser)
    add_output(parser)
    add_place(parser)


async def run(call: Call) -> int:
    """Show the stacks."""
    async with connect(call.place) as server:
        pods = await launchers.hosts(server, call.options)
        found = await launchers.of_each(pods, lambda pod: _ask(server, pod))
    call.show(found, lambda: draw(found, call.terminal.style))
    return Exit.BAD if any(host.error for host in found) else Exit.DONE


async def _ask(server: Server, pod: Object) -> Host:
    name = pod["metadata"]["name"]
    path = launchers.path(server, pod, "stacks")
    try:
        text = (await server.api.request("GET", path, timeout=launchers.PATIENCE)).decode(errors="replace")
    except ApiError as error:
        return Host(name, error=error.message or str(error))
    return Host(name, clean(text).strip())


def draw(found: Sequence[Host], style: Style) -> Iterator[str]:
    """Stacks as text, each host below its name."""
    for host in found:
        yield style.paint(host.pod, "bold")
        text = f"no answer: {host.error}" if host.error else host.stacks
        yield from (f"  {line}".rstrip() for line in text.splitlines())


COMMAND: Final = Command(
    "stacks",
    "where the processes of a job stand: Python stacks of all their threads, on all hosts",
    add,
    run,
    details="Of processes that have started JAX or TorchTPU, or called tpu_runtime.heartbeat(); they go on.",
)

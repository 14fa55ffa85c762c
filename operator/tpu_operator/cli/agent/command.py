"""`kubectl tpu mcp`: serves an agent until it hangs up."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from tpu_operator.cli.command import Call, Command, CommandError, Exit, Parser, add_place

SDK: Final = "mcp"


def add(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--allow-writes", action="store_true", help="also tools that change something, such as restart"
    )
    add_place(parser)


async def run(call: Call) -> int:
    """Serve until the end of standard input."""
    if find_spec(SDK) is None:
        raise CommandError(
            "the MCP SDK is not installed",
            advice=f"`pipx inject tpu-operator {SDK}`, or install tpu-operator[mcp]",
        )
    # What the operator's image does not have is imported by nobody else.
    from tpu_operator.cli.agent.server import server  # noqa: PLC0415

    made = server(call.place, call.clock, writes=call.options.allow_writes)
    await made.run_stdio_async()
    return Exit.DONE


COMMAND: Final = Command(
    "mcp",
    "the commands as tools for a coding agent, by the Model Context Protocol",
    add,
    run,
    details="An agent starts it, and talks to it by standard input and output; docs/agents.md has the "
    "configuration. It acts with your kubeconfig and your rights, and only reads without --allow-writes.",
)

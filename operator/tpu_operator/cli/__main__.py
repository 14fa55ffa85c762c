"""The `kubectl-tpu` command, which kubectl runs as `kubectl tpu`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from tpu_operator.cli import (
    change,
    completion,
    doctor,
    execute,
    explain,
    happenings,
    logs,
    profile,
    rollout,
    run,
    stacks,
    status,
    top,
    topologies,
    wait,
    why,
)
from tpu_operator.cli.agent import command as mcp
from tpu_operator.cli.command import Call, Command, CommandError, Exit, Parser
from tpu_operator.cli.dashboard import command as dashboard
from tpu_operator.cli.migrate import command as migrate
from tpu_operator.cli.server import explain as explain_error
from tpu_operator.cli.text import Terminal
from tpu_operator.engine.client import ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = (
    status.COMMAND,
    why.COMMAND,
    logs.COMMAND,
    run.COMMAND,
    *change.COMMANDS,
    *rollout.COMMANDS,
    wait.COMMAND,
    happenings.COMMAND,
    execute.COMMAND,
    top.COMMAND,
    stacks.COMMAND,
    profile.COMMAND,
    topologies.COMMAND,
    explain.COMMAND,
    doctor.COMMAND,
    migrate.COMMAND,
    dashboard.COMMAND,
    mcp.COMMAND,
)
GROUPS = {"rollout": "look at the rollout of a TPUInference, stop it, let it go on, go back"}
"""What commands of two words have in common, by the first."""
PROGRAM = "kubectl tpu"


def parsers() -> tuple[Parser, dict[str, Parser]]:
    """The parser of the whole command line, and that of each command."""
    text = "TPU jobs and models that are served: run them, look at them, find out what is wrong."
    whole = Parser(prog=PROGRAM, description=text)
    groups: dict[str, Any] = {"": _commands(whole, "command")}
    found: dict[str, Parser] = {}
    for command in COMMANDS:
        group, _, word = command.name.rpartition(" ")
        if group not in groups:
            parser = groups[""].add_parser(group, help=GROUPS[group], description=GROUPS[group])
            groups[group] = _commands(parser, "action")
        parser = groups[group].add_parser(
            word, help=command.help, description=command.help, epilog=command.details or None
        )
        if command.words:
            parser.usage = f"{PROGRAM} {command.name} [options] [NAME] -- {command.words}"
        command.add(parser)
        found[command.name] = parser
    return whole, found


def _commands(parser: Parser, dest: str) -> Any:
    return parser.add_subparsers(dest=dest, required=True, metavar=dest.upper(), parser_class=Parser)


def main() -> None:
    """Run the command that the arguments name."""
    # What the watches say of their troubles is not for the middle of somebody's screen.
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    terminal = Terminal(sys.stdout, os.environ, interactive=sys.stdout.isatty())
    try:
        code = call(sys.argv[1:], terminal)
    except BrokenPipeError:
        # Whoever read our answer has enough of it, such as `head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = Exit.DONE
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    sys.exit(code)


def call(arguments: Sequence[str], terminal: Terminal) -> int:
    """Run a command line; returns its exit code."""
    ours, words = split(arguments)
    whole, _ = parsers()
    options = whole.parse_args(ours)
    action = getattr(options, "action", "")
    name = f"{options.command} {action}" if action else options.command
    command = next(command for command in COMMANDS if command.name == name)
    if words and not command.words:
        whole.error(f"{command.name} takes nothing after `--`: {' '.join(words)}")
    try:
        return _run(command, Call(options, terminal, words))
    except CommandError as error:
        return _tell(error)
    except ApiError as error:
        return _tell(explain_error(error))


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is for us, and what comes after the first `--`."""
    whole = list(arguments)
    if "--" not in whole:
        return whole, []
    at = whole.index("--")
    return whole[:at], whole[at + 1 :]


def _run(command: Command, call: Call) -> int:
    async def whole() -> int:
        return await command.run(call)

    return asyncio.run(whole())


def _tell(error: CommandError) -> int:
    advice = f"\n{error.advice}" if error.advice else ""
    sys.stderr.write(f"error: {error}{advice}\n")
    return error.code


def complete() -> None:
    """Answer kubectl, which asks what the last of the arguments may become."""
    logging.basicConfig(level=logging.CRITICAL)
    sys.stdout.write(completion.answer(sys.argv[1:], parsers()[1]))


if __name__ == "__main__":
    main()

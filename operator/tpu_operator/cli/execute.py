"""`kubectl tpu exec NAME -- COMMAND`: a command on a host of a job, by way of `kubectl exec`."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Final

from tpu_operator.cli import choose
from tpu_operator.cli.command import Call, Command, CommandError, Exit, Parser, add_job, add_place, number
from tpu_operator.cli.server import connect
from tpu_operator.core import names

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tpu_operator.cli.command import Place

SHELL: Final = ("/bin/sh",)
"""What runs where nothing is said."""


def add(parser: Parser) -> None:
    """Add the arguments."""
    add_job(parser)
    parser.add_argument(
        "--rank", type=number, default=0, help="host, counted over all slices as NODE_RANK is (%(default)s)"
    )
    parser.add_argument("-c", "--container", default=names.MAIN_CONTAINER, help="(%(default)s)")
    add_place(parser)


def arguments(
    pod: str, options: argparse.Namespace, place: Place, words: Sequence[str], *, tty: bool
) -> list[str]:
    """The command line of kubectl."""
    return [
        "kubectl",
        "exec",
        *place.arguments(),
        *(["--stdin", "--tty"] if tty else ["--stdin"]),
        f"--container={options.container}",
        pod,
        "--",
        *(words or SHELL),
    ]


async def run(call: Call) -> int:
    """Run it; the exit code is the command's."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise CommandError(
            "there is no kubectl on PATH, which exec needs", advice="install it, or extend PATH"
        )
    async with connect(call.place) as server:
        job = await server.job(call.options.name)
        (pod,) = choose.Choice(ranks=(call.options.rank,)).pods(job)
        if pod not in {one.name for one in await server.pods(job)}:
            advice = f"`kubectl tpu why {job.metadata.name}` says what it waits for"
            raise CommandError(f"host {call.options.rank} has no pod now ({pod})", Exit.NOT_FOUND, advice)
    tty = call.terminal.interactive and sys.stdin.isatty()
    os.execv(kubectl, arguments(pod, call.options, call.place, call.words, tty=tty))  # noqa: S606 - no shell


COMMAND: Final = Command(
    "exec", "a command on a host, by default a shell on host 0", add, run, words="COMMAND [ARGUMENT...]"
)

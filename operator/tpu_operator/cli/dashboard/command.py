"""`kubectl tpu dashboard`: serves the page until it is interrupted."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager
from socket import SO_REUSEADDR, SOL_SOCKET, socket
from typing import TYPE_CHECKING, Final

from aiohttp import web

from tpu_operator.cli.command import Call, Command, CommandError, Exit, Parser, add_place, number
from tpu_operator.cli.dashboard.board import Board, watching
from tpu_operator.cli.dashboard.web import LOOPBACK, TOKEN, Site
from tpu_operator.cli.server import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

GOODBYE: Final = 1.0
"""Seconds that open pages get when the command ends."""


def add(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")
    parser.add_argument("--port", type=number, default=0, help="port on loopback; default: one that is free")
    add_place(parser)


async def run(call: Call) -> int:
    """Serve until somebody interrupts."""
    async with (
        connect(call.place) as server,
        watching(Board(server, everywhere=call.options.all_namespaces, clock=call.clock)) as board,
        serving(board, call.options.port) as address,
    ):
        call.terminal.lines([f"{board.place}: {address}", "Ctrl-C ends it; it shows, and changes nothing"])
        await asyncio.Event().wait()
    return Exit.DONE


@asynccontextmanager
async def serving(board: Board, port: int = 0) -> AsyncIterator[str]:
    """Serve the pages for as long as the context lasts; their address, with the token.

    Raises:
        CommandError: the port is taken.
    """
    listener = _listen(port)
    port = listener.getsockname()[1]
    token = secrets.token_urlsafe(24)
    runner = web.AppRunner(Site(board, token, port).application(), access_log=None, shutdown_timeout=GOODBYE)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        yield f"http://{LOOPBACK}:{port}/?{TOKEN}={token}"
    finally:
        await runner.cleanup()
        listener.close()


def _listen(port: int) -> socket:
    listener = socket()
    try:
        listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise CommandError(
            f"port {port} of {LOOPBACK} cannot be had: {error}", Exit.USAGE, "choose another with --port"
        ) from error
    return listener


COMMAND: Final = Command("dashboard", "a page that shows jobs, models and rollouts, on loopback", add, run)

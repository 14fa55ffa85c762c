"""`tpu-launch --spare`: hold a node for a slice that may need it, and wait to be told to go."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tpu_runtime import http, report
from tpu_runtime.early import STOP_SIGNALS, heard

if TYPE_CHECKING:
    from collections.abc import Mapping


async def wait(port: int) -> int:
    """Answer probes until a signal to stop comes; returns the exit code of the container.

    Args:
        port: where to answer.
    """
    stopped = asyncio.Event()
    for signum in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    if heard:
        stopped.set()
    server = http.Server(_handle)
    await server.start(port)
    report.say("a spare: this host waits to be taken over by a slice of its job")
    await stopped.wait()
    await server.close()
    return 0


async def _handle(request: http.Request) -> http.Response:
    """Answer a request."""
    pages: Mapping[str, str] = {"/healthz": "ok", "/readyz": "ok, a spare"}
    page = pages.get(request.path)
    return http.text(200, page) if page else http.text(404, f"there is nothing at {request.path} of a spare")

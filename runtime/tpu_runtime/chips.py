"""Figures of the chips for the launcher's `/metrics`, as far as libtpu has any.

libtpu is asked in a process of its own, in the interpreter that the job's command names: it takes 120 MB and
a third of a second, native code that fails ends its process, and there may be no libtpu at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from tpu_runtime import libtpu
from tpu_runtime.aio import within
from tpu_runtime.frameworks.torchtpu import interpreter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_EVERY_SECONDS = 15.0
_SECONDS = 3.0


@dataclass
class Chips:
    """The chips of this host.

    Attributes:
        argv: the job's command, whose interpreter has libtpu, or has not.
        variables: its environment.
    """

    argv: Sequence[str]
    variables: Mapping[str, str]
    _asked: float = -math.inf
    _answer: Optional[asyncio.Future[str]] = None

    async def metrics(self) -> str:
        """What libtpu says, in the text format of Prometheus; nothing if it is not there or says nothing.

        It is asked every fifteen seconds at most, whoever wants to know. Its process is left to the launcher
        to reap, which does so as long as it has processes of the job.
        """
        now = time.monotonic()
        if self._answer is None or (self._answer.done() and now - self._asked >= _EVERY_SECONDS):
            self._asked, self._answer = now, asyncio.ensure_future(self._ask())
        return await asyncio.shield(self._answer)

    async def _ask(self) -> str:
        command = [interpreter(self.argv), "-m", libtpu.__name__]
        variables = {**self.variables, "TPU_SKIP_MDS_QUERY": "true"}  # or libtpu asks a server for minutes
        said = (await _output(command, variables)).decode(errors="replace")
        ours = (f"# HELP {libtpu.PREFIX}", f"# TYPE {libtpu.PREFIX}", libtpu.PREFIX)
        return "".join(line for line in said.splitlines(keepends=True) if line.startswith(ours))


async def _output(argv: Sequence[str], variables: Mapping[str, str]) -> bytes:
    """What a process writes before it ends; nothing if it takes too long, for which it is killed."""
    mine, its = os.pipe()
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(mine, "rb", 0)
    )
    try:
        pid = _spawn(argv, variables, its)
    except OSError:
        transport.close()
        return b""
    finally:
        os.close(its)
    try:
        return await within(_SECONDS, reader.read())
    except asyncio.TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return b""
    finally:
        transport.close()


def _spawn(argv: Sequence[str], variables: Mapping[str, str], stdout: int) -> int:
    """Start a process whose stderr nobody reads."""
    actions = [(os.POSIX_SPAWN_DUP2, stdout, 1), (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]
    return os.posix_spawnp(argv[0], list(argv), dict(variables), file_actions=actions, setsigmask=[])

"""Traces of all processes of a host at once, for XProf, on demand: `POST /profile`, then `GET /profile/NAME`.

Each process writes its own, by the profiler of JAX or of TorchTPU (`tpu_runtime.tracing`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Optional

from tpu_runtime import http
from tpu_runtime.aio import within
from tpu_runtime.processes import descendants
from tpu_runtime.tracing import SOCKET

PATH = "/profile"
LONGEST = 600.0
_WRITE_SECONDS = 120.0
"""Time to write a trace, which takes longer than to record it where much has happened."""
_TRACES = "traces"
_SUFFIX = ".xplane.pb"


@dataclass
class Profiler:
    """Takes traces of the processes of one attempt, one at a time.

    Attributes:
        folder: the launcher's directory, where processes wait to be asked; None if there is none.
    """

    folder: Optional[Path]
    _busy: bool = False

    async def take(self, body: bytes) -> http.Response:
        """Trace all processes, and answer with the names of the traces; they replace those before."""
        try:
            seconds = float(json.loads(body)["seconds"])
        except (ValueError, KeyError, TypeError):
            seconds = 0.0
        if not 0 < seconds <= LONGEST:
            text = f'seconds: send {{"seconds": N}}, more than 0 and at most {LONGEST:.0f}'
            return http.text(HTTPStatus.BAD_REQUEST, text)
        waiting = self._waiting()
        if self.folder is None or not waiting:
            return http.text(HTTPStatus.CONFLICT, "no process has started JAX or TorchTPU yet")
        if self._busy:
            return http.text(HTTPStatus.CONFLICT, "a trace is being taken already; try again after it")
        self._busy = True
        try:
            return await self._take(self.folder / _TRACES, waiting, seconds)
        finally:
            self._busy = False

    def file(self, name: str) -> http.Response:
        """One of the traces."""
        file = self.folder / _TRACES / name if self.folder else Path(name)
        if not name.endswith(_SUFFIX) or "/" in name or not file.is_file():
            return http.text(HTTPStatus.NOT_FOUND, f"there is no trace {name}: POST {PATH} takes some")
        return http.Response(HTTPStatus.OK, b"", "application/octet-stream", file)

    def _waiting(self) -> dict[int, Path]:
        """Sockets of processes that can be asked, by their IDs."""
        alive = set(descendants(os.getpid()))
        sockets = sorted(self.folder.glob(f"{SOCKET}*")) if self.folder else []
        pids = {int(path.name[len(SOCKET) :]): path for path in sockets}
        return {pid: pids[pid] for pid in sorted(alive & pids.keys())}

    async def _take(self, folder: Path, waiting: dict[int, Path], seconds: float) -> http.Response:
        shutil.rmtree(folder, ignore_errors=True)
        asked = {pid: _ask(path, folder / str(pid), seconds) for pid, path in waiting.items()}
        errors = dict(zip(asked, await asyncio.gather(*asked.values())))  # noqa: B905 - not in Python 3.9
        files = [file for pid in waiting for file in _gathered(folder, pid)]
        return http.json_response(
            HTTPStatus.OK,
            {
                "files": [{"name": file.name, "bytes": file.stat().st_size} for file in files],
                "errors": [f"process {pid}: {error}" for pid, error in errors.items() if error],
            },
        )


def _gathered(folder: Path, pid: int) -> list[Path]:
    """What a process has written, out of the directories that XProf wants it to be in."""
    found = []
    for number, file in enumerate(sorted((folder / str(pid)).rglob(f"*{_SUFFIX}"))):
        found.append(folder / f"{pid}-{number}{_SUFFIX}")
        file.rename(found[-1])
    shutil.rmtree(folder / str(pid), ignore_errors=True)
    return found


async def _ask(path: Path, folder: Path, seconds: float) -> str:
    """Have a process write a trace; what has gone wrong, empty if nothing has."""
    try:
        return await within(seconds + _WRITE_SECONDS, _exchange(path, folder, seconds))
    except asyncio.TimeoutError:
        return f"no trace within {_WRITE_SECONDS:.0f} s after its end"
    except (OSError, ValueError) as error:
        return f"it does not answer: {error}"


async def _exchange(path: Path, folder: Path, seconds: float) -> str:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(json.dumps({"folder": str(folder), "seconds": seconds}).encode() + b"\n")
        return str(json.loads(await reader.read())["error"])
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

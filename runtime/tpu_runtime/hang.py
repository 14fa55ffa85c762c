"""Processes that make no progress any more: found, made to say where they stand, and ended.

Progress is a heartbeat of the program (`tpu_runtime.heartbeat`), or work on the CPU: a program that compiles
for an hour is not hung. The stacks come from Python's faulthandler, which writes them on SIGABRT.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Optional

from tpu_runtime import report
from tpu_runtime.bundle import location
from tpu_runtime.processes import descendants
from tpu_runtime.program import HEARTBEATS, STACK_SIGNAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpu_runtime.environment import HostEnvironment
    from tpu_runtime.processes import Group

DEFAULT_SECONDS = 600.0
_BUSY_CORES = 0.5
"""Half of what the slowest of compilers takes, and more than idle helpers do."""
_POLL_SECONDS = 5.0
_STACK_SECONDS = 0.5
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Progress:
    """When the processes have last made progress.

    Attributes:
        since: that moment, in epoch seconds.
    """

    since: float
    _seen: float
    _cpu: Mapping[int, float]

    def look(self, now: float, beat: Optional[float], cpu: Mapping[int, float]) -> None:
        """Take note of what can be seen of them.

        Args:
            now: epoch seconds.
            beat: their last heartbeat; None if there has been none.
            cpu: seconds on the CPU, of each process.
        """
        used = sum(seconds - self._cpu.get(pid, 0.0) for pid, seconds in cpu.items())
        if used >= _BUSY_CORES * (now - self._seen):
            self.since = now
        self.since = max(self.since, beat or 0.0)
        self._seen, self._cpu = now, cpu


@dataclass
class Heart:
    """The heartbeats of the processes of one attempt.

    Attributes:
        folder: where they are; None if there can be none.
    """

    folder: Optional[Path]

    def variables(self, variables: Mapping[str, str]) -> dict[str, str]:
        """What processes need to beat, to be found by their programs, and to leave their stacks."""
        path = dict.fromkeys([str(location()), *variables.get("PYTHONPATH", "").split(os.pathsep)])
        ours = {"PYTHONFAULTHANDLER": "1", **variables, "PYTHONPATH": os.pathsep.join(filter(None, path))}
        return {**ours, HEARTBEATS: str(self.folder)} if self.folder else ours

    def last(self) -> Optional[float]:
        """The last beat, in epoch seconds; None if there was none."""
        times = []
        for file in self.folder.glob("beat-*") if self.folder else ():
            with contextlib.suppress(OSError):
                times.append(file.stat().st_mtime)
        return max(times, default=None)

    async def stacks(self) -> str:
        """Stacks of the processes that offer them, as they are now."""
        files = [] if self.folder is None else sorted(self.folder.glob("stacks-*"))
        before = {file: file.stat().st_size for file in files}
        alive = set(descendants(os.getpid()))
        pids = {file: pid for file in files if (pid := int(file.name.partition("-")[2])) in alive}
        for pid in pids.values():
            with contextlib.suppress(OSError):
                os.kill(pid, STACK_SIGNAL)
        await asyncio.sleep(_STACK_SECONDS)
        texts = {pid: file.read_bytes()[before[file] :] for file, pid in pids.items()}
        return "".join(f"process {pid}:\n{text.decode(errors='replace')}\n" for pid, text in texts.items())


@contextmanager
def heart() -> Iterator[Heart]:
    """Heartbeats for the time of the context."""
    folder: Optional[Path] = None
    with contextlib.suppress(OSError):
        folder = Path(tempfile.mkdtemp(prefix="tpu-launch-"))
    try:
        yield Heart(folder)
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def watched(env: HostEnvironment, group: Group, beats: Heart) -> Iterator[None]:
    """End the processes of a group if they hang while the context lasts."""

    def found(since: float) -> None:
        seconds = time.time() - since
        report.say(
            f"no heartbeat and no work on the CPU for {seconds:.0f} s: the stacks of all processes follow"
        )
        group.abort(since)

    watching = asyncio.ensure_future(watch(env.settings.hang_seconds, beats, found))
    try:
        yield
    finally:
        watching.cancel()


async def watch(seconds: Optional[float], beats: Heart, found: Callable[[float], None]) -> None:
    """Tell when the processes have last made progress, once that is too long ago.

    Args:
        seconds: how long is too long; 0 for ever; None for ten minutes, and only if there are heartbeats.
        beats: the heartbeats.
        found: told, in epoch seconds.
    """
    progress: Optional[Progress] = None
    limit = seconds or DEFAULT_SECONDS
    while seconds != 0:
        await asyncio.sleep(min(_POLL_SECONDS, limit / 10))
        now, beat = time.time(), beats.last()
        if seconds is None and beat is None:
            continue
        if progress is None:
            progress = Progress(now, now, cpu_seconds())
            continue
        progress.look(now, beat, cpu_seconds())
        if now - progress.since >= limit:
            found(progress.since)
            return


def cpu_seconds() -> dict[int, float]:
    """Time on the CPU of each process that descends from us."""
    used = {}
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            used[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
    return used

"""What memory this container has, and whether the kernel has killed a process of it for want of memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Iterator, Optional

_POLL_SECONDS = 1.0
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_OOM_KILL = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills(root: Path = Path("/")) -> Optional[int]:
    """How many processes of this cgroup the kernel has killed for want of memory; None: not to be read."""
    for path in _files(root):
        with contextlib.suppress(OSError):
            match = _OOM_KILL.search(path.read_text())
            if match:
                return int(match.group(1))
    return None


@dataclass
class Kills:
    """What the kernel has done to the processes of this cgroup since a moment.

    Attributes:
        since: a moment shortly before it first killed one for want of memory, in epoch seconds; None if it
            has not, or that cannot be known.
    """

    before: Optional[int]
    since: Optional[float] = None

    @property
    def happened(self) -> Optional[bool]:
        """Whether it has killed one; None if that cannot be known."""
        now = oom_kills()
        return None if self.before is None or now is None else now > self.before

    async def watch(self) -> None:
        """Take note of the time."""
        while self.since is None:
            well = time.time()
            await asyncio.sleep(_POLL_SECONDS)
            if self.happened:
                self.since = well


@contextlib.contextmanager
def watched() -> Iterator[Kills]:
    """Kills, from now until the context ends."""
    kills = Kills(oom_kills())
    watching = asyncio.ensure_future(kills.watch())
    try:
        yield kills
    finally:
        watching.cancel()


def limit(root: Path = Path("/")) -> int:
    """Bytes that the processes of this cgroup may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _files(root):
        for name in _LIMITS:
            with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
                return min(total, int(path.with_name(name).read_text()))
    return total


def _files(root: Path) -> Iterable[Path]:
    """Where cgroup v2 and v1 count, as seen with and without a cgroup namespace of our own."""
    groups = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield groups / path.lstrip("/") / "memory.events"
            elif "memory" in controllers.split(","):
                yield groups / "memory" / path.lstrip("/") / "memory.oom_control"
    yield groups / "memory.events"
    yield groups / "memory" / "memory.oom_control"

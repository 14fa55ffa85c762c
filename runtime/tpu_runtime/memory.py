"""Whether the kernel has killed a process of this container for want of memory."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Iterable, Optional

_OOM_KILL = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills(root: Path = Path("/")) -> Optional[int]:
    """How many processes of this cgroup the kernel has killed for want of memory; None: not to be read."""
    for path in _files(root):
        with contextlib.suppress(OSError):
            match = _OOM_KILL.search(path.read_text())
            if match:
                return int(match.group(1))
    return None


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

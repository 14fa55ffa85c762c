"""What a subject has used: API calls by the audit log, CPU and memory by /proc."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TICKS: Final = os.sysconf("SC_CLK_TCK")
READS: Final = frozenset({"get", "list", "watch"})


class _Ref(msgspec.Struct):
    resource: str = ""
    subresource: str = ""


class _Entry(msgspec.Struct, rename="camel"):
    verb: str
    stage: str
    user_agent: str = ""
    object_ref: _Ref = msgspec.field(default_factory=_Ref)


_DECODER: Final = msgspec.json.Decoder(_Entry)


@dataclass(frozen=True)
class Mark:
    """A place in the audit log."""

    inode: int
    offset: int


class AuditLog:
    """The API server's log of requests.

    Args:
        path: the file that the server writes; it renames a full one and begins another.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def mark(self) -> Mark:
        """The present end."""
        stat = self._path.stat()
        return Mark(stat.st_ino, stat.st_size)

    def calls(self, since: Mark, agent: str) -> Counter[str]:
        """Calls of a client since then, as `verb resource`; leases are left out."""
        return count(self._lines(since), agent)

    def _lines(self, since: Mark) -> Iterator[bytes]:
        files = sorted(self._path.parent.glob(f"{self._path.stem}*{self._path.suffix}"), key=_age)
        inodes = [file.stat().st_ino for file in files]
        for file in files[inodes.index(since.inode) :]:
            with file.open("rb") as lines:
                if file.stat().st_ino == since.inode:
                    lines.seek(since.offset)
                yield from lines


def _age(path: Path) -> int:
    return path.stat().st_mtime_ns


def count(lines: Iterable[bytes], agent: str) -> Counter[str]:
    """Count the calls of a client by an audit log; leases are left out, as keeping one is no work."""
    calls: Counter[str] = Counter()
    needle = f'"userAgent":"{agent}'.encode()
    for line in lines:
        if needle not in line or not line.endswith(b"\n"):
            continue
        entry = _DECODER.decode(line)
        begun = entry.stage == "ResponseStarted"
        # Discovery is about no resource.
        if begun == (entry.verb == "watch") and entry.object_ref.resource not in {"leases", ""}:
            calls[f"{entry.verb} {_resource(entry.object_ref)}"] += 1
    return calls


def _resource(ref: _Ref) -> str:
    return f"{ref.resource}/{ref.subresource}" if ref.subresource else ref.resource


def writes(calls: Counter[str]) -> int:
    """How many of the calls change something."""
    return sum(number for call, number in calls.items() if call.split()[0] not in READS)


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has ended")

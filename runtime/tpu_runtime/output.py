"""What the processes write: passed through as it comes, its end kept for the termination message."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Callable

_CHUNK = 64 * 1024
_TAIL_BYTES = 64 * 1024
_LINE_BYTES = 64 * 1024


@dataclass(frozen=True)
class Line:
    """A line of text and the time at which it came, in epoch seconds."""

    time: float
    text: str


@dataclass
class Tail:
    """The last 64 KiB of a stream.

    Attributes:
        complete: set when nothing more can come.
    """

    complete: threading.Event = field(default_factory=threading.Event)
    _chunks: deque[tuple[float, bytes]] = field(default_factory=deque)
    _size: int = 0

    def add(self, chunk: bytes) -> None:
        """Keep a chunk and let go of the oldest ones."""
        self._chunks.append((time.time(), chunk))
        self._size += len(chunk)
        while self._size - len(self._chunks[0][1]) >= _TAIL_BYTES:
            self._size -= len(self._chunks.popleft()[1])

    def lines(self) -> list[Line]:
        """What is kept, as lines; bytes that are not UTF-8 become U+FFFD."""
        chunks = list(self._chunks)
        ends = list(accumulate(len(chunk) for _, chunk in chunks))
        result: list[Line] = []
        position = 0
        for line in b"".join(chunk for _, chunk in chunks).split(b"\n"):
            position += len(line) + 1
            came = chunks[min(bisect_left(ends, position), len(chunks) - 1)][0] if chunks else 0.0
            result.append(_line(came, line))
        return result if result[-1].text else result[:-1]


def _line(when: float, line: bytes) -> Line:
    """A line as a terminal would leave it: of a progress bar, its last state."""
    return Line(when, line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace"))


class Output:
    """Carries streams of processes to the launcher's own.

    Args:
        on_write: called whenever a process has written something.
    """

    def __init__(self, on_write: Callable[[], None]) -> None:
        self._on_write = on_write
        self._lock = threading.Lock()
        self._wake, self._waker = os.pipe()
        self._threads: list[threading.Thread] = []

    def carry(self, target: int, prefix: bytes, tail: Tail) -> int:
        """Open a stream and return the file descriptor that a process shall write to.

        Args:
            target: file descriptor that it is carried to.
            prefix: put before each line; whole lines are written then. Empty: bytes pass as they come.
            tail: remembers the end of it.
        """
        source, sink = os.pipe()
        writer = _Lines(target, prefix, self._lock) if prefix else _Raw(target)
        thread = threading.Thread(target=self._pump, args=(source, writer, tail), daemon=True)
        thread.start()
        self._threads.append(thread)
        return sink

    def finish(self, seconds: float) -> None:
        """Carry over what is left in the pipes, without waiting for those who still hold them open."""
        os.close(self._waker)
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _pump(self, source: int, writer: _Raw | _Lines, tail: Tail) -> None:
        poll = select.poll()
        poll.register(source, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        # Once the launcher finishes, both are reported for as long as there is something left in the pipe.
        while source in [fd for fd, _ in poll.poll()]:
            chunk = os.read(source, _CHUNK)
            if not chunk:
                break
            tail.add(chunk)
            self._on_write()
            writer.write(chunk)
        tail.complete.set()
        writer.end()
        os.close(source)


class _Raw:
    """Writes bytes as they come."""

    def __init__(self, target: int) -> None:
        self._target = target

    def write(self, chunk: bytes) -> None:
        write_all(self._target, chunk)

    def end(self) -> None:
        pass


class _Lines:
    """Writes whole lines with a prefix; a line that gets too long is cut into several."""

    def __init__(self, target: int, prefix: bytes, lock: threading.Lock) -> None:
        self._target = target
        self._prefix = prefix
        self._lock = lock
        self._rest = bytearray()

    def write(self, chunk: bytes) -> None:
        self._rest += chunk
        cut = self._rest.rfind(b"\n") + 1
        if not cut and len(self._rest) >= _LINE_BYTES:
            cut = len(self._rest)
        if cut:
            self._write(bytes(self._rest[:cut]))
            del self._rest[:cut]

    def end(self) -> None:
        if self._rest:
            self._write(bytes(self._rest))

    def _write(self, block: bytes) -> None:
        lines = block[:-1].split(b"\n") if block.endswith(b"\n") else block.split(b"\n")
        text = b"".join(self._prefix + line + b"\n" for line in lines)
        with self._lock:
            write_all(self._target, text)


def write_all(target: int, data: bytes) -> None:
    """Write all bytes; when nobody reads any more they are lost, but the process goes on."""
    view = memoryview(data)
    with contextlib.suppress(OSError):
        while view:
            try:
                view = view[os.write(target, view) :]
            except BlockingIOError:  # somebody who shares this file has made it non-blocking
                select.select([], [target], [])

"""Lines of logs: read, merged and drawn."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpu_operator.cli.text import Style

COLOURS: Final = ("cyan", "green", "magenta", "yellow", "blue")
"""Of the names of hosts, in turn."""
NO_LOG: Final = "(no log: "


class Line(NamedTuple):
    """A line of a log.

    Attributes:
        time: when it was written, as the kubelet writes it: such times order as text.
        pod: who wrote it.
        text: the line, without its end.
    """

    time: str
    pod: str
    text: str


def parse(pod: str, raw: str) -> Line:
    """A line of a log that was asked for with timestamps."""
    time, space, text = raw.partition(" ")
    if not space or not time[:4].isdecimal():
        return Line("", pod, raw)
    return Line(time, pod, text)


def split(pod: str, text: str) -> list[Line]:
    """The lines of a whole log."""
    return [parse(pod, raw) for raw in text.split("\n") if raw]


def missing(pod: str, why: str) -> Line:
    """A line in place of a log that cannot be had."""
    return Line("", pod, f"{NO_LOG}{why})")


def is_missing(log: Sequence[Line]) -> bool:
    """Whether a log is only such a line."""
    return len(log) == 1 and not log[0].time and log[0].text.startswith(NO_LOG)


def merged(logs: Iterable[Sequence[Line]]) -> Iterable[Line]:
    """Lines of several logs by their time, and those of each log in their order."""
    return heapq.merge(*logs, key=lambda line: line.time)


def render(line: Line, pods: Sequence[str], style: Style, *, prefix: bool, times: bool) -> str:
    """A line as it is shown, with its end.

    Args:
        line: the line.
        pods: all hosts that are shown: each has its colour.
        style: how text may look.
        prefix: whether to name the host.
        times: whether to show the time.
    """
    time = f"{line.time} " if times and line.time else ""
    if not prefix:
        return f"{time}{line.text}\n"
    width = max(map(len, pods))
    number = pods.index(line.pod) if line.pod in pods else 0
    name = style.paint(f"{line.pod:<{width}} |", COLOURS[number % len(COLOURS)])
    return f"{name} {time}{line.text}\n"

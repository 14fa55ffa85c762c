"""Text for people: ages, tables, colours, and the terminal that they end on."""

from __future__ import annotations

import re
import shutil
import textwrap
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

import msgspec
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

CODES: Final = {
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "dim": "2",
    "bold": "1",
}
STATES: Final = {
    "Running": "green",
    "Succeeded": "green",
    "Failed": "red",
    "Restarting": "yellow",
    "Starting": "yellow",
    "Waiting": "yellow",
    "Pending": "yellow",
    "Terminating": "magenta",
    "Missing": "magenta",
    "Suspended": "blue",
    "Spare": "cyan",
    "Serving": "green",
    "Ready": "green",
    "Idle": "green",
    "Rolling": "cyan",
    "Held": "yellow",
    "NotReady": "yellow",
    "Degraded": "red",
    "Unavailable": "red",
    "Draining": "magenta",
    "Stopped": "blue",
}
"""Colours of phases and of states of slices and hosts."""
CLEAR: Final = "\x1b[H\x1b[J"
WIDTH: Final = 100
"""Columns of running text where the terminal does not say."""
GAP: Final = "  "
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Cell(NamedTuple):
    """A cell of a table.

    Attributes:
        text: what it shows.
        colour: key of CODES, empty for none.
    """

    text: str
    colour: str = ""


@dataclass(frozen=True, slots=True)
class Style:
    """How text may look.

    Attributes:
        colour: whether it may have colours.
        unicode: whether it may have characters beyond ASCII.
        width: columns; None for as many as it takes.
    """

    colour: bool = False
    unicode: bool = True
    width: int | None = None

    def paint(self, text: str, colour: str) -> str:
        """Text in a colour, where there are colours."""
        return f"\x1b[{CODES[colour]}m{text}\x1b[0m" if self.colour and colour and text else text

    def branch(self, *, last: bool, over: Sequence[bool] = ()) -> str:
        """The branch of a tree that leads to a line.

        Args:
            last: whether no other line of the same parent follows.
            over: for each ancestor below the root, whether more lines follow of its parent.
        """
        stem = "│ " if self.unicode else "| "
        fork = ("└─" if last else "├─") if self.unicode else ("`-" if last else "|-")
        return "".join(stem if more else "  " for more in over) + fork

    def wrap(self, text: str, indent: str = "") -> list[str]:
        """Running text in lines that fit."""
        lines: list[str] = []
        for paragraph in text.splitlines() or [""]:
            lines += textwrap.wrap(
                paragraph,
                self.width or WIDTH,
                initial_indent=indent,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            ) or [""]
        return lines


Row = tuple[str | Cell, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A line of a tree, as a row whose first cell is its name, and what hangs from it."""

    row: Row
    below: Sequence[Node] = ()


def branches(nodes: Sequence[Node], style: Style, over: Sequence[bool] = ()) -> Iterator[Row]:
    """Rows of a tree below its root, each name with the branch that leads to it."""
    for number, node in enumerate(nodes):
        last = number == len(nodes) - 1
        name, *cells = node.row
        text = name.text if isinstance(name, Cell) else name
        yield (f"{style.branch(last=last, over=over)}{text}", *cells)
        yield from branches(node.below, style, (*over, not last))


def table(rows: Sequence[Sequence[str | Cell]], style: Style, indent: str = "") -> list[str]:
    """Rows in columns; the last column is as wide as it likes, or as the terminal lets it."""
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    columns = max(map(len, cells), default=0)
    widths = [max((len(row[i].text) for row in cells if i < len(row)), default=0) for i in range(columns)]
    return [_row(row, widths, style, indent) for row in cells]


def _row(row: Sequence[Cell], widths: Sequence[int], style: Style, indent: str) -> str:
    line, used = indent, len(indent)
    for index, cell in enumerate(row):
        last = index == len(row) - 1
        text = clip(cell.text, style.width - used) if last and style.width else cell.text
        pad = "" if last else " " * (widths[index] - len(text)) + GAP
        line += style.paint(text, cell.colour) + pad
        used += len(text) + len(pad)
    return line.rstrip()


def clip(text: str, width: int) -> str:
    """The beginning of a text that has no room for all of it."""
    return text if len(text) <= width else f"{text[: max(0, width - 3)]}..."


def clean(text: str) -> str:
    """Text of others without what would move a cursor or colour a terminal; tabs and newlines stay."""
    return _CONTROL.sub("", _ESCAPE.sub("", text))


def flat(text: str) -> str:
    """Text of others in one line."""
    return " ".join(clean(text).split())


def duration(seconds: float) -> str:
    """A span of time as kubectl writes it: 8s, 5m30s, 3h12m, 4d."""
    left = max(0, int(seconds))
    if left < 120:  # noqa: PLR2004 - two minutes
        return f"{left}s"
    for size, unit, smaller, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if left >= size:
            whole, rest = divmod(left, size)
            more = rest // smaller
            return f"{whole}{unit}{more}{small_unit}" if more and whole < 10 else f"{whole}{unit}"  # noqa: PLR2004
    return f"{left}s"


def age(then: datetime | None, now: datetime) -> str:
    """How long ago something was; empty where that is not known."""
    return duration((now - then) / timedelta(seconds=1)) if then else ""


def moment(time: datetime) -> str:
    """A time of day, in UTC."""
    return f"{time:%H:%M:%S} UTC"


class Terminal:
    """Where answers go.

    Args:
        out: the stream.
        environment: variables; NO_COLOR turns colours off, CLICOLOR_FORCE turns them on without a terminal.
        interactive: whether a person looks at it.
    """

    def __init__(self, out: TextIO, environment: Mapping[str, str], *, interactive: bool) -> None:
        self._out = out
        self.interactive = interactive
        dumb = environment.get("TERM") == "dumb"
        colour = (interactive and not dumb) or bool(environment.get("CLICOLOR_FORCE"))
        encoding = (getattr(out, "encoding", None) or "ascii").lower().replace("-", "")
        self._colour = colour and not environment.get("NO_COLOR")
        self._unicode = encoding.startswith("utf")

    @property
    def style(self) -> Style:
        """How text may look now; a terminal may have become wider."""
        width = shutil.get_terminal_size().columns if self.interactive else None
        return Style(self._colour, self._unicode, width)

    def write(self, text: str) -> None:
        """Write text as it is, at once; what the stream cannot encode is replaced."""
        encoding = getattr(self._out, "encoding", None) or "utf-8"
        self._out.write(text.encode(encoding, "replace").decode(encoding))
        self._out.flush()

    def lines(self, lines: Iterable[str]) -> None:
        """Write lines."""
        self.write("".join(f"{line}\n" for line in lines))

    def redraw(self, lines: Sequence[str]) -> None:
        """Write lines in place of all that is to be seen; those that do not fit are counted."""
        room = shutil.get_terminal_size().lines - 1
        shown = list(lines)
        if len(shown) > room:
            shown = [*shown[: room - 1], f"... {len(shown) - room + 1} more lines"]
        self.write(CLEAR + "".join(f"{line}\n" for line in shown))

    def show(self, form: str, model: Any, draw: Callable[[], Iterable[str]]) -> None:
        """Answer in the form that was asked for: json, yaml, or what `draw` makes of the model."""
        if form == "json":
            self.write(msgspec.json.format(msgspec.json.encode(model), indent=2).decode() + "\n")
        elif form == "yaml":
            plain = msgspec.json.decode(msgspec.json.encode(model))
            self.write(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
        else:
            self.lines(draw())

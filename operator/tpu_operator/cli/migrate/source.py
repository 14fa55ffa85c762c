"""Programs to look at: Python files and notebooks."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SUFFIXES: Final = (".py", ".ipynb")
_MAGIC = re.compile(r"\s*[%!?]|.*\?\s*$")
"""A line that IPython reads, and Python does not."""


class UnreadableError(Exception):
    """A file cannot be read as a program."""


@dataclass(frozen=True, slots=True)
class Source:
    """A program.

    Attributes:
        name: of its file.
        text: all of it.
        starts: of a notebook: the line of `text` at which each cell begins, by the number of the cell.
    """

    name: str
    text: str
    starts: tuple[tuple[int, int], ...] = ()

    def place(self, line: int) -> tuple[int | None, int]:
        """The cell of a line of the text, counted from 1 on, and the line in it; None in a Python file."""
        found = next(((cell, start) for cell, start in reversed(self.starts) if start <= line), None)
        return (found[0], line - found[1] + 1) if found else (None, line)


def files(names: Sequence[str]) -> Iterator[Path]:
    """The files that are meant: those that are named, and programs in folders that are named."""
    for name in names:
        path = Path(name)
        if path.is_dir():
            yield from sorted(one for one in path.rglob("*") if one.suffix in SUFFIXES and one.is_file())
        else:
            yield path


def read(path: Path) -> Source:
    """Read a program.

    Raises:
        UnreadableError: there is no such file, or it is no text, or no notebook.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise UnreadableError("it is not UTF-8 text") from error
    return notebook(str(path), text) if path.suffix == ".ipynb" else Source(str(path), text)


def notebook(name: str, text: str) -> Source:
    """The program of a notebook: its cells of code, one after the other.

    Raises:
        UnreadableError: it is not a notebook of nbformat 4.
    """
    try:
        cells = json.loads(text)["cells"]
        numbered = [(number, _code(cell)) for number, cell in enumerate(cells, 1)]
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableError("it is not a notebook (nbformat 4)") from error
    lines: list[str] = []
    starts = []
    for number, code in numbered:
        starts.append((number, len(lines) + 1))
        lines += code
    return Source(name, "\n".join([*lines, ""]), tuple(starts))


def _code(cell: dict[str, Any]) -> list[str]:
    """The lines of Python of a cell; what is for IPython becomes nothing that counts."""
    if cell["cell_type"] != "code":
        return []
    source = cell["source"]
    lines = (source if isinstance(source, str) else "".join(source)).splitlines()
    if lines and lines[0].startswith("%%"):
        return []
    return [_line(line) for line in lines]


def _line(line: str) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    return f"{indent}pass" if _MAGIC.match(line) else line

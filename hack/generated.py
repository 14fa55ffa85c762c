"""The command line of modules that generate a page: write it, or say that it is not up to date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def run(description: str | None, page: Callable[[Path], str]) -> int:
    """Write the page, or compare it; the exit status.

    Args:
        description: what --help says.
        page: makes the whole page; where it is kept is told, for pages of which only a part is generated.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--check", type=Path)
    arguments = parser.parse_args()
    if arguments.write:
        arguments.write.write_text(page(arguments.write))
    if arguments.check and arguments.check.read_text() != page(arguments.check):
        print(f"{arguments.check} is not up to date: run `make generate`", file=sys.stderr)
        return 1
    return 0

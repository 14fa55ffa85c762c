"""What `python ARGUMENTS` runs, run in a process that is there already, to the same end."""

from __future__ import annotations

import atexit
import re
import runpy
import sys
import threading
import types
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Optional

if TYPE_CHECKING:
    from collections.abc import Sequence

_PYTHON = re.compile(r"(.*/)?python[0-9.]*")


@dataclass(frozen=True)
class Program:
    """A Python program.

    Attributes:
        target: a path; a module where `option` is "-m", source code where it is "-c".
        arguments: its own.
        option: how Python is told what the target is; empty for a path.
        unbuffered: -u was given.
    """

    target: str
    arguments: Sequence[str] = ()
    option: str = ""
    unbuffered: bool = False


def parse(command: Sequence[str]) -> Optional[Program]:
    """The program of a command; None where only a process of its own can run it.

    That is any command but Python's, and Python with options that hold for a whole process.
    """
    if not command or not _PYTHON.fullmatch(command[0]):
        return None
    rest = list(command[1:])
    unbuffered = rest[:1] == ["-u"]
    if unbuffered:
        del rest[0]
    option = rest.pop(0) if rest[:1] in (["-m"], ["-c"]) else ""
    if not rest or (rest[0].startswith("-") and not option):
        return None
    return Program(rest[0], rest[1:], option, unbuffered)


def run(program: Program) -> int:
    """Run a program as `__main__`, and then what it wants done at its exit. Returns its exit code.

    What was to be done at the exit of this process up to now is not done: it is that of another program.
    """
    atexit._clear()
    code = _code(lambda: _execute(program))
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return code


def _code(main: Callable[[], None]) -> int:
    """The exit code that Python makes of how a program ends."""
    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)  # noqa: T201 - as Python does
        return 1
    except BaseException:  # noqa: BLE001 - whatever it is, it ends the program
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _execute(program: Program) -> None:
    if program.unbuffered:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    if program.option == "-m":
        sys.argv = [program.target, *program.arguments]
        sys.path[0] = str(Path.cwd())
        runpy.run_module(program.target, run_name="__main__", alter_sys=True)
    elif program.option == "-c":
        sys.argv = ["-c", *program.arguments]
        sys.path[0] = ""
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(program.target, "<string>", "exec"), main.__dict__)  # noqa: S102 - that is what -c is for
    else:
        sys.argv = [program.target, *program.arguments]
        sys.path[0] = str(Path(program.target).resolve().parent)
        runpy.run_path(program.target, run_name="__main__")

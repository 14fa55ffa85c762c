"""`kubectl tpu migrate FILE...`: what takes the place of torch_xla in a program, and RayJobs as TPUJobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import yaml

from tpu_operator.cli.command import Call, Command, CommandError, Exit, Parser, add_output
from tpu_operator.cli.migrate.checker import Finding, check
from tpu_operator.cli.migrate.rayjob import is_rayjob, translate
from tpu_operator.cli.migrate.source import UnreadableError, files, read
from tpu_operator.cli.text import flat
from tpu_operator.core.pending import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpu_operator.cli.migrate.rayjob import Translation
    from tpu_operator.cli.text import Style

PAGE: Final = "docs/migrate-from-torch-xla.md"


class Unreadable(msgspec.Struct, frozen=True):
    """A file that could not be looked at."""

    file: str
    message: str


class Report(msgspec.Struct, frozen=True):
    """What was found.

    Attributes:
        files: how many were looked at.
        findings: idioms, in the order of files and lines.
        unreadable: files that are no programs.
    """

    files: int
    findings: tuple[Finding, ...]
    unreadable: tuple[Unreadable, ...] = ()

    @property
    def code(self) -> Exit:
        """The exit code."""
        if self.unreadable:
            return Exit.USAGE
        return Exit.BAD if self.findings else Exit.DONE


def add(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="+",
        help="a Python file, a notebook, or a folder with such files in it; or one YAML file with RayJobs",
    )
    add_output(parser)


async def run(call: Call) -> int:
    """Look at programs; the exit code is 1 if something was found, 2 if a file cannot be read."""
    if call.options.file[0].endswith((".yaml", ".yml")):
        return _rayjobs(call)
    found = report(call.options.file)
    call.show(found, lambda: draw(found, call.terminal.style))
    for one in found.unreadable if call.format == "text" else ():
        sys.stderr.write(f"error: {one.file}: {one.message}\n")
    return found.code


def _rayjobs(call: Call) -> int:
    """Print the TPUJobs that RayJobs of a file become; 1 if something of them has no place there."""
    if len(call.options.file) > 1:
        raise CommandError("YAML is translated one file at a time", Exit.USAGE)
    path = Path(call.options.file[0])
    try:
        bodies = [body for body in yaml.safe_load_all(path.read_text()) if is_rayjob(body)]
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise CommandError(f"{path}: {error}", Exit.USAGE) from error
    if not bodies:
        advice = "programs are looked at as Python files"
        raise CommandError(f"{path}: there is no RayJob in it", Exit.USAGE, advice)
    try:
        found = [translate(body) for body in bodies]
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise CommandError(f"{path}: this is no whole RayJob: {error!r}", Exit.USAGE) from error
    call.show(found, lambda: draw_jobs(found))
    return Exit.BAD if any(one.left for one in found) else Exit.DONE


def draw_jobs(found: Sequence[Translation]) -> Iterator[str]:
    """TPUJobs as YAML that can be applied, with what was left out as comments."""
    for number, one in enumerate(found):
        if number:
            yield "---"
        yield from (f"# left out: {flat(what)}" for what in one.left)
        yield yaml.safe_dump(one.job, sort_keys=False, allow_unicode=True).rstrip()


def report(names: Sequence[str]) -> Report:
    """Look at files, and at those in folders."""
    looked, findings, unreadable = 0, list[Finding](), list[Unreadable]()
    for path in files(names):
        try:
            findings += check(read(path))
            looked += 1
        except UnreadableError as error:
            unreadable.append(Unreadable(str(path), str(error)))
    return Report(looked, tuple(findings), tuple(unreadable))


def draw(found: Report, style: Style) -> list[str]:
    """The report as text."""
    lines: list[str] = []
    for one in found.findings:
        place = ":".join(str(part) for part in (one.file, _cell(one), one.line, one.column) if part)
        lines += [f"{style.paint(place, 'bold')}: {style.paint(one.found, 'red')}", *_advice(one, style)]
    looked = counted(found.files, "file", "files")
    if not found.findings:
        return [f"nothing of torch_xla in {looked}"] if found.files else []
    files_with = len({one.file for one in found.findings})
    count = counted(len(found.findings), "idiom", "idioms")
    return [*lines, "", f"{count} of torch_xla in {files_with} of {looked}; {PAGE} has all of them"]


def _cell(one: Finding) -> str:
    return f"cell {one.cell}" if one.cell else ""


def _advice(one: Finding, style: Style) -> list[str]:
    code = one.instead or ("(remove it)" if one.gone else "(nothing takes its place)")
    colour = "green" if one.instead or one.gone else "yellow"
    return [f"    -> {style.paint(code, colour)}", *(style.wrap(one.note, "       ") if one.note else ())]


COMMAND: Final = Command(
    "migrate",
    "where a program uses torch_xla, and what takes its place; a RayJob as a TPUJob; needs no cluster",
    add,
    run,
    details="Nothing of the program is imported or run. Exit code 0: nothing was found, 1: something was, or "
    "something of a RayJob has no place in a TPUJob, 2: a file cannot be read.",
)

"""What a command is: its arguments, its exit codes, and how it tells that something is wrong."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from tpu_operator.cli.text import Terminal

FORMATS = ("text", "json", "yaml")
KINDS = {
    **dict.fromkeys(("tpujob", "tpujobs", "tpuj"), "TPUJob"),
    **dict.fromkeys(("tpuinference", "tpuinferences", "tpui"), "TPUInference"),
}
"""Kinds by the words that kubectl takes for them."""


class Exit(IntEnum):
    """Exit codes; docs/cli.md has them too."""

    DONE = 0
    BAD = 1
    """The answer is bad: the job has failed, something holds it up, a check has found an error."""
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    """The API server said no."""
    UNREACHABLE = 5
    """The API server does not answer, or there are no credentials."""
    TIMEOUT = 6
    INTERRUPTED = 130


class CommandError(Exception):
    """What a person is told when a command cannot do what it was asked.

    Attributes:
        code: exit code.
        advice: what to do about it, empty where the message says so.
    """

    def __init__(self, message: str, code: Exit = Exit.BAD, advice: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.advice = advice


class Parser(argparse.ArgumentParser):
    """An argument parser whose arguments can be looked at, for completion.

    Attributes:
        actions: what was added.
    """

    actions: list[argparse.Action]

    def __init__(self, **kwargs: Any) -> None:
        self.actions = []
        super().__init__(**{"allow_abbrev": False, **kwargs})

    def add_argument(self, *args: Any, **kwargs: Any) -> argparse.Action:
        """Add an argument, and remember it."""
        action = super().add_argument(*args, **kwargs)
        self.actions.append(action)
        return action

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the command line, and where to look."""
        sys.stderr.write(f"error: {message}\nsee: {self.prog} --help\n")
        sys.exit(Exit.USAGE)


@dataclass(frozen=True, slots=True)
class Place:
    """Which cluster, and where in it.

    Attributes:
        kubeconfig: file with the way to the cluster; empty: as kubectl finds it.
        context: entry of that file; empty: its current one.
        namespace: empty: that of the context.
    """

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""

    def arguments(self) -> list[str]:
        """The same as options of kubectl."""
        given = {"kubeconfig": self.kubeconfig, "context": self.context, "namespace": self.namespace}
        return [f"--{name}={value}" for name, value in given.items() if value]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a command.

    Attributes:
        options: what was given on the command line.
        terminal: where the answer goes.
        words: what came after `--`.
        clock: tells the time.
    """

    options: argparse.Namespace
    terminal: Terminal
    words: list[str] = field(default_factory=list)
    clock: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))

    @property
    def place(self) -> Place:
        """The cluster that is meant."""
        names = ("kubeconfig", "context", "namespace")
        return Place(**{name: getattr(self.options, name, "") or "" for name in names})

    @property
    def format(self) -> str:
        """How to answer: one of FORMATS."""
        return str(getattr(self.options, "output", FORMATS[0]))

    def show(self, model: Any, draw: Callable[[], Iterable[str]]) -> None:
        """Answer: with the model itself, or with the text that `draw` makes of it."""
        self.terminal.show(self.format, model, draw)


@dataclass(frozen=True, slots=True)
class Command:
    """A command.

    Attributes:
        name: as it is typed.
        help: what it does, in a line.
        add: adds its arguments.
        run: does it; returns the exit code.
        words: what may come after `--`, for its usage; empty if nothing may.
        details: more help, below its arguments.
    """

    name: str
    help: str
    add: Callable[[Parser], None]
    run: Callable[[Call], Awaitable[int]]
    words: str = ""
    details: str = ""


def add_place(parser: Parser) -> None:
    """Arguments that say which cluster is meant, as kubectl has them."""
    parser.add_argument("-n", "--namespace", help="namespace; default: that of the context")
    parser.add_argument("--context", help="context of the kubeconfig; default: the current one")
    parser.add_argument("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, or ~/.kube/config")


def add_output(parser: Parser, *more: str) -> None:
    """How to answer: in one of FORMATS, or in other forms that the command has."""
    forms = (*FORMATS, *more)
    parser.add_argument("-o", "--output", choices=forms, default=FORMATS[0], help="form of the answer")


@dataclass(frozen=True, slots=True)
class Target:
    """What a command is about.

    Attributes:
        name: name of the object.
        kind: TPUJob or TPUInference; empty for a TPUJob, or a TPUInference if only that is there.
    """

    name: str
    kind: str = ""


def add_job(parser: Parser) -> None:
    """The job that a command is about."""
    parser.add_argument("name", metavar="NAME", type=job_name, help="name of the TPUJob")


def add_inference(parser: Parser) -> None:
    """The TPUInference that a command is about."""
    parser.add_argument("name", metavar="NAME", type=inference_name, help="name of the TPUInference")


def add_target(parser: Parser) -> None:
    """The job or TPUInference that a command is about."""
    parser.add_argument(
        "target",
        metavar="NAME",
        type=target,
        help="name of a TPUJob, or of a TPUInference: tpuinference/NAME where a TPUJob has the same",
    )


def job_name(text: str) -> str:
    """The name of a job, also as kubectl prints it: `tpujob/NAME`, `tpujob.tpu-operator.dev/NAME`."""
    return _name(text, "TPUJob")


def inference_name(text: str) -> str:
    """The name of a TPUInference, also as `tpuinference/NAME` or `tpui/NAME`."""
    return _name(text, "TPUInference")


def _name(text: str, kind: str) -> str:
    found = _target(text)
    if found is None or found.kind not in {"", kind}:
        raise argparse.ArgumentTypeError(f"{text!r}: write the name of a {kind}, or {kind.lower()}/NAME")
    return found.name


def target(text: str) -> Target:
    """A name, or a kind and a name: `tpujob/NAME`, `tpuinference/NAME`, `tpui/NAME`."""
    found = _target(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r}: write a name, tpujob/NAME or tpuinference/NAME")
    return found


def _target(text: str) -> Target | None:
    word, slash, name = text.rpartition("/")
    kind = KINDS.get(word.partition(".")[0].lower()) if slash else ""
    if kind is None:
        return None
    if not name:
        raise argparse.ArgumentTypeError(f"the name of the {kind or 'object'} is empty")
    return Target(name, kind)


def number(text: str) -> int:
    """A number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: write a number from 0 on")
    return int(text)


def span(text: str) -> int:
    """A span of time, in seconds: 90s, 5m, 2h, 1d; a plain number is seconds."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    digits, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    if not digits.isdecimal() or int(digits) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: write a time such as 90s, 5m or 2h")
    return int(digits) * unit

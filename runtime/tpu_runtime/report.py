"""What the launcher leaves behind: the termination message (contract A4), and lines for people on stderr.

The operator finds the root cause of a gang's failure by comparing the messages of its hosts, so `time` is
when the trouble began here: when the exception was printed rather than when the process had ended, which
can be minutes later.
"""

from __future__ import annotations

import json
import os
import re
import signal as signals
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from tpu_runtime.environment import DEFAULT_TERMINATION_LOG, TERMINATION_LOG
from tpu_runtime.errors import (
    EXIT_HANG,
    EXIT_PEERS,
    HANG,
    LAUNCHER_ERROR,
    OUT_OF_MEMORY,
    STARTUP_TIMEOUT,
    USER_ERROR,
)
from tpu_runtime.frameworks import ray
from tpu_runtime.frameworks.torchtpu import lost_peer, recorded, worker_failure
from tpu_runtime.gate import Failed
from tpu_runtime.output import Line, write_all
from tpu_runtime.processes import shell_code

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpu_runtime.errors import LaunchError
    from tpu_runtime.gate import Answer
    from tpu_runtime.history import History
    from tpu_runtime.processes import Group, Process

VERSION = 1
MAX_BYTES = 4096
_ERROR_CHARACTERS = 500
_BRIEF_CHARACTERS = 60
_TOLD_CHARACTERS = 200
_TRACEBACK = "Traceback (most recent call last):"
_TRAILING_LINES = 20
_INDEX = re.compile(r"[0-9]{1,9}")
_RANK = re.compile(r"^\[rank\d+\]: ")
"""What torch puts before each line of an exception in a process of a process group."""


@dataclass(frozen=True)
class Report:
    """How it ended.

    Attributes:
        cause: one of the causes of contract A2; None when the launcher was told to stop before any failure.
        exit_code: of the process, 128+N for signal N.
        signal: the signal that killed the process.
        local_rank: the process that failed first.
        time: epoch seconds.
        error: the line that says most.
        log: the last lines that the process wrote.
        terminated: the launcher was told to stop before anything failed.
    """

    cause: Optional[str]
    exit_code: int
    time: float
    error: str
    signal: Optional[int] = None
    local_rank: Optional[int] = None
    log: Sequence[Line] = ()
    terminated: bool = False


SUCCESS = Report(cause=None, exit_code=0, time=0.0, error="")
"""Nothing to report."""


def given_up(error: LaunchError) -> Report:
    """The report of a launcher that ends without the user's processes."""
    return Report(error.cause, error.exit_code, time.time(), str(error), local_rank=error.local_rank)


def never_started(signum: int) -> Report:
    """The report of a launcher that was told to stop before it had started anything."""
    text = f"told to stop by {_signal_name(signum)} before anything was started"
    return Report(None, shell_code(-signum), time.time(), text, terminated=True)


def stopped(signum: int, process: Optional[Process]) -> Report:
    """The report of a launcher that was told to stop before anything had failed.

    Args:
        signum: the signal that said so.
        process: the first process that did not end with 0; None if all did.
    """
    code = 0 if process is None else process.exit_code or 0
    return Report(
        cause=None,
        exit_code=shell_code(code),
        signal=-code if code < 0 else None,
        time=process.ended if process else time.time(),
        error=f"told to stop by {_signal_name(signum)}",
        log=_log(process) if process else (),
        terminated=True,
    )


def hang(since: float, group: Group) -> Report:
    """The report of processes that were ended as they made no progress any more.

    Args:
        since: when they last did, in epoch seconds.
        group: the processes.
    """
    text = "no heartbeat and no work on the CPU any more; the stacks of the processes are in the log"
    said = next((process.stderr.lines() for process in group.ended), ())
    return Report(HANG, EXIT_HANG, since, text, log=said)


def echo(over: Answer) -> Report:
    """The report of a launcher whose processes were stopped since the attempt is over on another host."""
    failed = over.failed or Failed(time.time(), EXIT_PEERS, LAUNCHER_ERROR, "")
    # Later than the root cause by its own clock, too.
    when = max(time.time(), failed.time + 0.001)
    why = f"{over.detail} has failed: {failed.error}" if over.failed else over.detail
    text = f"stopped, as {why or 'the attempt is over'}"
    return Report(failed.cause or None, failed.code, when, text)


def out_of_memory(when: float, over: Answer) -> Report:
    """The report of a host on which the kernel has killed a process that others have missed.

    Args:
        when: a moment before that, in epoch seconds.
        over: what they said of it.
    """
    said = f"; {over.detail}: {over.failed.error}" if over.failed else ""
    text = f"the kernel has killed a process of this container, which was out of memory{said}"
    return Report(OUT_OF_MEMORY, shell_code(-signals.SIGKILL), when, text, signal=signals.SIGKILL)


def told(report: Report) -> Failed:
    """What other hosts are told of a report."""
    return Failed(
        report.time, report.exit_code or 1, report.cause or "", _shorten(report.error, _TOLD_CHARACTERS)
    )


def failure(process: Process, *, torchrun: bool, oom_killed: Optional[bool]) -> Report:
    """The report of a process that has failed by itself.

    Args:
        process: the process.
        torchrun: it is torchrun's agent, and the one to report is a process of the agent's.
        oom_killed: whether the kernel has killed a process for want of memory; None if that is not known.
    """
    assert process.exit_code is not None
    if process.command.service:
        return _service_failure(process, oom_killed=oom_killed)
    lines = _log(process)
    if (never := ray.never_complete(lines)) and process.exit_code == EXIT_PEERS:
        return Report(STARTUP_TIMEOUT, EXIT_PEERS, process.ended, never, log=lines)
    worker = worker_failure(lines) if torchrun else None
    code = worker.exit_code if worker else process.exit_code
    said = worker.said if worker else lines
    found = None if code < 0 else (recorded(worker.error_file) if worker else None) or exception(said)
    ended = worker.noticed if worker else process.ended
    if found and torchrun and lost_peer(found.text):
        # The agent of the peer takes a moment to notice; this one's end takes longer.
        found = Line(process.ended, f"a peer was lost: {found.text}")
    killed = shell_code(code) == shell_code(-signals.SIGKILL)
    starved = (killed and oom_killed) or (found is not None and ray.out_of_memory(found.text))
    return Report(
        cause=OUT_OF_MEMORY if starved else USER_ERROR,
        exit_code=shell_code(code),
        signal=-code if code < 0 else None,
        local_rank=worker.local_rank if worker else process.command.local_rank,
        time=found.time if found else ended,
        error=found.text if found else _describe(code, said, oom_killed=oom_killed),
        log=worker.before if worker else lines,
    )


def _service_failure(process: Process, *, oom_killed: Optional[bool]) -> Report:
    """The report of a node of a Ray cluster that has ended while there was something to do."""
    assert process.exit_code is not None
    lines = sorted([*process.stdout.lines(), *process.stderr.lines()], key=lambda line: line.time)
    dead = ray.died(lines)
    if not dead and not process.has_started and process.exit_code > 0:
        return _service_not_started(process, lines)
    name, code = dead or (process.command.service, process.exit_code)
    killed = code == -signals.SIGKILL
    what = _describe(code, () if dead else lines, oom_killed=oom_killed)
    return Report(
        cause=OUT_OF_MEMORY if killed and oom_killed else USER_ERROR,
        exit_code=shell_code(process.exit_code) or 1,
        signal=-code if code < 0 else None,
        # It looks once a second whether its processes live.
        time=process.ended - 1.0 if dead else process.ended,
        error=f"the Ray node of this host has ended: {name}: {what}",
        log=lines,
    )


def _service_not_started(process: Process, lines: Sequence[Line]) -> Report:
    """The report of a node of a Ray cluster that has given up before it was there.

    What it says of itself on stdout is no reason, and comes last, as Python keeps it until the end.
    """
    assert process.exit_code is not None
    why = ray.not_started(_raised(process.stderr.lines()), process.command.variables)
    what = why or Line(process.ended, _describe(process.exit_code, _log(process), oom_killed=None))
    return Report(
        USER_ERROR,
        process.exit_code,
        what.time,
        f"the Ray node of this host has not started: {what.text}",
        log=lines,
    )


def _log(process: Process) -> Sequence[Line]:
    """The end of stderr, or of stdout for a program that has nothing to say there."""
    lines = process.stderr.lines()
    return lines if any(line.text.strip() for line in lines) else process.stdout.lines()


def exception(lines: Sequence[Line]) -> Optional[Line]:
    """The last line of a Python traceback at the end of a log: the exception and its message."""
    raised = _raised(lines)
    if raised and (starved := ray.memory_error(raised)):
        return starved
    if not raised or len(raised) > _TRAILING_LINES:
        return None
    return ray.task_error(raised) or raised[0]


def _raised(lines: Sequence[Line]) -> Sequence[Line]:
    """All lines from the exception of the last Python traceback on."""
    plain = [Line(line.time, _RANK.sub("", line.text)) for line in lines]
    starts = [i for i, line in enumerate(plain) if line.text == _TRACEBACK]
    after = range(starts[-1] + 1, len(plain)) if starts else ()
    return next((plain[i:] for i in after if plain[i].text[:1].strip()), ())


def _describe(code: int, lines: Sequence[Line], *, oom_killed: Optional[bool]) -> str:
    last = next((line.text.strip() for line in reversed(lines) if line.text.strip()), "")
    if code >= 0:
        return last or f"exited with code {code} without a word on stderr or stdout"
    text = f"killed by {_signal_name(-code)}"
    if code == -signals.SIGKILL:
        text += {
            True: " as the container was out of memory",
            False: ", not for want of memory and not by the launcher",
            None: ", not by the launcher",
        }[oom_killed]
    return f"{text}; its last line: {last}" if last else text


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def headline(report: Report) -> str:
    """One line for people."""
    rank = "" if report.local_rank is None else f" of process {report.local_rank}"
    return f"exit code {report.exit_code}{rank}: {report.error}"


def render(report: Report, variables: Mapping[str, str], history: Optional[History] = None) -> bytes:
    """The termination message: at most 4,096 bytes of JSON, with as many of the last lines as fit."""
    message: dict[str, Any] = {
        "v": VERSION,
        "cause": report.cause,
        "exitCode": report.exit_code,
        "signal": report.signal,
        "slice": _index(variables, "TPU_OPERATOR_SLICE"),
        "host": _index(variables, "TPU_OPERATOR_HOST"),
        "localRank": report.local_rank,
        "time": round(report.time, 6),
        "error": _shorten(report.error, _ERROR_CHARACTERS),
    }
    if report.terminated:
        message["terminated"] = True
    if history is not None:
        message["attempt"] = history.attempt
    if history is not None and history.earlier:
        message["earlier"] = history.earlier
    # Last, as a kubelet cuts the messages of a pod with many containers: 12 KiB have to do for all of them.
    message["log"] = ""
    room = MAX_BYTES - len(_json(message))
    if room < 0:  # an error full of characters that JSON spells in six bytes or UTF-8 in four
        message["error"] = _last_that_fit(
            [message["error"]], MAX_BYTES - len(_json({**message, "error": ""}))
        )
        room = MAX_BYTES - len(_json(message))
    message["log"] = _last_that_fit([line.text for line in report.log], room)
    return _json(message)


def _index(variables: Mapping[str, str], name: str) -> Optional[int]:
    value = variables.get(name, "")
    return int(value) if _INDEX.fullmatch(value) else None


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def _size(text: str) -> int:
    """Bytes of a text inside a JSON string."""
    return len(_json(text)) - 2


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _last_that_fit(lines: Sequence[str], room: int) -> str:
    """Join the last lines that fit into a number of bytes; of a last line that does not, its end."""
    kept: list[str] = []
    for line in reversed(lines):
        separator = 2 if kept else 0
        room -= _size(line) + separator
        if room < 0:
            if not kept:
                kept.append(_end_of(line, room + _size(line)))
            break
        kept.append(line)
    return "\n".join(reversed(kept))


def _end_of(line: str, room: int) -> str:
    start = len(line)
    while start and (size := _size(line[start - 1])) <= room:
        room -= size
        start -= 1
    return line[start:]


def brief(report: Report) -> dict[str, Any]:
    """What later reports of the same pod say of this one."""
    return {
        "cause": report.cause,
        "exitCode": report.exit_code,
        "signal": report.signal,
        "time": round(report.time, 6),
        "error": _shorten(report.error, _BRIEF_CHARACTERS),
    }


def leave(report: Report, variables: Mapping[str, str], history: Optional[History] = None) -> None:
    """Write the termination message where the kubelet reads it. Outside of a pod there is no such file."""
    path = variables.get(TERMINATION_LOG)
    flags = os.O_WRONLY | os.O_TRUNC | (os.O_CREAT if path else 0)
    try:
        target = os.open(path or DEFAULT_TERMINATION_LOG, flags, 0o644)
    except OSError as error:
        if path:
            say(f"the termination message could not be written to {path}: {error.strerror}")
        return
    try:
        write_all(target, render(report, variables, history))
    finally:
        os.close(target)


def say(text: str) -> None:
    """Tell people something, on stderr."""
    lines = "".join(f"tpu-launch: {line}\n" for line in text.splitlines())
    write_all(2, lines.encode(errors="backslashreplace"))

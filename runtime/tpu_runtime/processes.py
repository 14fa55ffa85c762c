"""The user's processes: started, signalled, reaped, and stopped together.

The launcher is PID 1 of its container, or makes itself the reaper of its descendants, so that no process
outlives it, whatever session or process group it has moved to.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Mapping, Optional

from tpu_runtime.aio import within
from tpu_runtime.early import STOP_SIGNALS
from tpu_runtime.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, USER_ERROR, LaunchError
from tpu_runtime.limits import users_limits
from tpu_runtime.output import Output, Tail, write_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PASSED_SIGNALS = (signal.SIGUSR1, signal.SIGHUP)

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_LAST_REAP_SECONDS = 2.0
_FINISH_SECONDS = 5.0
_LAST_WORDS_SECONDS = 0.5
_ABORT_SECONDS = 2.0
_PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)


@dataclass(frozen=True)
class Command:
    """A process to start.

    Attributes:
        argv: the command.
        variables: its whole environment.
        local_rank: its index among the processes of this launcher.
        service: its name, if it is there for the others: signals are not for it, it is stopped when they
            have ended, and to end before that is a failure, whatever its exit code.
        started: what it writes to stdout once it has started. Empty: it has as soon as it is there.
        tries: how often it is started, where it ends before it has started.
    """

    argv: Sequence[str]
    variables: Mapping[str, str]
    local_rank: int = 0
    service: str = ""
    started: str = ""
    tries: int = 1


@dataclass
class Process:
    """A process that was started.

    Attributes:
        command: what it runs.
        pid: also its process group.
        exit_code: None while it runs, negative when a signal killed it.
        ended: epoch seconds.
        stdout: the end of what it wrote there.
        stderr: the same.
        number: how often its command was started, with it.
    """

    command: Command
    pid: int
    stdout: Tail
    stderr: Tail
    exit_code: Optional[int] = None
    ended: float = 0.0
    number: int = 1

    @property
    def has_started(self) -> bool:
        """Whether it has come to its work."""
        wanted = self.command.started
        return not wanted or any(wanted in line.text for line in self.stdout.lines())


@dataclass
class Group:
    """The processes of this launcher, which live and die together.

    Attributes:
        grace: seconds from the signal to stop until what is left is killed.
        grace_after_failure: the same, where they stop since a process has failed, here or elsewhere.
        running: processes that have not ended.
        ended: those that have, in order.
        failed: the first process that failed by itself.
        decided: set when there is one, and when all but services have ended.
        stop_signal: the signal that asked the launcher to stop, if one came before any failure.
        recalled: they were to stop since another host has failed, before any failure here.
        dismissed: services were to stop as there is nothing left to serve.
        hung: when they last made progress, in epoch seconds, if they were ended for that.
        last_output: when a process last wrote something, by the monotonic clock.
    """

    grace: float
    grace_after_failure: float
    running: list[Process] = field(default_factory=list)
    ended: list[Process] = field(default_factory=list)
    failed: Optional[Process] = None
    stop_signal: Optional[int] = None
    recalled: bool = False
    dismissed: bool = False
    hung: Optional[float] = None
    last_output: float = field(default_factory=time.monotonic)
    _several: bool = False
    _killer: Optional[asyncio.TimerHandle] = None

    def __post_init__(self) -> None:
        self._output = Output(self._wrote)
        self._all_ended = asyncio.Event()
        self._childless = asyncio.Event()
        self.decided = asyncio.Event()

    def start(self, commands: Sequence[Command]) -> None:
        """Start all processes.

        Raises:
            LaunchError: one could not be started; those before it are killed.
        """
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)
        self._several = sum(not command.service for command in commands) > 1
        for command in commands:
            try:
                self.running.append(self._start(command))
            except OSError as error:
                self._kill()
                raise _not_started(command, error) from error

    async def wait(self) -> None:
        """Return when all processes have ended, and what they left behind has been killed."""
        await self._all_ended.wait()
        if self._killer is not None:
            # Or it would meet the processes of the next attempt, which descend from us as well.
            self._killer.cancel()
        self._childless.clear()
        self._reap()
        end = time.monotonic() + _LAST_REAP_SECONDS
        while not self._childless.is_set() and time.monotonic() < end:
            self._kill()  # again, for what was forked meanwhile
            with contextlib.suppress(asyncio.TimeoutError):
                await within(0.1, self._childless.wait())
        self._output.finish(_FINISH_SECONDS)

    async def hear_out(self) -> None:
        """Wait for the last words of the process that has failed.

        Not for long: its children may hold the pipes open.
        """
        loop = asyncio.get_running_loop()
        for tail in (self.failed.stdout, self.failed.stderr) if self.failed is not None else ():
            await loop.run_in_executor(None, tail.complete.wait, _LAST_WORDS_SECONDS)

    def recall(self) -> None:
        """Stop all processes, unless they stop already."""
        if not self._stopping:
            self.recalled = True
            self._stop()
        elif not self._served:
            self.dismiss()

    def dismiss(self) -> None:
        """Stop the services: those whom they serve have ended, here or elsewhere."""
        if self._services and not self.dismissed:
            self.dismissed = True
            self._send(signal.SIGTERM, self._services)
            self._start_grace(self.grace_after_failure)

    def abort(self, since: float) -> None:
        """End processes that hang, so that those that are Python's write where they stand.

        Args:
            since: when they last made progress, in epoch seconds.
        """
        if not self._stopping:
            self.hung = since
            spared = {
                pid for p in self._services for pid in (p.pid, *descendants(p.pid)) if not _is_task(pid)
            }
            for pid in descendants(os.getpid()):
                if pid not in spared:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGABRT)
            self._start_grace(_ABORT_SECONDS)
            if not self._served:
                self.dismiss()

    def deliver(self, signum: int) -> None:
        """Pass a signal on to all processes; one that asks to stop starts the grace period."""
        self._send(signum, self._served)
        if signum in STOP_SIGNALS:
            if not self._stopping:
                self.stop_signal = signum
            self._start_grace(self.grace)

    @property
    def first(self) -> Optional[Process]:
        """The first process that ended with anything but 0, of those that are no services."""
        return next((p for p in self.ended if p.exit_code and not p.command.service), None)

    @property
    def only_serves(self) -> bool:
        """Whether all that runs is there for others."""
        return bool(self.running) and not self._served

    @property
    def _stopping(self) -> bool:
        """Whether they are to end already, for whatever reason but that they are done."""
        told = self.stop_signal is not None or self.recalled
        return told or self.failed is not None or self.hung is not None

    @property
    def _served(self) -> list[Process]:
        return [process for process in self.running if not process.command.service]

    @property
    def _services(self) -> list[Process]:
        return [process for process in self.running if process.command.service]

    def _wrote(self) -> None:
        self.last_output = time.monotonic()

    def _start(self, command: Command, number: int = 1) -> Process:
        label = command.service or (str(command.local_rank) if self._several else "")
        prefix = f"[{label}] ".encode() if label else b""
        stdout, stderr = Tail(), Tail()
        sinks = [self._output.carry(1, prefix, stdout), self._output.carry(2, prefix, stderr)]
        try:
            with users_limits():
                pid = os.posix_spawnp(
                    command.argv[0],
                    list(command.argv),
                    dict(command.variables),
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, sink, target) for target, sink in enumerate(sinks, 1)
                    ],
                    setpgroup=0,
                    setsigmask=[],
                    setsigdef=_PYTHON_IGNORES,
                )
        finally:
            for sink in sinks:
                os.close(sink)
        return Process(command, pid, stdout, stderr, number=number)

    def _reap(self) -> None:
        """Collect every child that has ended, be it ours or an orphan that was left to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless.set()
                return
            if not pid:
                return
            process = next((p for p in self.running if p.pid == pid), None)
            if process:
                self._end(process, os.waitstatus_to_exitcode(status))

    def _end(self, process: Process, exit_code: int) -> None:
        process.exit_code, process.ended = exit_code, time.time()
        self.running.remove(process)
        if self._tried_again(process):
            return
        self.ended.append(process)
        if self._is_failure(process):
            self.failed = process
            self._stop()
        elif not process.command.service and not self._served:
            self.dismiss()
        if self.failed or not self._served:
            self.decided.set()
        if not self.running:
            self._all_ended.set()

    def _is_failure(self, process: Process) -> bool:
        """Whether a process has failed by itself, and is the first to do so."""
        if process.command.service:
            return not self._stopping and not self.dismissed
        return bool(process.exit_code) and not self._stopping

    def _tried_again(self, process: Process) -> bool:
        """Start a process once more that has ended before it had come to its work."""
        command, number = process.command, process.number + 1
        if number > command.tries or process.has_started or not self._is_failure(process):
            return False
        code = shell_code(process.exit_code or 0)
        text = f"{command.service} has not started (exit code {code}): try {number} of {command.tries}"
        write_all(2, f"tpu-launch: {text}\n".encode())
        with contextlib.suppress(OSError):  # then that is how it has failed
            self.running.append(self._start(command, number))
            return True
        return False

    def _stop(self) -> None:
        """Ask all processes to stop, and services only once there is nobody left whom they serve."""
        self._send(signal.SIGTERM, self._served)
        self._start_grace(self.grace_after_failure)
        if not self._served:
            self.dismiss()

    def _send(self, signum: int, processes: Iterable[Process]) -> None:
        for process in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signum)

    def _start_grace(self, seconds: float) -> None:
        if self._killer is None:
            self._killer = asyncio.get_running_loop().call_later(seconds, self._kill)

    def _kill(self) -> None:
        """Kill all that descends from us."""
        self._send(signal.SIGKILL, self.running)
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def shell_code(exit_code: int) -> int:
    """128+N for signal N, as a shell has it."""
    return 128 - exit_code if exit_code < 0 else exit_code


def _not_started(command: Command, error: OSError) -> LaunchError:
    name = command.argv[0]
    if isinstance(error, FileNotFoundError):
        path = command.variables.get("PATH", "")
        text, code = f"command not found: {name} (PATH={path})", EXIT_NOT_FOUND
        if shutil.which(name):
            text = f"command not found: the interpreter that {name} names in its first line"
    else:
        text, code = f"command cannot be executed: {name}: {error.strerror}", EXIT_NOT_EXECUTABLE
    return LaunchError(text, code, USER_ERROR, command.local_rank)


def descendants(root: int) -> list[int]:
    """All processes below `root`; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    level = [root]
    while level:
        level = [child for pid in level for child in children.get(pid, ())]
        found += level
    return found


def _is_task(pid: int) -> bool:
    """Whether a process runs the user's code in a node of Ray."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().startswith("ray::")
    return False


def _parents() -> Iterable[tuple[int, int]]:
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name of the program stands in parentheses and may hold anything.
            fields = entry.read_bytes().rpartition(b")")[2].split()
            yield int(entry.parent.name), int(fields[1])


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent dies, as PID 1 is without asking. Linux only."""
    if os.getpid() == 1:
        return
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415 - small Pythons come without it

        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)

"""`tpu-launch -- CMD…`: PID 1 of the main container of a TPU pod (contract A4).

Checks the environment, waits at the gate for the other hosts, starts the processes, passes signals on, reaps,
and leaves a termination message and an exit code that say what happened first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Optional

from tpu_runtime import early, frameworks, report
from tpu_runtime.early import STOP_SIGNALS
from tpu_runtime.environment import read_environment
from tpu_runtime.errors import EXIT_ENVIRONMENT, EXIT_INTERNAL, LaunchError
from tpu_runtime.gate import Gate, LocalDoor, RemoteDoor, Visitor, this_member
from tpu_runtime.health import Health
from tpu_runtime.http import Server
from tpu_runtime.limits import allow_files, forbid_cores
from tpu_runtime.memory import oom_kills
from tpu_runtime.processes import PASSED_SIGNALS, Group, adopt_orphans

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpu_runtime.environment import HostEnvironment

_ANSWER_SECONDS = 10.0
_LIBTPU_LOCK = Path("/tmp/libtpu_lockfile")  # noqa: S108 - libtpu's own choice

_EMULATION = (
    "EMULATION: this cluster has no TPUs. The processes run on the CPU (TPU_OPERATOR_EMULATE=cpu); "
    "speed, memory and numerics are NOT those of a TPU."
)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the launcher and return the exit code of the container.

    Args:
        arguments: the command line without the program's name; default: that of the process.
    """
    variables = dict(os.environ)
    try:
        options, command = _parse(sys.argv[1:] if arguments is None else arguments)
        env = read_environment(variables, options.gate_timeout)
        return asyncio.run(_Launch(env, command).run())
    except LaunchError as error:
        return _give_up(error, variables)
    except Exception as error:  # noqa: BLE001 - PID 1 must say why it ends
        report.say(traceback.format_exc())
        return _give_up(LaunchError(f"the launcher broke: {error!r}", EXIT_INTERNAL), variables)


def _give_up(error: LaunchError, variables: Mapping[str, str]) -> int:
    return _leave(report.given_up(error), variables)


def _leave(ending: report.Report, variables: Mapping[str, str]) -> int:
    if ending != report.SUCCESS:
        report.say(report.headline(ending))
        report.leave(ending, variables)
    return ending.exit_code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LaunchError(f"{message}\n{self.format_usage().strip()}", EXIT_ENVIRONMENT)


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = _Parser(
        prog="tpu-launch",
        usage="tpu-launch [--gate-timeout SECONDS] -- COMMAND [ARGUMENT...]",
        description="Start the processes of one host of a TPU job once all its hosts are there.",
    )
    parser.add_argument("--gate-timeout", metavar="SECONDS", help="how long to wait for the other hosts")
    ours, command = list(arguments), []
    if "--" in ours:
        split = ours.index("--")
        ours, command = ours[:split], ours[split + 1 :]
    options = parser.parse_args(ours)
    if not command:
        parser.error("there is no command; write it after --")
    return options, command


class _Launch:
    """One run of the launcher, from a good environment to an exit code."""

    def __init__(self, env: HostEnvironment, command: Sequence[str]) -> None:
        self._env = env
        self._command = command
        self._stop: Optional[int] = None
        self._gate_task: Optional[asyncio.Task[None]] = None
        self._group: Optional[Group] = None

    async def run(self) -> int:
        """Run to the end and return the exit code.

        Raises:
            LaunchError: the launcher gives up.
        """
        self._prepare()
        gate = self._make_gate()
        health = Health(gate, time.monotonic())
        server = Server(health.handle)
        await self._listen(server)
        try:
            entered = await self._enter(gate, health)
        except LaunchError:
            if gate:
                gate.close()
            await server.close()
            raise
        if not entered:
            return _leave(report.never_started(self._stop or signal.SIGTERM), self._env.variables)
        try:
            ending = await self._supervise(health)
        except LaunchError as error:
            ending = report.given_up(error)
        code = _leave(ending, self._env.variables)
        if gate and not ending.terminated:
            await gate.all_answered(_ANSWER_SECONDS)
        await server.close()
        return code

    def _prepare(self) -> None:
        loop = asyncio.get_running_loop()
        for signum in (*STOP_SIGNALS, *PASSED_SIGNALS):
            loop.add_signal_handler(signum, self._on_signal, signum)
        self._stop = next(iter(early.heard), None)
        adopt_orphans()
        forbid_cores()
        if self._env.hardware.emulated:
            report.say(_EMULATION)
        else:
            with contextlib.suppress(OSError):  # left by a process of this container that was killed
                _LIBTPU_LOCK.unlink()

    def _on_signal(self, signum: int) -> None:
        if self._group is not None:
            self._group.deliver(signum)
        elif signum in STOP_SIGNALS:
            self._stop = signum
            if self._gate_task is not None:
                self._gate_task.cancel()

    def _make_gate(self) -> Optional[Gate]:
        place = self._env.place
        if place.index != 0 or place.num_hosts == 1:
            return None
        allow_files(place.num_hosts)
        return Gate(place.job, place.attempt, place.num_slices, place.hosts_per_slice)

    async def _listen(self, server: Server) -> None:
        port = self._env.settings.port
        try:
            await server.start(port)
        except OSError as error:
            text = f"cannot listen on port {port} (TPU_LAUNCH_PORT): {error.strerror}"
            raise LaunchError(text, EXIT_ENVIRONMENT) from error

    async def _enter(self, gate: Optional[Gate], health: Health) -> bool:
        """Pass the gate, straight away where there is nobody to wait for; False when told to stop."""
        place = self._env.place
        if place.num_hosts > 1 and self._stop is None:
            report.say(f"waiting for {place.num_hosts} hosts, attempt {place.attempt}")
            member = this_member(self._env)
            door = LocalDoor(gate, member) if gate else RemoteDoor(self._env.coordinator, member)
            self._gate_task = asyncio.ensure_future(Visitor(self._env, door, report.say).enter())
            with contextlib.suppress(asyncio.CancelledError):
                await self._gate_task
        if self._stop is not None:
            return False
        health.gate_seconds = time.monotonic() - health.started
        if place.num_hosts > 1:
            report.say(f"all hosts are there after {health.gate_seconds:.1f} s")
        return True

    async def _supervise(self, health: Health) -> report.Report:
        """Run the user's processes."""
        group = self._group = health.group = Group(self._env.settings.grace)
        commands = frameworks.commands(self._env, self._command)
        health.expected = len(commands)
        oom_before = oom_kills()
        group.start(commands)
        await group.wait()
        if group.failed is not None:
            torchrun = self._env.launcher == "torchrun"
            return report.failure(group.failed, torchrun=torchrun, oom_killed=_oom_killed(oom_before))
        if group.stop_signal is not None:
            return report.stopped(group.stop_signal, group.first)
        return report.SUCCESS


def _oom_killed(before: Optional[int]) -> Optional[bool]:
    after = oom_kills()
    return None if before is None or after is None else after > before

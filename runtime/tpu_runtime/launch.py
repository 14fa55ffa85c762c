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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Optional

from tpu_runtime import doctor, early, emulate, frameworks, hang, http, memory, notice, report, spare
from tpu_runtime.chips import Chips
from tpu_runtime.early import STOP_SIGNALS
from tpu_runtime.environment import at_attempt, launch_port, read_environment
from tpu_runtime.errors import EXIT_ENVIRONMENT, EXIT_INTERNAL, LaunchError
from tpu_runtime.frameworks import ray
from tpu_runtime.frameworks.torchtpu import interpreter
from tpu_runtime.gate import HEAD, Gate
from tpu_runtime.health import Health
from tpu_runtime.history import open_history
from tpu_runtime.http import Server
from tpu_runtime.limits import allow_files, forbid_cores
from tpu_runtime.processes import PASSED_SIGNALS, Group, adopt_orphans
from tpu_runtime.profiles import Profiler
from tpu_runtime.together import Outcome, run_together, tell_end
from tpu_runtime.visitor import LocalDoor, RemoteDoor, Visitor, this_member

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpu_runtime.environment import HostEnvironment
    from tpu_runtime.history import History
    from tpu_runtime.memory import Kills
    from tpu_runtime.processes import Command
    from tpu_runtime.visitor import Door

_ANSWER_SECONDS = 10.0
_HEALTHY_SECONDS = 1.0
_TOLD_SECONDS = 2.0
_LIBTPU_LOCK = Path("/tmp/libtpu_lockfile")  # noqa: S108 - libtpu's own choice


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the launcher and return the exit code of the container.

    Args:
        arguments: the command line without the program's name; default: that of the process.
    """
    variables = dict(os.environ)
    history = open_history(variables)
    try:
        options, command = _parse(sys.argv[1:] if arguments is None else arguments)
        if options.spare:
            return asyncio.run(spare.wait(launch_port(variables)))
        env = read_environment(variables, options.gate_timeout)
        return asyncio.run(_Launch(env, command, history).run())
    except LaunchError as error:
        return _leave(report.given_up(error), variables, history)
    except Exception as error:  # noqa: BLE001 - PID 1 must say why it ends
        report.say(traceback.format_exc())
        broken = LaunchError(f"the launcher broke: {error!r}", EXIT_INTERNAL)
        return _leave(report.given_up(broken), variables, history)


def _leave(ending: report.Report, variables: Mapping[str, str], history: History) -> int:
    if ending != report.SUCCESS:
        report.say(report.headline(ending))
        report.leave(ending, variables, history)
        history.end(report.brief(ending))
    return ending.exit_code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LaunchError(f"{message}\n{self.format_usage().strip()}", EXIT_ENVIRONMENT)


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = _Parser(
        prog="tpu-launch",
        usage="tpu-launch [--gate-timeout SECONDS] -- COMMAND [ARGUMENT...], or tpu-launch --spare",
        description="Start the processes of one host of a TPU job once all its hosts are there.",
    )
    parser.add_argument("--spare", action="store_true", help="start nothing: hold the node, and wait")
    parser.add_argument("--gate-timeout", metavar="SECONDS", help="how long to wait for the other hosts")
    ours, command = list(arguments), []
    if "--" in ours:
        split = ours.index("--")
        ours, command = ours[:split], ours[split + 1 :]
    options = parser.parse_args(ours)
    if not command and not options.spare:
        parser.error("there is no command; write it after --")
    return options, command


class _Launch:
    """One run of the launcher, from a good environment to an exit code."""

    def __init__(self, env: HostEnvironment, command: Sequence[str], history: History) -> None:
        self._env = env
        self._command = command
        self._history = history
        self._stop: Optional[int] = None
        self._gate_task: Optional[asyncio.Task[int]] = None
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
            ending = await self._attempts(self._door(gate), health)
        except LaunchError:
            if gate:
                gate.close()
            await server.close()
            raise
        code = _leave(ending, self._env.variables, self._history)
        if gate and not ending.terminated:
            await self._see_off(gate, well=ending == report.SUCCESS)
        await server.close()
        return code

    async def _attempts(self, door: Optional[Door], health: Health) -> report.Report:
        """Attempts, one after the other, until one ends in a way that ends this launcher."""
        ending: Optional[report.Report] = None
        while ending is None:
            if not await self._enter(door, health):
                return report.never_started(self._stop or signal.SIGTERM)
            try:
                ending = await self._supervise(door, health)
            except LaunchError as error:
                ending = report.given_up(error)
                if door and self._env.follows:
                    await tell_end(door, self._history.attempt, report.told(ending))
        return ending

    async def _see_off(self, gate: Gate, *, well: bool) -> None:
        """Stay until all others know what they have to know from the host that keeps the gate."""
        if self._env.follows:
            await gate.all_told(_ANSWER_SECONDS if well else _TOLD_SECONDS)
            gate.close()  # to those who have come for the next attempt already
        else:
            await gate.all_answered(_ANSWER_SECONDS)

    def _prepare(self) -> None:
        loop = asyncio.get_running_loop()
        for signum in (*STOP_SIGNALS, *PASSED_SIGNALS):
            loop.add_signal_handler(signum, self._on_signal, signum)
        self._stop = next(iter(early.heard), None)
        adopt_orphans()
        forbid_cores()
        self._look_around()
        if self._env.hardware.emulated:
            report.say(emulate.NOTICE)

    def _look_around(self) -> None:
        """Say what the processes would fall over without a word.

        Raises:
            LaunchError: nothing can come of them here.
        """
        host = doctor.Host(self._env.variables, python=interpreter(self._command))
        for finding in doctor.essentials(host):
            text = f"{finding.found}: {finding.why}; {finding.remedy}"
            if finding.severity is doctor.Severity.ERROR:
                raise LaunchError(text, EXIT_ENVIRONMENT)
            report.say(f"warning: {text}")

    def _on_signal(self, signum: int) -> None:
        if signum in STOP_SIGNALS:
            self._stop = signum
        if self._group is not None:
            self._group.deliver(signum)
        elif signum in STOP_SIGNALS and self._gate_task is not None:
            self._gate_task.cancel()

    def _make_gate(self) -> Optional[Gate]:
        place = self._env.place
        if not place.keeps_gate:
            return None
        allow_files(place.num_met)
        leader = HEAD if place.head else (place.met.start, 0)
        return Gate(
            place.job,
            place.attempt,
            place.met,
            place.hosts_per_slice,
            in_place=self._env.settings.in_place,
            leader=leader if self._env.launcher == "ray" else None,
        )

    def _door(self, gate: Optional[Gate]) -> Optional[Door]:
        """The way to the gate; None for a host that has nobody to meet."""
        if self._env.place.num_met == 1:
            return None
        member = this_member(self._env, self._history.attempt)
        return LocalDoor(gate, member) if gate else RemoteDoor(self._env.coordinator, member)

    async def _listen(self, server: Server) -> None:
        port = self._env.settings.port
        try:
            await server.start(port)
        except OSError as error:
            text = f"cannot listen on port {port} (TPU_LAUNCH_PORT): {error.strerror}"
            raise LaunchError(text, EXIT_ENVIRONMENT) from error

    async def _enter(self, door: Optional[Door], health: Health) -> bool:
        """Pass the gate, straight away where there is nobody to wait for; False when told to stop."""
        if door and self._stop is None:
            report.say(f"waiting for {self._env.place.num_met} hosts, attempt {door.member.least}")
            self._gate_task = asyncio.ensure_future(Visitor(self._env, door, report.say).enter())
            with contextlib.suppress(asyncio.CancelledError):
                self._history.begin(await self._gate_task)
        if self._stop is not None:
            return False
        health.gate_seconds = time.monotonic() - health.started
        health.restarts = self._history.attempt - self._history.first
        if door:
            seconds = f"{health.gate_seconds:.1f}"
            report.say(f"all hosts are there after {seconds} s, attempt {self._history.attempt}")
        return True

    async def _supervise(self, door: Optional[Door], health: Health) -> Optional[report.Report]:
        """Run the user's processes; the report is None where they are to be started again here."""
        attempt, env = self._history.attempt, at_attempt(self._env, self._history.attempt)
        self._unlock_chips()
        commands = await self._commands(env, health)
        if self._stop is not None:
            return report.never_started(self._stop)
        group = self._group = health.group = Group(env.settings.grace, env.settings.grace_after_failure)
        health.expected = len(commands)
        with contextlib.ExitStack() as watches:
            beats = health.heart = watches.enter_context(hang.heart())
            health.profiler = Profiler(beats.folder)
            if not env.hardware.emulated:
                health.chips = Chips(self._command, beats.variables(env.variables))
            kills = watches.enter_context(memory.watched())
            watches.enter_context(notice.watched(env, group))
            watches.enter_context(hang.watched(env, group, beats))
            group.start([replace(each, variables=beats.variables(each.variables)) for each in commands])
            outcome = await run_together(
                group,
                door if env.follows else None,
                attempt,
                lambda: report.told(self._ending(group, kills, Outcome())),
                leads=env.leads,
            )
            ending = self._ending(group, kills, outcome)
        if ending.terminated or door is None or not (outcome.again and env.settings.in_place):
            return ending
        if ending != report.SUCCESS:
            report.say(report.headline(ending))
        report.say(f"another host has failed: attempt {attempt} is over")
        self._group = None
        health.wait_again()
        door.member = replace(door.member, least=attempt + 1)
        return None

    async def _commands(self, env: HostEnvironment, health: Health) -> Sequence[Command]:
        """What to start on this host."""
        if env.launcher != "ray":
            return frameworks.commands(env, self._command)
        if self._history.attempt > self._history.first:
            ray.forget(env.variables)
        cluster = await ray.find(env)
        health.works = partial(http.is_ok, (cluster.own, ray.AGENT_PORT), ray.HEALTHY, _HEALTHY_SECONDS)
        return ray.commands(env, self._command, cluster)

    def _ending(self, group: Group, kills: Kills, outcome: Outcome) -> report.Report:
        if group.hung is not None:
            return report.hang(group.hung, group)
        if group.failed is not None:
            torchrun = self._env.launcher == "torchrun"
            return report.failure(group.failed, torchrun=torchrun, oom_killed=kills.happened)
        if group.stop_signal is not None:
            return report.stopped(group.stop_signal, group.first)
        if outcome.over is None or self._env.settings.in_place:
            return report.SUCCESS
        if kills.since is not None:
            return report.out_of_memory(kills.since, outcome.over)
        return report.echo(outcome.over)

    def _unlock_chips(self) -> None:
        """Remove what a process of this pod that was killed has left behind."""
        if not self._env.hardware.emulated:
            with contextlib.suppress(OSError):
                _LIBTPU_LOCK.unlink()

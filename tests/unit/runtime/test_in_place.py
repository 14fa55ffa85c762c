"""Restarts in place: hosts meet again under a higher number, and never run two numbers at a time."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import signal
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.runtime.harness import Launcher, get, until, variables
from tests.unit.runtime.test_gate import JOB, MEMBER
from tpu_runtime import http
from tpu_runtime.environment import read_environment
from tpu_runtime.gate import (
    ARRIVED,
    DONE,
    ENDED,
    JOIN,
    LEAVE,
    OPEN,
    OVER,
    RESOLVED,
    STAY,
    WAITING,
    WATCH,
    Answer,
    Failed,
    Gate,
    Member,
    answer_request,
)
from tpu_runtime.history import open_history
from tpu_runtime.limits import allow_files
from tpu_runtime.report import Report, brief, render
from tpu_runtime.together import tell_end, until_over
from tpu_runtime.visitor import Door, LocalDoor, RemoteDoor, Visitor

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.runtime.conftest import Launch


def members(count: int, least: int = 1) -> list[Member]:
    return [replace(MEMBER, host=host, worker_id=host, boot=f"{host}", least=least) for host in range(count)]


async def opened(gate: Gate, hosts: list[Member]) -> list[Answer]:
    return await asyncio.gather(*(gate.join(member, RESOLVED, 60) for member in hosts))


async def running(hosts: int = 3) -> tuple[Gate, list[Member]]:
    """A gate that is open for attempt 1."""
    gate, all_hosts = Gate(JOB, 1, range(1), hosts, in_place=True), members(hosts)
    assert {(answer.state, answer.attempt) for answer in await opened(gate, all_hosts)} == {(OPEN, 1)}
    return gate, all_hosts


# The gate.


async def test_a_host_that_comes_again_ends_the_attempt_and_all_meet_under_the_next() -> None:
    gate, hosts = await running()
    watching = asyncio.ensure_future(gate.watch(hosts[0], 1, 60))
    await asyncio.sleep(0)
    again = replace(hosts[2], boot="again", least=2)
    coming = asyncio.ensure_future(gate.join(again, RESOLVED, 60))
    assert await watching == Answer(OVER, attempt=1)
    assert (await gate.watch(hosts[1], 1, 60)).state == OVER
    assert not coming.done()
    others = [replace(member, least=2) for member in hosts[:2]]
    assert [answer.attempt for answer in await opened(gate, others)] == [2, 2]
    assert await coming == Answer(OPEN, attempt=2)


async def test_a_host_that_knows_less_is_told_and_comes_with_a_higher_number() -> None:
    gate, hosts = await running()
    forgetful = replace(hosts[2], boot="again")
    assert await gate.join(forgetful, ARRIVED, 60) == Answer(OVER, attempt=1)
    assert (await gate.watch(hosts[0], 1, 60)).state == OVER
    door = LocalDoor(gate, forgetful)
    env = read_environment(variables(hosts=3, host=2, attempt=1))
    coming = asyncio.ensure_future(Visitor(env, door, lambda _: None).enter())
    await opened(gate, [replace(member, least=2) for member in hosts[:2]])
    assert await coming == 2
    assert door.member.least == 2


async def test_the_highest_number_that_any_host_has_seen_decides() -> None:
    """As when a coordinator starts again, and knows of nothing."""
    gate = Gate(JOB, 1, range(1), 3, in_place=True)
    hosts = [replace(member, least=1 + 2 * member.host) for member in members(3)]
    assert {answer.attempt for answer in await opened(gate, hosts)} == {5}


async def test_a_coordinator_that_starts_again_tells_those_who_still_run() -> None:
    gate = Gate(JOB, 1, range(1), 3, in_place=True)
    assert await gate.watch(members(3)[1], 1, 60) == Answer(OVER, attempt=1)


async def test_an_answer_that_got_lost_is_given_again_while_the_attempt_runs_and_not_after_it() -> None:
    gate, hosts = await running()
    assert await gate.join(hosts[1], RESOLVED, 60) == Answer(OPEN, attempt=1)
    gate.ended(hosts[2], 1, Failed(10.0))
    # It may be that the answer was not lost, and that this host runs attempt 1.
    assert await gate.join(hosts[1], RESOLVED, 0.01) == Answer(OVER, attempt=1)
    assert (await gate.join(replace(hosts[1], least=2), RESOLVED, 0.01)).state == WAITING


async def test_a_host_that_only_loses_its_connection_restarts_nothing() -> None:
    gate, hosts = await running()
    watching = asyncio.ensure_future(gate.watch(hosts[1], 1, 60))
    await asyncio.sleep(0)
    watching.cancel()
    await asyncio.wait({watching})
    assert await gate.watch(hosts[1], 1, 0.01) == Answer(OPEN, attempt=1)
    assert await gate.watch(hosts[0], 1, 0.01) == Answer(OPEN, attempt=1)


async def test_only_who_failed_first_leaves() -> None:
    gate, hosts = await running(4)
    assert gate.ended(hosts[1], 1, Failed(10.0)).state == LEAVE
    assert gate.ended(hosts[2], 1, Failed(10.5)).state == STAY
    assert gate.ended(hosts[3], 1, Failed(9.0)).state == LEAVE, "it came late, and was the first"
    assert gate.ended(hosts[1], 1, Failed(10.0)).state == STAY
    assert gate.ended(hosts[3], 1, Failed(9.0)).state == LEAVE, "the answer got lost"
    assert gate.ended(hosts[0], 1, None).state == STAY, "it ended well, but not all did"
    assert gate.ended(hosts[0], 7, Failed(10.0)).state == LEAVE, "nothing is known of that"


async def test_the_keeper_of_the_gate_leaves_once_all_know_that_it_ended_well() -> None:
    gate, hosts = await running(4)
    assert gate.ended(hosts[0], 1, None).state == LEAVE
    assert gate.ended(hosts[3], 1, None).state == LEAVE
    watching = asyncio.ensure_future(gate.watch(hosts[1], 1, 60))
    leaving = asyncio.ensure_future(gate.all_told(60))
    assert await watching == Answer(DONE, attempt=1)
    assert not leaving.done()
    assert await gate.watch(hosts[2], 1, 60) == Answer(DONE, attempt=1)
    await leaving


async def test_without_restarts_in_place_a_gate_that_is_open_stays_open() -> None:
    gate, hosts = Gate(JOB, 1, range(1), 2), members(2)
    await opened(gate, hosts)
    assert await gate.join(replace(hosts[1], boot="again"), RESOLVED, 0) == Answer(OPEN, attempt=1)


@pytest.mark.parametrize(
    ("path", "question"),
    [
        (WATCH, {}),
        (WATCH, {"attempt": "1", "hold": 1}),
        (WATCH, {"attempt": 1, "hold": 999}),
        (ENDED, {"attempt": 1}),
        (ENDED, {"attempt": None, "failed": {"time": 1.0}}),
        (ENDED, {"attempt": 1, "failed": {"time": "soon"}}),
        (JOIN, {"stage": ARRIVED, "hold": 1, "least": "2"}),
    ],
)
async def test_nonsense_ends_no_attempt(path: str, question: dict[str, Any]) -> None:
    gate, hosts = await running()
    member = asdict(hosts[1]) | {key: question[key] for key in ("least",) if key in question}
    body = json.dumps({"member": member, **question}).encode()
    assert (await answer_request(gate, path, body)).status == 400
    assert await gate.watch(hosts[1], 1, 0.01) == Answer(OPEN, attempt=1)


# Any order of things, with many hosts in one process.


@dataclass
class Gang:
    """Hosts whose launchers fail, get killed, come late and lose connections, as chance has it."""

    rng: random.Random
    count: int
    rounds: int
    port: int
    boots: int = 0
    server: http.Server | None = None
    run: dict[int, int] = field(default_factory=dict)
    """By host, the attempt that it runs."""
    seen: list[set[int]] = field(default_factory=list)
    """Hosts of each attempt that was run, in order."""
    numbers: list[int] = field(default_factory=list)
    failures: int = 0
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self, host: int, attempt: int) -> None:
        self.run[host] = attempt
        assert set(self.run.values()) == {attempt}, f"two attempts side by side: {self.run}"
        if not self.numbers or self.numbers[-1] != attempt:
            assert attempt > max(self.numbers, default=-1), "numbers only rise"
            self.numbers.append(attempt)
            self.seen.append(set())
        self.seen[-1].add(host)
        if len(self.seen[-1]) == self.count and self.failures >= self.rounds:
            self.finished.set()

    async def live(self, host: int) -> None:
        least = 0
        while True:
            least = await self.boot(host, least) + 1
            self.run.pop(host, None)
            if self.rng.random() < 0.2:
                least = 0  # its volume is gone
            await asyncio.sleep(self.rng.uniform(0.0, 0.05))

    async def boot(self, host: int, least: int) -> int:
        """One life of a launcher; returns the last attempt that it has seen."""
        self.boots += 1
        member = replace(MEMBER, attempt=0, host=host, worker_id=host, boot=f"{self.boots}", least=least)
        if host:
            return await self.attempts(host, RemoteDoor(("127.0.0.1", self.port), member))
        gate = Gate(JOB, 0, range(1), self.count, in_place=True)

        async def handle(request: http.Request) -> http.Response:
            return await answer_request(gate, request.path, request.body)

        self.server = http.Server(handle)
        await self.server.start(self.port)
        try:
            return await self.attempts(host, LocalDoor(gate, member))
        finally:
            if self.rng.random() < 0.5:
                await gate.all_told(0.2)
            gate.close()
            await self.server.close()

    async def attempts(self, host: int, door: Door) -> int:
        env = read_environment(variables(hosts=self.count, host=host, TPU_LAUNCH_STATE_DIR="/x"))
        while True:
            attempt = await Visitor(env, door, lambda _: None).enter()
            self.start(host, attempt)
            over = asyncio.ensure_future(until_over(door, attempt))
            soon = self.rng.random() < 1.5 / self.count
            lasts = self.rng.uniform(0.0, 0.1) if soon else self.rng.uniform(0.5, 1.0)
            await asyncio.wait({over}, timeout=lasts if self.failures < self.rounds else None)
            by_itself = not over.done()
            over.cancel()
            if by_itself:
                self.failures += 1
                killed = self.rng.random() < 0.3
                if killed or not await tell_end(door, attempt, Failed(self.failures + self.rng.random())):
                    return attempt
            await asyncio.sleep(self.rng.uniform(0.0, 0.02))  # its processes stop
            self.run.pop(host, None)
            door.member = replace(door.member, least=attempt + 1)


async def abandon() -> None:
    """End what is still under way, such as connections that have just come, before the loop ends."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.wait_for(asyncio.gather(*rest, return_exceptions=True), 10)
    # Transports close in two rounds of the loop.
    for _ in range(2):
        await asyncio.sleep(0)


# asyncio leaves a connection that comes while its listening socket is closed to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("hosts", "rounds", "seed"), [(2, 12, 1), (5, 15, 2), (5, 15, 3), (80, 6, 4)])
async def test_two_attempts_never_run_side_by_side_whatever_happens(
    port: int, hosts: int, rounds: int, seed: int
) -> None:
    allow_files(4 * hosts)
    gang = Gang(random.Random(seed), hosts, rounds, port)
    lives = [asyncio.ensure_future(gang.live(host)) for host in range(hosts)]
    finished = asyncio.ensure_future(gang.finished.wait())
    async with asyncio.timeout(60):
        done, _ = await asyncio.wait({*lives, finished}, return_when=asyncio.FIRST_COMPLETED)
    for task in (*lives, finished):
        task.cancel()
    await asyncio.gather(*lives, return_exceptions=True)
    for task in done:
        task.result()
    assert len(gang.seen[-1]) == hosts
    if gang.server:
        await gang.server.close()
    await abandon()
    gc.collect()  # here, where it is no surprise


# Launchers with processes, and a kubelet that starts containers again.

SCRIPT = """
echo up-$TPU_OPERATOR_ATTEMPT
trap 'echo told; [ -e "$DEAF" ] || exit 1' TERM
i=0
while :; do
  i=$((i+1)); [ $i -eq 40 ] && echo steady-$TPU_OPERATOR_ATTEMPT
  [ -e "$DOOM-$TPU_OPERATOR_ATTEMPT" ] && { echo doomed >&2; exit 3; }
  [ -e "$WELL" ] && exit 0
  sleep 0.02
done
"""


@dataclass
class Pods:
    """Four pods of which each keeps a volume, and a kubelet."""

    launch: Launch
    folder: Path
    port: int
    hosts: int = 4
    slices: int = 1
    more: dict[str, str] = field(default_factory=dict)
    current: dict[int, Launcher] = field(default_factory=dict)

    def start(self, *hosts: int) -> None:
        for host in hosts or range(self.hosts):
            volume = self.folder / f"pod-{host}"
            volume.mkdir(exist_ok=True)
            changes = {
                "TPU_LAUNCH_STATE_DIR": str(volume),
                "TPU_LAUNCH_PORT": str(self.port) if host == 0 else "0",
                "TPU_OPERATOR_COORDINATOR": f"localhost:{self.port}",
                "DOOM": str(self.folder / f"doom-{host}"),
                "WELL": str(self.folder / "well"),
                "DEAF": str(self.folder / "deaf"),
            } | self.more
            env = variables(changes, hosts=self.hosts, host=host, attempt=0)
            self.current[host] = self.launch(env, "sh", "-c", SCRIPT)

    def doom(self, host: int, attempt: int) -> None:
        (self.folder / f"doom-{host}-{attempt}").touch()

    def wait_up(self, attempt: int) -> None:
        for launcher in self.current.values():
            launcher.wait_for(f"up-{attempt}\n")

    def end(self) -> None:
        (self.folder / "well").touch()
        for launcher in self.current.values():
            assert launcher.code() == 0, launcher.stderr


@pytest.fixture
def pods(launch: Launch, tmp_path: Path, port: int) -> Pods:
    return Pods(launch, tmp_path, port)


@pytest.mark.parametrize("victim", [0, 2])
def test_all_hosts_start_again_in_their_containers_when_one_has_failed(pods: Pods, victim: int) -> None:
    pods.start()
    pods.wait_up(0)
    for attempt, earlier in enumerate(([], [0])):
        pods.doom(victim, attempt)
        assert pods.current[victim].code() == 3
        message = pods.current[victim].message
        assert message is not None
        assert (message["attempt"], message["cause"]) == (attempt, "UserError")
        assert [ending["attempt"] for ending in message.get("earlier", [])] == earlier
        pods.start(victim)
        pods.wait_up(attempt + 1)
    stayed = [launcher for host, launcher in pods.current.items() if host != victim]
    assert all(launcher.process.poll() is None for launcher in stayed)
    assert all("attempt 1 is over" in launcher.stderr for launcher in stayed)
    metrics = until(lambda: get(pods.port, "/metrics")[1], "metrics")
    assert "tpu_launch_process_restarts_total 2\n" in metrics
    assert get(pods.port, "/readyz")[0] == 200
    pods.end()


def knows(launcher: Launcher) -> bool:
    return launcher.process.poll() is not None or "attempt 0 is over" in launcher.stderr


def test_of_hosts_that_fail_together_only_the_first_leaves_its_container(pods: Pods) -> None:
    pods.start()
    pods.wait_up(0)
    for host in (1, 2, 3):
        pods.doom(host, 0)
    for launcher in pods.current.values():
        until(partial(knows, launcher), "the end of the attempt")
    gone = [host for host, each in pods.current.items() if each.process.poll() is not None]
    assert 0 not in gone
    assert all(pods.current[host].message is not None for host in gone)
    pods.start(*gone)
    pods.wait_up(1)
    pods.end()


def test_a_launcher_that_is_killed_leaves_no_word_and_its_successor_another_number(pods: Pods) -> None:
    pods.start()
    pods.wait_up(0)
    pods.current[3].kill()
    pods.start(3)
    pods.wait_up(1)
    pods.current[0].kill()
    pods.start(0)
    pods.wait_up(2)
    pods.end()


def test_the_end_of_one_attempts_grace_is_none_of_the_next_ones_business(pods: Pods) -> None:
    pods.more["TPU_LAUNCH_FAILURE_GRACE_SECONDS"] = "0.5"
    pods.start()
    pods.wait_up(0)
    pods.doom(2, 0)
    assert pods.current[2].code() == 3
    pods.start(2)
    for launcher in pods.current.values():
        launcher.wait_for("steady-1")
    pods.end()


def test_a_process_that_waits_for_its_peers_instead_of_stopping_is_killed(pods: Pods) -> None:
    pods.more["TPU_LAUNCH_FAILURE_GRACE_SECONDS"] = "0.2"
    (pods.folder / "deaf").touch()
    pods.start()
    pods.wait_up(0)
    pods.doom(2, 0)
    assert pods.current[2].code() == 3
    pods.start(2)
    pods.wait_up(1)
    assert b"told" in pods.current[1].stdout
    pods.end()


def test_a_host_that_is_told_to_stop_between_attempts_stops(pods: Pods) -> None:
    pods.start()
    pods.wait_up(0)
    pods.doom(2, 0)
    assert pods.current[2].code() == 3
    pods.current[1].wait_for("attempt 0 is over")
    pods.current[1].signal(signal.SIGTERM)
    assert pods.current[1].code() == 128 + signal.SIGTERM
    assert pods.current[1].message is not None
    assert pods.current[1].message["terminated"]


def test_a_host_that_is_told_to_stop_while_its_processes_end_does_not_start_again(pods: Pods) -> None:
    pods.more["TPU_LAUNCH_FAILURE_GRACE_SECONDS"] = "1"
    (pods.folder / "deaf").touch()
    pods.start()
    pods.wait_up(0)
    pods.doom(2, 0)
    pods.current[1].wait_for("told")
    pods.current[1].signal(signal.SIGTERM)
    assert pods.current[1].code() != 0
    assert pods.current[1].message is not None
    assert pods.current[1].message["terminated"]
    assert b"up-1" not in pods.current[1].stdout


def test_each_slice_has_a_gate_of_its_own_where_slices_restart_alone(launch: Launch, port: int) -> None:
    changes: dict[str, str | None] = {
        "TPU_OPERATOR_RESTART_SCOPE": "Slice",
        "TPU_OPERATOR_COORDINATOR": f"localhost:{port}",
    }
    started: list[Launcher] = []
    for host, own in enumerate((str(port), "0")):
        env = variables(changes, slices=2, hosts=2, slice_index=1, host=host, TPU_LAUNCH_PORT=own)
        started.append(launch(env, "true"))
    for launcher in started:
        assert launcher.code() == 0, launcher.stderr
        assert "waiting for 2 hosts" in launcher.stderr


def test_a_job_of_one_host_starts_again_under_the_next_number(launch: Launch, tmp_path: Path) -> None:
    env = variables(TPU_LAUNCH_STATE_DIR=str(tmp_path), TPU_OPERATOR_ATTEMPT="4")
    for attempt in (4, 5):
        launcher = launch(env, "sh", "-c", "echo up-$TPU_OPERATOR_ATTEMPT; exit 7")
        assert launcher.code() == 7
        assert f"up-{attempt}\n".encode() in launcher.stdout
        assert launcher.message is not None
        assert launcher.message["attempt"] == attempt


# What a pod remembers.


def test_a_history_that_cannot_be_read_begins_anew(tmp_path: Path) -> None:
    for text in ("", "{", '{"attempt": "x"}', "[]", '{"attempt": 3}'):
        (tmp_path / "attempts.json").write_text(text)
        history = open_history({"TPU_LAUNCH_STATE_DIR": str(tmp_path), "TPU_OPERATOR_ATTEMPT": "2"})
        assert history.attempt in {2, 4}
        assert history.earlier == []


def test_a_message_has_room_for_the_worst_history(tmp_path: Path) -> None:
    worst = Report("OutOfMemory", 137, 1.5, "\x00é" * 400, signal=9)
    for _ in range(9):
        history = open_history({"TPU_LAUNCH_STATE_DIR": str(tmp_path)})
        history.end(brief(worst))
    text = render(worst, {}, history)
    assert len(text) <= 4096
    message: dict[str, Any] = json.loads(text)
    assert [e["attempt"] for e in message["earlier"]] == [5, 6, 7, 8]
    assert message["attempt"] == 8

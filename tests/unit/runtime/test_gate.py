"""The gate: all hosts of the same attempt, or nobody."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.runtime.harness import PYTHON, Launcher, get, until, variables
from tpu_runtime import http
from tpu_runtime.environment import read_environment
from tpu_runtime.errors import LaunchError
from tpu_runtime.gate import (
    ARRIVED,
    CONFLICT,
    JOIN,
    OPEN,
    RESOLVED,
    RETRY,
    STALE,
    WAITING,
    Answer,
    Gate,
    Member,
    answer_request,
)
from tpu_runtime.limits import allow_files
from tpu_runtime.names import longest_pause
from tpu_runtime.visitor import Door, LocalDoor, RemoteDoor, Visitor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.unit.runtime.conftest import Launch

JOB = "TPUJob/default/job"
MEMBER = Member(job=JOB, attempt=1, slice_index=0, host=0, worker_id=0, hostnames=7, boot="a")


def gang(launch: Launch, port: int, hosts: range, **changes: str | None) -> list[Launcher]:
    """Launchers of some of four hosts; each prints the moment at which its process started."""
    changes["TPU_OPERATOR_COORDINATOR"] = f"localhost:{port}"
    return [
        launch(
            variables(changes, hosts=4, host=host, TPU_LAUNCH_PORT=str(port) if host == 0 else "0"),
            "sh",
            "-c",
            "date +started-at-%s.%N",
        )
        for host in hosts
    ]


def started_at(launcher: Launcher) -> float:
    return float(launcher.stdout.split(b"-at-")[1])


def refused(launcher: Launcher) -> str:
    assert launcher.stdout == b"", "a process was started"
    assert launcher.message is not None
    return str(launcher.message["error"])


def test_no_process_starts_before_the_last_host_is_there(launch: Launch, port: int) -> None:
    early = gang(launch, port, range(3))
    for launcher in early:
        launcher.wait_for("waiting for 4 hosts")
    until(lambda: get(port, "/healthz")[0] == 200, "the coordinator's port")
    assert get(port, "/readyz") == (503, "waiting at the gate for the other hosts\n")
    last_began = time.time()
    late = gang(launch, port, range(3, 4))
    for launcher in early + late:
        assert launcher.code() == 0, launcher.stderr
        assert started_at(launcher) > last_began
        assert "all hosts are there after" in launcher.stderr


def test_the_coordinator_may_come_last(launch: Launch, port: int) -> None:
    others = gang(launch, port, range(1, 4))
    for launcher in others:
        launcher.wait_for("waiting for 4 hosts")
    for launcher in [*others, *gang(launch, port, range(1))]:
        assert launcher.code() == 0, launcher.stderr


def test_a_coordinator_that_starts_again_collects_the_hosts_again(launch: Launch, port: int) -> None:
    first, *others = gang(launch, port, range(3))
    until(lambda: get(port, "/healthz")[0] == 200, "the coordinator's port")
    first.kill()
    again = gang(launch, port, range(1))
    last = gang(launch, port, range(3, 4))
    for launcher in others + again + last:
        assert launcher.code() == 0, launcher.stderr


def test_a_host_of_an_older_attempt_is_sent_away(launch: Launch, port: int) -> None:
    new = gang(launch, port, range(3), TPU_OPERATOR_ATTEMPT="2")
    [old] = gang(launch, port, range(3, 4), TPU_OPERATOR_ATTEMPT="1")
    assert old.code() == 75
    assert "attempt 1 is over, this is attempt 2" in refused(old)
    last = gang(launch, port, range(3, 4), TPU_OPERATOR_ATTEMPT="2")
    for launcher in new + last:
        assert launcher.code() == 0, launcher.stderr


def test_a_coordinator_of_an_older_attempt_learns_it_from_its_visitors(launch: Launch, port: int) -> None:
    [old] = gang(launch, port, range(1), TPU_OPERATOR_ATTEMPT="1")
    new = gang(launch, port, range(1, 4), TPU_OPERATOR_ATTEMPT="2")
    assert old.code() == 75
    assert "newer attempt" in refused(old)
    for launcher in new + gang(launch, port, range(1), TPU_OPERATOR_ATTEMPT="2"):
        assert launcher.code() == 0, launcher.stderr


def test_a_host_of_a_deleted_job_of_the_same_name_does_not_meet_the_new_one(
    launch: Launch, port: int
) -> None:
    old = gang(launch, port, range(1, 4), TPU_OPERATOR_UID="old", TPU_LAUNCH_GATE_TIMEOUT_SECONDS="2")
    new = gang(launch, port, range(1), TPU_OPERATOR_UID="new")
    for launcher in old:
        assert launcher.code() == 69
        assert "this is the gate of TPUJob/default/job/new, not of TPUJob/default/job/old" in refused(
            launcher
        )
    for launcher in new + gang(launch, port, range(1, 4), TPU_OPERATOR_UID="new"):
        assert launcher.code() == 0, launcher.stderr


def test_the_time_out_names_who_is_missing(launch: Launch, port: int) -> None:
    [coordinator] = gang(launch, port, range(1), TPU_LAUNCH_GATE_TIMEOUT_SECONDS="0.2")
    assert coordinator.code() == 69
    error = refused(coordinator)
    assert error == (
        "gate timed out after 0.2 s: 3 of 4 hosts have not come: "
        "slice 0 host 1 (localhost), slice 0 host 2 (localhost), slice 0 host 3 (localhost)"
    )
    assert coordinator.message is not None
    assert coordinator.message["cause"] == "StartupTimeout"


def test_the_time_out_names_a_coordinator_that_never_answers(launch: Launch, port: int) -> None:
    [launcher] = gang(launch, port, range(1, 2), TPU_LAUNCH_GATE_TIMEOUT_SECONDS="1")
    assert launcher.code() == 69
    assert f"slice 0 host 0 (localhost:{port}) does not answer" in refused(launcher)


def test_the_option_wins_over_the_variable(launch: Launch, port: int) -> None:
    env = variables(hosts=4, host=1, TPU_OPERATOR_COORDINATOR=f"localhost:{port}")
    launcher = launch(env, "true", prefix=["python3", "-S", "-m", "tpu_runtime", "--gate-timeout=0.5"])
    assert launcher.code() == 69
    assert "timed out after 0.5 s" in launcher.stderr


@pytest.mark.parametrize("hosts", [1, 4])
def test_a_signal_that_comes_before_the_launcher_is_there(launch: Launch, hosts: int) -> None:
    program = (
        "import os, signal, sys\n"
        "from tpu_runtime import early\n"
        "early.listen()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "from tpu_runtime.launch import main\n"
        "sys.exit(main())\n"
    )
    launcher = launch(variables(hosts=hosts), "echo", "up", prefix=[*PYTHON, "-c", program])
    assert launcher.code() == 128 + signal.SIGTERM
    assert launcher.stdout == b""
    assert launcher.message is not None
    assert launcher.message["terminated"]


@pytest.mark.parametrize(("host", "signum"), [(0, signal.SIGTERM), (1, signal.SIGTERM), (1, signal.SIGINT)])
def test_a_signal_at_the_gate_ends_it_at_once(
    launch: Launch, port: int, host: int, signum: signal.Signals
) -> None:
    [launcher] = gang(launch, port, range(host, host + 1))
    launcher.wait_for("waiting for 4 hosts")
    launcher.signal(signal.SIGUSR1)
    launcher.signal(signum)
    assert launcher.code() == 128 + signum
    message = launcher.message
    assert message is not None
    assert (message["cause"], message["terminated"]) == (None, True)
    assert launcher.stdout == b""


def test_a_job_of_one_host_needs_nobody(launch: Launch) -> None:
    env = variables(TPU_WORKER_HOSTNAMES="does-not-exist.invalid", TPU_OPERATOR_COORDINATOR=None)
    launcher = launch(env, "true")
    assert launcher.code() == 0
    assert "waiting for" not in launcher.stderr


# The gate itself.


async def test_the_gate_opens_for_all_at_once_and_stays_open() -> None:
    gate = Gate(JOB, 1, range(1), 3)
    members = [replace(MEMBER, host=host, worker_id=host, boot=str(host)) for host in range(3)]
    waiting = [asyncio.ensure_future(gate.join(member, ARRIVED, 60)) for member in members[:2]]
    answer = await gate.join(members[1], ARRIVED, 0.01)
    assert answer == Answer(WAITING, missing=((0, 2),), missing_count=1)
    assert (await gate.join(members[2], ARRIVED, 60)).state == OPEN
    assert [(await task).state for task in waiting] == [OPEN, OPEN]
    assert (await gate.join(replace(members[0], boot="again"), ARRIVED, 0)).state == OPEN


async def test_a_host_that_goes_away_is_missing_again_and_one_that_comes_back_is_not() -> None:
    gate = Gate(JOB, 1, range(1), 2)
    other = replace(MEMBER, host=1, worker_id=1)
    first = asyncio.ensure_future(gate.join(other, ARRIVED, 60))
    await asyncio.sleep(0)
    again = asyncio.ensure_future(gate.join(replace(other, boot="b"), ARRIVED, 60))
    await asyncio.sleep(0)
    first.cancel()  # the connection of the launcher that has been replaced
    await asyncio.wait({first})
    assert (await gate.join(MEMBER, ARRIVED, 60)).state == OPEN
    assert (await again).state == OPEN

    gate = Gate(JOB, 1, range(1), 2)
    only = asyncio.ensure_future(gate.join(other, ARRIVED, 60))
    await asyncio.sleep(0)
    only.cancel()
    await asyncio.wait({only})
    assert (await gate.join(MEMBER, ARRIVED, 0.01)).missing == ((0, 1),)


async def test_a_coordinator_that_starts_again_between_the_stages_does_not_wait_for_the_first() -> None:
    gate = Gate(JOB, 1, range(1), 2)
    await gate.join(replace(MEMBER, host=1, worker_id=1), RESOLVED, 0.01)
    assert (await gate.join(MEMBER, ARRIVED, 60)).state == OPEN


async def test_a_new_launcher_of_a_host_must_resolve_again() -> None:
    gate = Gate(JOB, 1, range(1), 2)
    other = replace(MEMBER, host=1, worker_id=1)
    await gate.join(other, RESOLVED, 0.01)
    await gate.join(replace(other, boot="b"), ARRIVED, 0.01)
    assert (await gate.join(MEMBER, ARRIVED, 60)).state == OPEN
    assert (await gate.join(MEMBER, RESOLVED, 0.01)).missing == ((0, 1),)


@pytest.mark.parametrize(
    ("change", "state", "detail"),
    [
        ({"job": "TPUJob/default/other"}, RETRY, "not of TPUJob/default/other"),
        ({"attempt": 0}, STALE, "attempt 0 is over"),
        ({"attempt": 2}, RETRY, "still at attempt 1"),
        ({"host": 9}, CONFLICT, "no slice 0 host 9 meets here"),
        ({"host": 1}, CONFLICT, "TPU_WORKER_ID=0 is also that of slice 0 host 0"),
        ({"host": 1, "worker_id": 1, "hostnames": 8}, CONFLICT, "TPU_WORKER_HOSTNAMES differs"),
        (
            {"host": 1, "worker_id": 1, "shape": "2 x v5e"},
            CONFLICT,
            "host 1 has 2 x v5e, slice 0 host 0 has none",
        ),
        (
            {"host": 1, "worker_id": 1, "build": "b"},
            CONFLICT,
            "launcher: slice 0 host 1 has b, slice 0 host 0",
        ),
    ],
)
async def test_who_is_not_let_in(change: dict[str, Any], state: str, detail: str) -> None:
    gate = Gate(JOB, 1, range(2), 2)
    await gate.join(MEMBER, ARRIVED, 0.01)
    answer = await gate.join(replace(MEMBER, **change), ARRIVED, 0.01)
    assert answer.state == state
    assert detail in answer.detail
    assert gate.superseded.is_set() is (change.get("attempt") == 2)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b"{}",
        b"[" * 5000,
        b'{"stage": "arrived", "hold": 1, "member": {"job": "j"}}',
        json.dumps({"stage": "arrived", "hold": "NaN", "member": asdict(MEMBER)}).encode(),
        json.dumps({"stage": "arrived", "hold": 1, "member": asdict(MEMBER) | {"attempt": True}}).encode(),
        json.dumps({"stage": "arrived", "hold": 1, "member": asdict(MEMBER) | {"boot": None}}).encode(),
        json.dumps({"stage": "arrived", "hold": 999, "member": asdict(MEMBER)}).encode(),
        json.dumps({"stage": "arrived", "hold": 10**400, "member": asdict(MEMBER)}).encode(),
        json.dumps({"stage": [], "hold": 1, "member": asdict(MEMBER)}).encode(),
    ],
)
async def test_nonsense_from_a_visitor_is_answered_and_forgotten(body: bytes) -> None:
    gate = Gate(JOB, 1, range(1), 2)
    assert (await answer_request(gate, JOIN, body)).status == 400
    assert (await gate.join(MEMBER, ARRIVED, 0.01)).missing == ((0, 1),)


@pytest.mark.parametrize(
    "nonsense", [b"", b"\x00" * 9, b"HTTP/1.1 200 OK\r\n\r\n[]", b"HTTP/1.1 200 OK\r\n\r\n{", b"x" * 99999]
)
async def test_nonsense_from_the_coordinator_is_survived_until_the_time_out(nonsense: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(nonsense)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    coordinator = f"localhost:{port}"
    env = read_environment(
        variables(hosts=2, host=1, TPU_OPERATOR_COORDINATOR=coordinator), gate_timeout="0.5"
    )
    try:
        with pytest.raises(LaunchError, match="does not answer") as caught:
            await Visitor(env, RemoteDoor(("127.0.0.1", port), MEMBER), lambda _: None).enter()
        assert caught.value.exit_code == 69
    finally:
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def served(gate: Gate) -> AsyncIterator[tuple[tuple[str, int], Counter[str]]]:
    """A gate on a port of its own: its address, and how often it was asked."""
    requests: Counter[str] = Counter()

    async def handle(request: http.Request) -> http.Response:
        requests[request.path] += 1
        return await answer_request(gate, request.path, request.body)

    server = http.Server(handle)
    await server.start(0)
    try:
        yield ("127.0.0.1", server.port), requests
    finally:
        await server.close()


def visitor(door: Door, timeout: str, **options: Any) -> Visitor:
    env = read_environment(variables(**options), gate_timeout=timeout)
    return Visitor(env, door, lambda _: None)


async def test_a_visitor_that_gives_up_knows_who_is_missing_in_other_slices_too() -> None:
    gate = Gate(JOB, 1, range(2), 2)
    async with served(gate) as (address, _):
        door = RemoteDoor(address, replace(MEMBER, host=1, worker_id=1))
        with pytest.raises(LaunchError) as caught:
            await visitor(door, "0.5", slices=2, hosts=2, host=1).enter()
    assert caught.value.exit_code == 69
    assert (
        "3 of 4 hosts have not come: slice 0 host 0 (localhost), slice 1 host 0 (job-1-0), slice 1 host 1"
        in str(caught.value)
    )


class Closed(LocalDoor):
    """A gate that nobody keeps until it was asked for many times."""

    asked = 0

    async def join(self, stage: str, hold: float) -> Answer:
        self.asked += 1
        if self.asked < 20:
            raise OSError("nobody is there")
        return await super().join(stage, hold)


async def test_few_hosts_ask_soon_again_for_one_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    gate = Gate(JOB, 1, range(1), 4)
    others = [replace(MEMBER, host=host, worker_id=host, boot=str(host)) for host in range(3)]
    joining = [asyncio.ensure_future(gate.join(other, ARRIVED, 60)) for other in others]
    joining += [asyncio.ensure_future(gate.join(other, RESOLVED, 60)) for other in others]
    door = Closed(gate, replace(MEMBER, host=3, worker_id=3, boot="3"))
    monkeypatch.setattr("tpu_runtime.visitor.asyncio.sleep", sleep)
    assert await visitor(door, "60", hosts=4, host=3).enter() == 1
    await asyncio.gather(*joining)
    assert len(pauses) == 19
    assert max(pauses) <= 0.25


def test_however_many_hosts_ask_they_do_so_200_times_a_second_and_less_often_in_time() -> None:
    assert [longest_pause(hosts, 0) for hosts in (1, 4, 50, 200, 1000)] == [0.25, 0.25, 0.25, 1, 5]
    assert [longest_pause(4, waited) for waited in (1, 5, 20, 100)] == [0.25, 0.25, 1, 5]


async def test_who_waits_when_the_coordinator_gives_up_is_told_whom_it_was_waiting_for() -> None:
    gate = Gate(JOB, 1, range(1), 2)
    waiting = asyncio.ensure_future(gate.join(MEMBER, ARRIVED, 60))
    await asyncio.sleep(0)
    gate.close()
    assert (await waiting).missing == ((0, 1),)


async def test_names_that_do_not_resolve_keep_the_gate_closed_everywhere() -> None:
    gate = Gate(JOB, 1, range(1), 2)
    good = visitor(LocalDoor(gate, MEMBER), "0.5", hosts=2)
    door = LocalDoor(gate, replace(MEMBER, host=1, worker_id=1))
    names = "localhost,host-1.invalid"
    bad = visitor(door, "0.5", hosts=2, host=1, TPU_WORKER_HOSTNAMES=names)
    errors = await asyncio.gather(good.enter(), bad.enter(), return_exceptions=True)
    assert "1 of 2 hosts cannot resolve all names of their slice: slice 0 host 1" in str(errors[0])
    assert "names in TPU_WORKER_HOSTNAMES that do not resolve: host-1.invalid (" in str(errors[1])


async def test_a_host_whose_identity_is_taken_ends_with_64() -> None:
    gate = Gate(JOB, 1, range(1), 2)
    await gate.join(MEMBER, ARRIVED, 0)
    with pytest.raises(LaunchError, match="the hosts of this job disagree: TPU_WORKER_ID=0") as caught:
        await visitor(LocalDoor(gate, replace(MEMBER, host=1)), "60", hosts=2, host=1).enter()
    assert caught.value.exit_code == 64


async def test_a_thousand_hosts_of_many_slices_pass_within_seconds_for_two_requests_each(
    record_property: Callable[[str, object], None],
) -> None:
    slices, hosts = 16, 64
    gate = Gate(JOB, 1, range(slices), hosts)

    async def visit(address: tuple[str, int], index: int, host: int) -> None:
        member = replace(MEMBER, slice_index=index, host=host, worker_id=host, boot=f"{index}-{host}")
        for stage in (ARRIVED, RESOLVED):
            assert (await RemoteDoor(address, member).join(stage, 20)).state == OPEN

    allow_files(4 * slices * hosts)
    began = time.monotonic()
    async with served(gate) as (address, requests):
        places = ((index, host) for index in range(slices) for host in range(hosts))
        await asyncio.gather(*(visit(address, *place) for place in places))
        await gate.all_answered(60)
    record_property("seconds", round(time.monotonic() - began, 2))
    assert requests == {JOIN: 2 * slices * hosts}


def test_a_host_that_is_made_for_another_slice_is_named(launch: Launch, port: int) -> None:
    early = gang(launch, port, range(3))
    until(lambda: get(port, "/healthz")[0] == 200, "the coordinator's port")
    [wrong] = gang(launch, port, range(3, 4), TPU_OPERATOR_TOPOLOGY="4x4")
    assert wrong.code() == 64
    assert (
        "the hosts of this job disagree: slices: slice 0 host 3 has 1 x tpu-v5-lite-podslice 4x4, "
        "4 hosts with 4 chips, slice 0 host 0 has 1 x tpu-v5-lite-podslice 8x2" in refused(wrong)
    )
    for launcher in early + gang(launch, port, range(3, 4)):
        assert launcher.code() == 0, launcher.stderr


async def test_the_gate_is_not_shut_while_somebody_has_not_heard_that_it_is_open() -> None:
    gate = Gate(JOB, 1, range(1), 2)
    other = replace(MEMBER, host=1, worker_id=1)
    await gate.join(other, RESOLVED, 0.01)
    assert (await gate.join(MEMBER, RESOLVED, 60)).state == OPEN
    leaving = asyncio.ensure_future(gate.all_answered(60))
    await asyncio.sleep(0.05)
    assert not leaving.done()
    assert (await gate.join(other, RESOLVED, 60)).state == OPEN
    await leaving

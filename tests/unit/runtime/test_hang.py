"""Programs that make no progress, and what programs may call."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.runtime.harness import get, until, variables
from tpu_runtime.environment import read_environment
from tpu_runtime.hang import Heart, Progress

if TYPE_CHECKING:
    from tests.unit.runtime.conftest import Launch

STUCK = """
import threading, time
from tpu_runtime import heartbeat

def wait_for_a_peer():
    time.sleep(600)

for step in range(3):
    heartbeat()
threading.Thread(target=wait_for_a_peer, daemon=True).start()
print("stuck", flush=True)
time.sleep(600)
"""
SAVES = """
import sys, time
from tpu_runtime import on_preemption

on_preemption(lambda: print("saved", flush=True))
print("training", flush=True)
while True:
    time.sleep(0.02)
"""


class TestProgress:
    def test_work_on_the_cpu_is_progress_from_half_a_core_on(self) -> None:
        progress = Progress(100.0, 100.0, {7: 50.0})
        progress.look(110.0, None, {7: 54.9})
        assert progress.since == 100.0
        progress.look(120.0, None, {7: 55.0, 8: 5.0})
        assert progress.since == 120.0
        progress.look(130.0, None, {8: 5.0})
        assert progress.since == 120.0

    def test_heartbeats_are_progress(self) -> None:
        progress = Progress(100.0, 100.0, {})
        progress.look(110.0, 108.0, {})
        assert progress.since == 108.0
        progress.look(120.0, 108.0, {})
        assert progress.since == 108.0


def test_without_the_launcher_a_heartbeat_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from tpu_runtime import heartbeat  # noqa: PLC0415 - as programs do

    monkeypatch.delenv("TPU_LAUNCH_HEARTBEATS", raising=False)
    heartbeat()


def test_the_launcher_says_what_its_package_does_not_have() -> None:
    import tpu_runtime  # noqa: PLC0415

    with pytest.raises(AttributeError, match="no attribute 'heartbeats'"):
        tpu_runtime.__getattr__("heartbeats")


def test_what_programs_get(tmp_path: Path) -> None:
    found = Heart(tmp_path).variables({"PYTHONPATH": "/app", "PYTHONFAULTHANDLER": ""})
    first, rest = found["PYTHONPATH"].split(os.pathsep)
    assert (Path(first) / "tpu_runtime" / "program.py").exists()
    assert (rest, found["PYTHONFAULTHANDLER"]) == ("/app", "")
    assert "TPU_LAUNCH_HEARTBEATS" not in Heart(None).variables({})


@pytest.mark.parametrize(("value", "expected"), [("", None), ("0", 0.0), ("90", 90.0)])
def test_how_long_is_too_long(value: str, expected: float | None) -> None:
    assert read_environment(variables(TPU_LAUNCH_HANG_SECONDS=value)).settings.hang_seconds == expected


def test_a_program_that_hangs_says_where_before_it_ends(launch: Launch) -> None:
    launcher = launch(variables(TPU_LAUNCH_HANG_SECONDS="1"), sys.executable, "-c", STUCK)
    assert launcher.code() == 77
    for text in ("no heartbeat and no work on the CPU for", "in wait_for_a_peer", 'File "<string>", line'):
        assert text in launcher.stderr
    message = launcher.message
    assert message is not None
    assert (message["cause"], message["exitCode"]) == ("Hang", 77)
    assert "in wait_for_a_peer" in message["log"]


def test_all_processes_of_all_hosts_say_where_they_stand_before_any_host_ends(
    launch: Launch, port: int
) -> None:
    env = {"TPU_LAUNCH_HANG_SECONDS": "2", "TPU_OPERATOR_COORDINATOR": f"localhost:{port}"}
    hosts = [
        launch(
            variables(env, hosts=2, host=host, processes=2, TPU_LAUNCH_PORT=str(port) if host == 0 else "0"),
            sys.executable,
            "-c",
            STUCK,
        )
        for host in (0, 1)
    ]
    assert [launcher.code() for launcher in hosts] == [77, 77]
    for launcher in hosts:
        said = [line for line in launcher.stderr.splitlines() if "in wait_for_a_peer" in line]
        assert sorted(line.split()[0] for line in said) == ["[0]", "[1]"], launcher.stderr


def test_stacks_can_be_asked_for_while_it_runs(launch: Launch, port: int) -> None:
    launcher = launch(variables(TPU_LAUNCH_PORT=str(port)), sys.executable, "-c", STUCK)
    launcher.wait_for("stuck")
    status, text = get(port, "/stacks")
    assert status == 200
    assert "in wait_for_a_peer" in text
    assert launcher.process.poll() is None
    assert "tpu_launch_heartbeat_age_seconds" in get(port, "/metrics")[1]


def test_a_program_saves_its_state_when_it_is_told_of_maintenance_and_when_it_has_to_go(
    launch: Launch, tmp_path: Path
) -> None:
    notice = tmp_path / "notice"
    notice.touch()
    launcher = launch(variables(TPU_LAUNCH_NOTICE_FILE=str(notice)), sys.executable, "-c", SAVES)
    launcher.wait_for("training")
    notice.write_text('{"start": null}')
    launcher.wait_for("saved")
    launcher.signal(signal.SIGTERM)
    assert launcher.code() == 143
    until(lambda: launcher.stdout == b"training\nsaved\nsaved\n", "two saves")
    assert launcher.message is not None
    assert launcher.message["terminated"] is True

"""What processes are told of maintenance that is announced while they run."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from tests.unit.runtime.harness import PYTHON, variables

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.runtime.conftest import Launch

COUNTS = """
import os, signal, sys
count = 0
def told(number, frame):
    global count
    count += 1
    print("told", count, signal.Signals(number).name, flush=True)
name = sys.argv[1]
signal.signal(getattr(signal, name), told)
print("running", flush=True)
while True:
    signal.pause()
"""


def notice(checkpoint: datetime | None = None) -> str:
    now = datetime.now(UTC)
    stamp = f"{checkpoint or now:%Y-%m-%dT%H:%M:%SZ}"
    return json.dumps({"start": f"{now + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}", "checkpoint": stamp})


def environment(file: Path, **more: str) -> dict[str, str]:
    return variables({"TPU_LAUNCH_NOTICE_FILE": str(file), **more})


def test_processes_are_told_with_a_signal_when_a_notice_comes(launch: Launch, tmp_path: Path) -> None:
    file = tmp_path / "maintenance"
    file.write_text("")
    launcher = launch(environment(file), *PYTHON, "-c", COUNTS, "SIGURG")
    launcher.wait_for("running")
    file.write_text(notice())
    launcher.wait_for("told 1 SIGURG")
    assert "maintenance of the nodes is announced" in launcher.stderr
    assert "SIGURG to 1 processes" in launcher.stderr
    file.write_text(notice(datetime.now(UTC) + timedelta(hours=1)))
    launcher.wait_for("told 2 SIGURG")


def test_and_again_when_it_is_time_to_save(launch: Launch, tmp_path: Path) -> None:
    file = tmp_path / "maintenance"
    launcher = launch(environment(file), *PYTHON, "-c", COUNTS, "SIGURG")
    launcher.wait_for("running")
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=3)
    file.write_text(notice(due))
    launcher.wait_for("told 1")
    launcher.wait_for("told 2")
    assert time.time() >= due.timestamp()


def test_a_program_that_does_not_know_the_signal_goes_on(launch: Launch, tmp_path: Path) -> None:
    file = tmp_path / "maintenance"
    script = f"echo running; while ! [ -e {tmp_path}/end ]; do sleep 0.05; done; exit 7"
    launcher = launch(environment(file), "sh", "-c", script)
    launcher.wait_for("running")
    file.write_text(notice())
    launcher.wait_for("SIGURG to")
    (tmp_path / "end").touch()
    assert launcher.code() == 7


@pytest.mark.parametrize("name", ["USR1", "SIGUSR1"])
def test_another_signal_may_be_chosen(launch: Launch, tmp_path: Path, name: str) -> None:
    file = tmp_path / "maintenance"
    launcher = launch(environment(file, TPU_LAUNCH_NOTICE_SIGNAL=name), *PYTHON, "-c", COUNTS, "SIGUSR1")
    launcher.wait_for("running")
    file.write_text(notice())
    launcher.wait_for("told 1 SIGUSR1")


def test_or_none(launch: Launch, tmp_path: Path) -> None:
    file = tmp_path / "maintenance"
    launcher = launch(environment(file, TPU_LAUNCH_NOTICE_SIGNAL="none"), *PYTHON, "-c", COUNTS, "SIGURG")
    launcher.wait_for("running")
    file.write_text("whatever")
    launcher.wait_for("is announced: whatever; no signal to 0 processes")
    assert b"told" not in launcher.stdout


def test_children_of_the_processes_are_told_too(launch: Launch, tmp_path: Path) -> None:
    """Also those in sessions of their own, as torchrun's workers are."""
    file, script = tmp_path / "maintenance", tmp_path / "program.py"
    # In a session of its own it outlives the launcher, unless it ends by itself.
    script.write_text(COUNTS.replace("while True:\n    ", ""))
    command = f"setsid {sys.executable} -S {script} SIGURG & wait"
    launcher = launch(environment(file), "sh", "-c", command)
    launcher.wait_for("running")
    file.write_text(notice())
    launcher.wait_for("told 1")


def test_a_notice_that_was_there_before_is_not_signalled(launch: Launch, tmp_path: Path) -> None:
    file = tmp_path / "maintenance"
    file.write_text(notice())
    launcher = launch(environment(file), *PYTHON, "-c", COUNTS, "SIGURG")
    launcher.wait_for("running")
    file.write_text(notice(datetime.now(UTC) + timedelta(hours=1)))
    launcher.wait_for("told 1")
    assert launcher.stderr.count("is announced") == 1

"""The termination message."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.runtime.harness import PYTHON, variables
from tests.unit.runtime.test_frameworks import AGENT, lines
from tpu_runtime.output import Line, Tail
from tpu_runtime.processes import Command, Process
from tpu_runtime.report import MAX_BYTES, Report, exception, failure, leave, render

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.runtime.conftest import Launch

TRACEBACK = "Traceback (most recent call last):\n"
REPORT = Report(cause="UserError", exit_code=1, time=1.5, error="boom", local_rank=0)
PLACE = {"TPU_OPERATOR_SLICE": "1", "TPU_OPERATOR_HOST": "2"}


def message(report: Report) -> dict[str, Any]:
    data = render(report, PLACE)
    assert len(data) <= MAX_BYTES
    result = json.loads(data.decode())
    assert isinstance(result, dict)
    return result


def process(exit_code: int, stderr: str = "", stdout: str = "") -> Process:
    result = Process(Command(["x"], {}), 1, Tail(), Tail(), exit_code, ended=1e10)
    result.stderr.add(stderr.encode())
    result.stdout.add(stdout.encode())
    return result


def test_the_message_in_full() -> None:
    report = replace(REPORT, signal=9, log=lines("one\ntwo"))
    assert message(report) == {
        "v": 1, "cause": "UserError", "exitCode": 1, "signal": 9, "slice": 1, "host": 2, "localRank": 0,
        "time": 1.5, "error": "boom", "log": "one\ntwo",
    }  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(
    error=st.text(max_size=3000),
    log=st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=3000), max_size=20),
)
def test_it_always_fits_and_ends_with_the_newest_line(error: str, log: list[str]) -> None:
    error = error.encode(errors="replace").decode()
    found = message(replace(REPORT, error=error, log=[Line(0.0, text) for text in log]))
    assert "\n".join(log).endswith(found["log"])


@pytest.mark.parametrize("filler", ["x", "é", "\U0001f525", "\x00", "\\", '"'])
def test_it_is_filled_to_the_last_byte_whatever_a_character_costs(filler: str) -> None:
    data = render(replace(REPORT, error=filler * 9999, log=[Line(0.0, filler * 9999)]), PLACE)
    assert MAX_BYTES - 6 <= len(data) <= MAX_BYTES


def test_multiple_megabytes_of_stderr_and_bytes_that_are_no_text(launch: Launch) -> None:
    code = (
        "import sys; err = sys.stderr.buffer\n"
        "for i in range(3000): err.write(b'%06d ' % i + b'\\xff\\xfe\\xf0\\x9f' * 250 + b'\\n')\n"
        "err.write(b'the end'); err.flush(); sys.exit(5)\n"
    )
    launcher = launch(variables(TPU_OPERATOR_EMULATE=""), *PYTHON, "-c", code)
    assert launcher.code() == 5
    found = launcher.message
    assert found is not None
    assert found["error"] == "the end"
    assert found["log"].endswith("\nthe end")
    passed = launcher._path("stderr").read_bytes()
    assert passed.count(b"\xff\xfe\xf0\x9f") == 3000 * 250
    assert len(launcher._path("message").read_bytes()) <= MAX_BYTES


def test_time_is_when_the_exception_came_not_when_the_process_ended(launch: Launch, tmp_path: Path) -> None:
    """A process may hang for minutes in its exit handlers, and its peers' failures would look earlier."""
    flag = tmp_path / "flag"
    code = (
        "import atexit, os, time\n"
        "def linger():\n"
        f"    while not os.path.exists({str(flag)!r}): time.sleep(0.01)\n"
        "atexit.register(linger)\n"
        "raise RuntimeError('first')\n"
    )
    launcher = launch(variables(), *PYTHON, "-c", code)
    launcher.wait_for("RuntimeError: first")
    seen = time.time()
    flag.touch()
    assert launcher.code() == 1
    assert launcher.message is not None
    assert launcher.message["time"] <= seen


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("just words", None),
        (f"{TRACEBACK}  File 'a'\nKeyError: 'x'", "KeyError: 'x'"),
        (f"{TRACEBACK}  File\nA: 1\n\nDuring handling\n\n{TRACEBACK}  F\nB: 2", "B: 2"),
        (f"{TRACEBACK}  File 'a'\nOld: 1\n" + "later\n" * 30, None),
        (f"{TRACEBACK}  File 'a'", None),
        ("[rank0]: Traceback (most recent call last):\n[rank0]:   File\n[rank0]: OSError: x", "OSError: x"),
    ],
)
def test_the_exception_of_a_traceback_at_the_end(text: str, expected: str | None) -> None:
    found = exception(lines(text))
    assert (found.text if found else None) == expected


def test_without_an_exception_the_last_line_is_the_error() -> None:
    found = failure(process(3, "fatal: disk full\n\n"), torchrun=False, oom_killed=None)
    assert (found.error, found.exit_code, found.time) == ("fatal: disk full", 3, 1e10)


def test_a_program_that_only_writes_to_stdout() -> None:
    found = failure(process(3, "  \n", "went wrong\n"), torchrun=False, oom_killed=None)
    assert found.error == "went wrong"


def test_a_silent_program() -> None:
    assert "without a word" in failure(process(3), torchrun=False, oom_killed=None).error


@pytest.mark.parametrize(
    ("exit_code", "oom_killed", "cause"),
    [
        (-signal.SIGKILL, True, "OutOfMemory"),
        (137, True, "OutOfMemory"),  # a shell whose child was killed
        (-signal.SIGKILL, False, "UserError"),
        (-signal.SIGKILL, None, "UserError"),
        (1, True, "UserError"),
    ],
)
def test_out_of_memory_needs_the_kernels_word(exit_code: int, oom_killed: bool | None, cause: str) -> None:
    assert failure(process(exit_code), torchrun=False, oom_killed=oom_killed).cause == cause


def test_torchruns_worker_is_reported_and_not_its_agent() -> None:
    found = failure(process(1, AGENT), torchrun=True, oom_killed=None)
    assert (found.local_rank, found.exit_code, found.error) == (2, 42, "ValueError: loss is nan")
    assert found.log[-1].text == "[rank7]: RuntimeError: Connection closed by peer"
    killed = failure(process(1, AGENT.replace(": 42", ": -9")), torchrun=True, oom_killed=True)
    assert (killed.exit_code, killed.signal, killed.cause) == (137, 9, "OutOfMemory")


def test_what_comes_of_a_lost_peer_says_so_and_came_later_than_that(tmp_path: Path) -> None:
    lost = "RuntimeError: [/torch/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    found = failure(
        process(1, AGENT.replace("ValueError: loss is nan", lost)), torchrun=True, oom_killed=None
    )
    assert (found.local_rank, found.error, found.time) == (2, f"a peer was lost: {lost}", 1e10)


def test_the_error_file_of_a_worker_has_the_last_word(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text('{"message": {"message": "ValueError: too large", "extraInfo": {}}}')
    found = failure(process(1, AGENT.replace("<N/A>", str(path))), torchrun=True, oom_killed=None)
    assert (found.local_rank, found.error) == (2, "ValueError: too large")
    assert found.time == path.stat().st_mtime


def test_outside_of_a_pod_no_message_is_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    leave(REPORT, {"TPU_LAUNCH_TERMINATION_LOG": str(tmp_path / "no" / "folder")})
    assert "could not be written" in capfd.readouterr().err
    leave(REPORT, {})


@pytest.mark.parametrize("index", ["9" * 5000, "-1", "two", ""])
def test_a_place_that_is_no_number_is_left_out(index: str) -> None:
    assert json.loads(render(REPORT, {"TPU_OPERATOR_SLICE": index}))["slice"] is None


def test_an_older_message_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "message"
    path.write_text("x" * 9999)
    leave(REPORT, {"TPU_LAUNCH_TERMINATION_LOG": str(path)})
    assert json.loads(path.read_text())["error"] == "boom"

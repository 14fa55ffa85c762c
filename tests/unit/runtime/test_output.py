"""Streams of processes on their way through the launcher."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.unit.runtime.harness import PYTHON, RUNTIME, variables
from tpu_runtime.output import Output, Tail, write_all

if TYPE_CHECKING:
    from tests.unit.runtime.conftest import Launch

BEHIND = """
import asyncio, os, time
from tpu_runtime import output, processes

add = output.Tail.add
output.Tail.add = lambda tail, chunk: (time.sleep(0.2), add(tail, chunk))

async def main():
    group = processes.Group(1, 1)
    group.start([processes.Command(["sh", "-c", "echo no data >&2; exit 3"], os.environ)])
    await group.decided.wait()
    await group.hear_out()
    print([line.text for line in group.failed.stderr.lines()])
    await group.wait()

asyncio.run(main())
"""


def texts(tail: Tail) -> list[str]:
    return [line.text for line in tail.lines()]


def test_one_processs_output_is_passed_byte_by_byte(launch: Launch) -> None:
    code = "import os\nos.write(1, bytes(range(256)) * 999 + b'no newline')\nos.write(2, b'a\\rb\\r\\n\\0')\n"
    launcher = launch(variables(TPU_OPERATOR_EMULATE=""), *PYTHON, "-c", code)
    assert launcher.code() == 0
    assert launcher.stdout == bytes(range(256)) * 999 + b"no newline"
    assert launcher._path("stderr").read_bytes() == b"a\rb\r\n\0"


def test_output_comes_at_once(launch: Launch) -> None:
    launcher = launch(
        variables(), "sh", "-c", "printf partial; trap 'exit 0' TERM; while :; do sleep 0.05; done"
    )
    launcher.wait_for("partial")
    launcher.signal(signal.SIGTERM)
    assert launcher.code() == 0


def test_last_words_that_come_after_the_end_are_waited_for() -> None:
    """Other hosts are told of a failure as soon as it is there, and the kernel has its output for longer."""
    env = variables() | {"PYTHONPATH": str(RUNTIME)}
    done = subprocess.run([sys.executable, "-c", BEHIND], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "['no data']\n"


def test_several_processes_are_interleaved_by_whole_lines(launch: Launch) -> None:
    code = (
        "import os\n"
        "r = os.environ['TPU_OPERATOR_LOCAL_RANK'].encode()\n"
        "for i in range(300):\n"
        "    for part in (b'from ', r, b' line ', b'%d' % i, b'\\n'): os.write(1, part)\n"
        "os.write(2, r * 200_000)\n"
    )
    launcher = launch(variables(processes=3, TPU_OPERATOR_EMULATE=""), *PYTHON, "-c", code)
    assert launcher.code() == 0
    found = launcher.stdout.decode().splitlines()
    assert sorted(found) == sorted(f"[{r}] from {r} line {i}" for r in range(3) for i in range(300))
    for line in launcher.stderr.splitlines():
        assert re.fullmatch(r"\[(\d)\] \1+", line), line[:100]
    assert sum(line.count("1") - 1 for line in launcher.stderr.splitlines() if line[1] == "1") == 200_000


def test_a_grandchild_that_keeps_the_pipe_open_does_not_keep_the_launcher(launch: Launch) -> None:
    code = (
        "import subprocess\n"
        "subprocess.Popen(['sh', '-c', 'trap \"\" TERM HUP; sleep 600'], start_new_session=True)\n"
        "print('done', flush=True)\n"
    )
    launcher = launch(variables(), *PYTHON, "-c", code)
    assert launcher.code() == 0
    assert launcher.stdout == b"done\n"


def test_finish_carries_over_what_is_there_and_no_more() -> None:
    source, target = os.pipe()
    output, tail = Output(lambda: None), Tail()
    sink = output.carry(target, b"", tail)
    os.write(sink, b"last words")
    output.finish(60)  # the sink is still open
    assert os.read(source, 100) == b"last words"
    for fd in (source, target, sink):
        os.close(fd)


def test_when_nobody_reads_the_output_is_dropped() -> None:
    source, target = os.pipe()
    os.close(source)
    write_all(target, b"x" * 10)
    os.close(target)


def test_a_tail_keeps_the_end() -> None:
    tail = Tail()
    for i in range(10_000):
        tail.add(b"line %d\n" % i)
    kept = texts(tail)
    assert kept[-1] == "line 9999"
    assert 5_000 < len(kept) < 10_000
    tail.add(b"x" * 500_000)
    assert texts(tail)[-1].endswith("xxx")


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_tail_is_the_same_in_whatever_pieces_it_comes(size: int) -> None:
    data = "ein\nzwölf\r\n\n 50%\r100%\nno end".encode() + b"\xff"
    tail = Tail()
    for start in range(0, len(data), size):
        tail.add(data[start : start + size])
    assert texts(tail) == ["ein", "zwölf", "", "100%", "no end\ufffd"]


def test_a_line_has_the_time_at_which_it_was_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    tail = Tail()
    for now, chunk in ((1.0, b"a"), (2.0, b"b\nc"), (3.0, b"\n")):
        monkeypatch.setattr("tpu_runtime.output.time.time", lambda now=now: now)
        tail.add(chunk)
    assert [(line.time, line.text) for line in tail.lines()] == [(2.0, "ab"), (3.0, "c")]
    assert Tail().lines() == []

"""What of the emulation needs no torch: how torch finds it, when it refuses, programs in forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

from tests.unit.runtime.harness import RUNTIME
from tpu_runtime import bundle, emulate
from tpu_runtime.doctor.host import Host
from tpu_runtime.emulate import hook
from tpu_runtime.emulate.hook import EmulationError
from tpu_runtime.emulate.program import Program, parse

if TYPE_CHECKING:
    from pathlib import Path


def python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(RUNTIME)} | variables
    return subprocess.run(
        [sys.executable, "-S", *arguments], env=env, capture_output=True, text=True, check=False, timeout=60
    )


def test_torch_and_jax_find_the_entry_points_in_the_sources_and_in_the_archive(tmp_path: Path) -> None:
    archive = tmp_path / "tpu-launch.pyz"
    bundle.main([str(archive)])
    for place in (RUNTIME, archive):
        found = metadata.Distribution.discover(path=[str(place)])
        assert sorted((point.group, point.value) for each in found for point in each.entry_points) == [
            ("jax_plugins", "tpu_runtime.tracing"),
            ("torch.backends", "tpu_runtime.emulate.hook:autoload"),
            ("torch.backends", "tpu_runtime.tracing:autoload"),
        ]
    load = "from importlib.metadata import entry_points as e; [p.load()() for p in e(group='torch.backends')]"
    done = python("-c", load, PYTHONPATH=str(archive))
    assert (done.returncode, done.stderr) == (0, "")
    where = "from tpu_runtime import emulate; print(emulate.variables({})['PYTHONPATH'])"
    assert python("-c", where, PYTHONPATH=str(archive)).stdout == f"{archive}\n"


def test_it_is_off_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in (None, "", "tpu"):
        monkeypatch.delenv(emulate.GATE, raising=False)
        if value is not None:
            monkeypatch.setenv(emulate.GATE, value)
        hook.autoload()
    assert capsys.readouterr().err == ""


def test_without_torch_tpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(emulate.GATE, "cpu")
    hook.autoload()
    assert "torch_tpu is not installed" in capsys.readouterr().err


def test_it_refuses_where_there_are_tpus(tmp_path: Path) -> None:
    hook.refuse_tpus(Host({}, tmp_path))
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/accel0").touch()
    with pytest.raises(EmulationError, match=r"TPUs are here \(.*/dev/accel0\): unset TPU_OPERATOR_EMULATE"):
        hook.refuse_tpus(Host({}, tmp_path))


def test_the_users_plugin_is_taken_and_libtpu_is_none() -> None:
    assert hook.plugin({hook.LIBRARY: "/opt/plugin.so"}) == "/opt/plugin.so"
    for chosen in ("", "/opt/venv/lib/python3.11/site-packages/libtpu/libtpu.so"):
        with pytest.raises(EmulationError, match=r"pip install fastatomstruct-xla-cpu==.* or name another"):
            hook.plugin({hook.LIBRARY: chosen})


def test_the_plugin_of_a_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "fastatomstruct_xla_cpu-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fastatomstruct-xla-cpu\nVersion: 1\n")
    (info / "RECORD").write_text("some/README,,\nsome/lib/libpjrt_cpu.so,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert hook.plugin({}) == str(tmp_path / "some/lib/libpjrt_cpu.so")


def test_other_processes_are_out_of_sight_and_then_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "TORCH_TPU_TOPOLOGY", "MEGASCALE_NUM_SLICES"):
        monkeypatch.setenv(name, "1")
    before = dict(os.environ)
    with hook._alone():
        assert before.keys() - os.environ.keys() == {"RANK", "TORCH_TPU_TOPOLOGY", "MEGASCALE_NUM_SLICES"}
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("python train.py --steps 3", Program("train.py", ["--steps", "3"])),
        ("/opt/bin/python3.11 -u train.py -m", Program("train.py", ["-m"], unbuffered=True)),
        ("python -m train -c", Program("train", ["-c"], "-m")),
        ("python -c pass x", Program("pass", ["x"], "-c")),
        ("python", None),
        ("python -m", None),
        ("python -X dev train.py", None),
        ("python -", None),
        ("bash train.sh", None),
        ("", None),
    ],
)
def test_programs_of_commands(command: str, program: Program | None) -> None:
    assert parse(command.split()) == program


SCRIPT = """
import __main__, atexit, os, signal, sys, threading
import sibling
assert __main__.__dict__ is globals() and __name__ == "__main__"
assert os.getsid(0) == os.getpid() and os.getpgid(0) == os.getpid()
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
assert sorted(os.environ) == ["LANG", "PART"], sorted(os.environ)
assert sys.argv[1:] == ["a", "b"], sys.argv
atexit.register(print, "bye")
threading.Thread(target=print, args=("thread",)).start()
print(os.environ["PART"], file=sys.stderr)
"""
PARENT = """
import atexit, os, signal, sys
from tpu_runtime.emulate.forks import Forked
from tpu_runtime.emulate.program import parse
atexit.register(print, "parent", flush=True)
signal.signal(signal.SIGTERM, lambda *_: None)
program = parse(["python", *sys.argv[1:]])
print("once")
process = Forked(program, {"LANG": "C", "PART": "child"}, lambda: print("ready", flush=True))
print("code", process.wait(60), flush=True)
"""


def forked(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-c", PARENT, *arguments)


@pytest.mark.parametrize("form", ["script", "-m", "-c"])
def test_a_forked_program_is_as_one_that_python_runs(form: str, tmp_path: Path) -> None:
    (tmp_path / "sibling.py").touch()
    (tmp_path / "train.py").write_text(SCRIPT)
    command = {"script": [str(tmp_path / "train.py")], "-m": ["-m", "train"], "-c": ["-c", SCRIPT]}[form]
    done = subprocess.run(
        [sys.executable, "-S", "-c", PARENT, *command, "a", "b"],
        env={"PYTHONPATH": f"{RUNTIME}:{tmp_path}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == "child\n"
    assert done.stdout.splitlines() == ["once", "ready", "thread", "bye", "code 0", "parent"]


@pytest.mark.parametrize(
    ("source", "code", "stderr"),
    [
        ("import sys; sys.exit(42)", 42, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit('the loss is not a number')", 1, "the loss is not a number\n"),
        ("import os; os._exit(3)", 3, ""),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM, ""),
    ],
)
def test_a_forked_program_ends_as_it_says(source: str, code: int, stderr: str) -> None:
    done = forked("-c", source)
    assert (done.stdout.splitlines()[-2:], done.stderr) == ([f"code {code}", "parent"], stderr)


def test_an_exception_of_a_forked_program_is_told_as_ever() -> None:
    done = forked("-c", "raise ValueError('boom')")
    assert done.stdout.splitlines()[-2:] == ["code 1", "parent"]
    assert done.stderr.splitlines()[0] == "Traceback (most recent call last):"
    assert done.stderr.splitlines()[-1] == "ValueError: boom"

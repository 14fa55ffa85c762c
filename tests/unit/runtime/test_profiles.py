"""Traces of the processes of a host, with a JAX that stands in for the real one."""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from tests.unit.runtime.harness import RUNTIME, get, post, until, variables
from tpu_runtime.bundle import bundle

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.runtime.conftest import Launch

JAX = """
import pathlib, types
from importlib import import_module
from importlib.metadata import entry_points

class profiler:
    def start_trace(folder):
        profiler.file = pathlib.Path(folder, "plugins/profile/now/host.xplane.pb")
    def stop_trace():
        if BROKEN:
            raise RuntimeError("another profiler is at work")
        profiler.file.parent.mkdir(parents=True)
        profiler.file.write_bytes(b"plane" * 200_000)

for plugin in entry_points(group="jax_plugins"):
    import_module(plugin.value).initialize()
"""
PROGRAM = "import jax, time; print('started', flush=True); time.sleep(600)"


def jax(folder: Path, *, broken: bool = False) -> str:
    (folder / "jax.py").write_text(f"BROKEN = {broken}\n{JAX}")
    return str(folder)


@pytest.mark.parametrize("form", ["sources", "one file"])
def test_all_processes_of_a_host_are_traced_without_a_word_in_their_program(
    launch: Launch, port: int, tmp_path: Path, form: str
) -> None:
    path, prefix = f"{jax(tmp_path)}:{RUNTIME}", []
    if form == "one file":
        (pyz := tmp_path / "tpu-launch.pyz").write_bytes(bundle())
        path, prefix = jax(tmp_path), [sys.executable, "-S", str(pyz)]
    env = variables(TPU_LAUNCH_PORT=str(port), PYTHONPATH=path, processes=2)
    launcher = launch(env, sys.executable, "-c", PROGRAM, prefix=prefix)
    until(lambda: launcher.stdout.count(b"started") == 2, "two processes")
    status, text = post(port, "/profile", {"seconds": 0.2})
    assert status == 200, text
    answer = json.loads(text)
    assert answer["errors"] == []
    first, second = answer["files"]
    assert first["name"] != second["name"]
    for file in (first, second):
        assert file["bytes"] == 1_000_000
        assert get(port, f"/profile/{file['name']}") == (200, "plane" * 200_000)
    assert json.loads(post(port, "/profile", {"seconds": 0.1})[1])["files"] == [first, second]
    # Threads of ours are in there as well; they wait.
    stacks = get(port, "/stacks")[1]
    assert stacks.count("process ") == 2
    assert stacks.count('File "<string>", line 1 in <module>') == 2
    assert launcher.process.poll() is None


def test_what_a_profiler_says_is_told_and_the_program_goes_on(
    launch: Launch, port: int, tmp_path: Path
) -> None:
    env = variables(TPU_LAUNCH_PORT=str(port), PYTHONPATH=f"{jax(tmp_path, broken=True)}:{RUNTIME}")
    launcher = launch(env, sys.executable, "-c", PROGRAM)
    launcher.wait_for("started")
    answer = json.loads(post(port, "/profile", {"seconds": 0.1})[1])
    assert answer["files"] == []
    (error,) = answer["errors"]
    assert error.endswith(": RuntimeError: another profiler is at work")
    assert launcher.process.poll() is None


def test_what_cannot_be_traced_is_said(launch: Launch, port: int) -> None:
    launcher = launch(variables(TPU_LAUNCH_PORT=str(port)), "sh", "-c", "echo started; sleep 600")
    launcher.wait_for("started")
    assert post(port, "/profile", {"seconds": 1}) == (409, "no process has started JAX or TorchTPU yet\n")
    for wrong in (0, -1, 601, "x", None):
        status, text = post(port, "/profile", {"seconds": wrong})
        assert (status, text.partition(":")[0]) == (400, "seconds")
    assert get(port, "/profile") == (405, "/profile wants POST\n")
    assert get(port, "/profile/7-0.xplane.pb")[0] == 404
    assert get(port, "/profile/..%2f..%2fetc%2fpasswd")[0] == 404


def test_one_trace_at_a_time(launch: Launch, port: int, tmp_path: Path) -> None:
    env = variables(TPU_LAUNCH_PORT=str(port), PYTHONPATH=f"{jax(tmp_path)}:{RUNTIME}")
    launcher = launch(env, sys.executable, "-c", PROGRAM)
    launcher.wait_for("started")
    answers: list[int] = []
    both = [
        threading.Thread(target=lambda: answers.append(post(port, "/profile", {"seconds": 3})[0]))
        for _ in range(2)
    ]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert sorted(answers) == [200, 409]

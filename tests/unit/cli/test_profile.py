"""`kubectl tpu profile` and `kubectl tpu stacks` before launchers that stand in for real ones."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.builders import World, job
from tests.unit.cli.agent.apiserver import Served, serving
from tests.unit.cli.scenes import Screen, running
from tpu_operator.cli import __main__ as command_line
from tpu_operator.cli.command import Exit

if TYPE_CHECKING:
    from pathlib import Path


async def typed(served: Served, folder: Path, *words: str) -> tuple[int, str]:
    """The exit code of a command, and what it says."""
    async with serving(served, folder) as kubeconfig:
        screen = Screen()
        line = [*words, "--kubeconfig", str(kubeconfig)]
        return await asyncio.to_thread(command_line.call, line, screen), screen.text


def host(served: Served, name: str, *traces: bytes, error: str = "") -> None:
    """A host with a process for each trace."""
    files = [{"name": f"{70 + n}-0.xplane.pb", "bytes": len(trace)} for n, trace in enumerate(traces)]
    answer = {"files": files, "errors": [error] if error else []}
    served.pages[name, "profile"] = json.dumps(answer).encode()
    for file, trace in zip(files, traces, strict=True):
        served.pages[name, f"profile/{file['name']}"] = trace


async def test_traces_of_all_processes_of_all_hosts_are_one_run_for_xprof(tmp_path: Path) -> None:
    served = Served().job(running())
    for index in range(3):
        host(served, f"train-0-{index}", b"one" * 500_000)
    host(served, "train-0-3", b"first", b"second")
    code, said = await typed(served, tmp_path, "profile", "train", "--time=7s", f"--folder={tmp_path}")
    assert code == Exit.DONE
    (run,) = (tmp_path / "plugins" / "profile").iterdir()
    found = {file.name: file.stat().st_size for file in run.iterdir()}
    assert found == {
        **{f"train-0-{index}.xplane.pb": 1_500_000 for index in range(3)},
        "train-0-3-0.xplane.pb": 5,
        "train-0-3-1.xplane.pb": 6,
    }
    lines = said.splitlines()
    assert lines[0] == "train-0-0  1 of its processes, 1.5 MB"
    assert lines[4] == f"7 s are in {run}; to look at them:"
    assert lines[5].split("#")[0].split() == ["xprof", f"--logdir={tmp_path}", "--port=8791"]
    assert [(method, body) for method, _, body in served.writes] == [("POST", {"seconds": 7})] * 4


async def test_what_hosts_lack_is_said_and_the_others_count(tmp_path: Path) -> None:
    served = Served().job(running())
    host(served, "train-0-0", b"trace", error="process 71: RuntimeError: a profiler is at work")
    host(served, "train-0-1")
    served.pages["train-0-2", "profile"] = b'{"files": [{"name": "../../secrets/x.xplane.pb"}], "errors": []}'
    folder = str(tmp_path / "traces")
    code, said = await typed(served, tmp_path, "profile", "train", f"--folder={folder}", "-o", "json")
    assert code == Exit.BAD
    answer = json.loads(said)
    assert [one["files"] for one in answer["hosts"]] == [["train-0-0.xplane.pb"], [], [], []]
    first, second, third, fourth = (one["errors"] for one in answer["hosts"])
    assert first == ["process 71: RuntimeError: a profiler is at work"]
    assert second == []
    assert third[0].startswith("this is no answer of a launcher")
    assert fourth == ["no answer"]


async def test_no_trace_at_all(tmp_path: Path) -> None:
    code, said = await typed(Served().job(running()), tmp_path, "profile", "train", f"--folder={tmp_path}/x")
    assert code == Exit.BAD
    assert said.splitlines()[-1] == "there is no trace"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("command", ["profile", "stacks", "top"])
async def test_a_job_without_pods(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, _ = await typed(Served().job(World(job())), tmp_path, command, "train")
    assert code == Exit.NOT_FOUND
    assert "TPUJob train has no pods now\n`kubectl tpu why train`" in capsys.readouterr().err


async def test_xprof_is_started_on_what_was_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served().job(running())
    host(served, "train-0-0", b"trace")
    line = ["profile", "train", "--rank=0", "--open", f"--folder={tmp_path}"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (await typed(served, tmp_path, *line))[0] == Exit.USAGE
    (tmp_path / "xprof").touch(mode=0o755)
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execvp", lambda _, words: started.append(words))
    assert (await typed(served, tmp_path, *line))[0] == Exit.DONE
    assert started == [["xprof", f"--logdir={tmp_path}", "--port=8791"]]


async def test_longer_than_launchers_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = await typed(Served().job(running()), tmp_path, "profile", "train", "--time=11m")
    assert code == Exit.USAGE
    assert "--time: 660 s are more than 600 s" in capsys.readouterr().err


async def test_stacks_are_below_the_names_of_their_hosts(tmp_path: Path) -> None:
    served = Served().job(running())
    served.pages = {(f"train-0-{index}", "stacks"): b"process 7:\n  line 3 in step\n" for index in range(2)}
    code, said = await typed(served, tmp_path, "stacks", "train", "--rank=1", "--rank=2")
    assert code == Exit.BAD
    assert said == "train-0-1\n  process 7:\n    line 3 in step\ntrain-0-2\n  no answer: no answer\n"

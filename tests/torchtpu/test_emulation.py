"""TorchTPU on the CPU: real torch_tpu, torchrun and launchers, two hosts with two processes each."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.torchtpu.hosts import (
    PYTHON,
    SCRIPTS,
    SECONDS,
    example,
    losses,
    one_process,
    python,
    resumed_alike,
    same_losses,
)
from tests.unit.runtime.harness import RUNTIME
from tpu_runtime import emulate
from tpu_runtime.processes import descendants

if TYPE_CHECKING:
    from pathlib import Path

    from tests.torchtpu.conftest import Start, Trained

STEPS = 20


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Losses of the example in one process."""
    return one_process("torchtpu-train", tmp_path_factory.mktemp("single"), STEPS)


def test_what_scripts_do_on_one_device_works_as_on_the_cpu() -> None:
    given = {emulate.GATE: "cpu", "TPU_SKIP_MDS_QUERY": "true"}
    output = python(SCRIPTS / "compatibility.py", **given, **emulate.variables(given))
    assert output.splitlines()[-1] == "all is as on the CPU"


def test_it_says_what_its_numbers_are_worth_and_needs_to_be_asked_for() -> None:
    code = "import torch; print(torch.ones(2, device='tpu').sum().item())"
    env = {"PYTHONPATH": str(RUNTIME), "PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    command = [str(PYTHON), "-c", code]
    done = subprocess.run(
        command, env={**env, emulate.GATE: "cpu"}, capture_output=True, text=True, check=True, timeout=SECONDS
    )
    assert done.stdout.splitlines()[-1] == "2.0"
    assert emulate.NOTICE in done.stderr
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 1
    assert emulate.NOTICE not in done.stderr


def test_collectives_are_right(start: Start) -> None:
    job = start(SCRIPTS / "collectives.py")
    assert job.wait() == [0, 0], job.said
    for index, host in enumerate(job.hosts):
        for rank in (2 * index, 2 * index + 1):
            assert f"rank {rank}: all collectives are right" in host.stdout.decode()
        assert emulate.NOTICE in host.stderr


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_training_is_that_of_one_process(parallel: str, trained: Trained, alone: dict[int, str]) -> None:
    found = trained(parallel, STEPS)
    assert found.keys() == set(range(1, STEPS + 1))
    same_losses(found, alone)
    assert float(found[STEPS]) < float(found[1]) - 0.2, found


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_a_killed_rank_is_named_and_the_next_attempt_resumes(
    parallel: str, start: Start, trained: Trained, tmp_path: Path
) -> None:
    env = {"CHECKPOINTS": str(tmp_path), "PARALLEL": parallel}
    job = start("-c", example(), **env, STEPS="100000")
    job.hosts[0].wait_for("step 11 ", SECONDS)
    (agent,) = _children(job.hosts[1].process.pid)
    os.kill(max(_children(agent)), signal.SIGKILL)
    codes = job.wait()
    assert codes[1] == 128 + signal.SIGKILL, job.said
    assert codes[0] != 0, job.said
    echo, root = (host.message for host in job.hosts)
    assert root is not None
    assert echo is not None
    assert (root["signal"], root["localRank"], root["cause"]) == (signal.SIGKILL, 1, "UserError"), root
    assert echo["error"].startswith("a peer was lost: "), echo
    assert echo["time"] > root["time"]

    saved = max(int(path.parent.name) for path in tmp_path.glob("*/.metadata"))
    steps = max(saved + 10, STEPS)
    job = start("-c", example(), **env, STEPS=str(steps), TPU_OPERATOR_ATTEMPT="1")
    assert job.wait() == [0, 0], job.said
    assert f"4 processes on tpu, from step {saved}\n" in job.hosts[0].stdout.decode()
    resumed_alike(losses(job.hosts[0].stdout), trained(parallel, steps), saved)


def test_sharded_parameters_learn_as_one_process_and_go_on_from_their_checkpoint(
    start: Start, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path / "checkpoints"
    found: dict[int, str] = {}
    for attempt, steps in enumerate((STEPS // 2, STEPS)):
        own = {"CHECKPOINTS": str(folder), "STEPS": str(steps), "TPU_OPERATOR_ATTEMPT": str(attempt)}
        job = start("-c", example("torchtpu-fsdp2"), **own)
        assert job.wait() == [0, 0], job.said
        said = job.hosts[0].stdout.decode()
        assert f"4 processes on 1 slice, each with 16 of 64 of a parameter, from step {len(found)}\n" in said
        assert losses(job.hosts[0].stdout).keys() == set(range(len(found) + 1, steps + 1))
        found |= losses(job.hosts[0].stdout)
    same_losses(found, one_process("torchtpu-fsdp2", tmp_path_factory.mktemp("alone"), STEPS))
    assert float(found[STEPS]) < float(found[1]) - 0.2, found


def _children(pid: int) -> list[int]:
    below = descendants(pid)
    return [each for each in below if each not in {child for one in below for child in descendants(one)}]

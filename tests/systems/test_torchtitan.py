"""TorchTitan's own trainer by examples/torchtitan.yaml: FSDP2 over two processes of a host, on the CPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.e2e.kube import wait_for
from tests.systems.conftest import PYTHON
from tests.torchtpu.hosts import SECONDS, Job, example

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Start = Callable[..., Job]

STEP = re.compile(r"step: +(\d+) +loss: +(\S+)")
pytestmark = pytest.mark.timeout(2 * SECONDS)


def losses(job: Job) -> dict[int, str]:
    """The loss of each step, which all processes print alike."""
    return {
        int(step): loss for step, loss in STEP.findall(job.hosts[0].stdout.decode() + job.hosts[0].stderr)
    }


def titan(start: Start, folder: Path, model: str, steps: int) -> Job:
    env = {"MODEL": model, "STEPS": str(steps), "CHECKPOINTS": str(folder), "DEVICE": "cpu"}
    return start("-c", example("torchtitan"), hosts=1, python=PYTHON, **env)


def test_a_run_that_loses_its_host_goes_on_with_the_losses_of_one_that_does_not(
    start: Start, tmp_path: Path
) -> None:
    whole = titan(start, tmp_path / "whole", "dense", 12)
    assert whole.wait() == [0], whole.said
    expected = losses(whole)
    assert expected.keys() == set(range(1, 13))
    assert float(expected[12]) < float(expected[1]) * 0.8

    folder = tmp_path / "broken"
    broken = titan(start, folder, "dense", 12)
    wait_for("there is a checkpoint", lambda: list(folder.glob("step-5/.metadata")), SECONDS)
    wait_for("it is past it", lambda: 6 in losses(broken), SECONDS)
    broken.kill()
    again = titan(start, folder, "dense", 12)
    assert again.wait() == [0], again.said
    found = losses(again)
    assert max(found) == 12
    assert min(found) in {6, 11}
    assert found == {step: loss for step, loss in expected.items() if step in found}


def test_a_mixture_of_experts_learns(start: Start, tmp_path: Path) -> None:
    job = titan(start, tmp_path / "moe", "moe", 3)
    assert job.wait() == [0], job.said
    found = losses(job)
    assert found.keys() == {1, 2, 3}
    assert float(found[3]) < float(found[1])
    assert (tmp_path / "moe" / "step-3" / ".metadata").exists()

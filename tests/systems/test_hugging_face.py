"""A model of Transformers by examples/hugging-face.yaml: on the emulated device, and read back."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.systems.conftest import PYTHON
from tests.torchtpu.hosts import SECONDS, Job, example, losses, same_losses

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.timeout(2 * SECONDS)

STEPS = 8
READ = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
model, words = (kind.from_pretrained(sys.argv[1]) for kind in (AutoModelForCausalLM, AutoTokenizer))
print(type(model).__name__, words.decode(words("1 and 2 are 3")["input_ids"]))
"""


def test_it_learns_as_one_process_on_the_cpu_and_can_be_read_again(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    def run(folder: str, **more: Any) -> dict[int, str]:
        env = {"STEPS": str(STEPS), "CHECKPOINTS": str(tmp_path / folder), "HF_HUB_OFFLINE": "1"}
        job = start("-c", example("hugging-face"), hosts=1, python=PYTHON, **env, **more)
        assert job.wait() == [0], job.said
        return losses(job.hosts[0].stdout)

    found = run("tpu", processes=2)
    assert float(found[STEPS]) < float(found[1])
    same_losses(found, run("cpu", processes=1, DEVICE="cpu"))
    env = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    read = subprocess.check_output([PYTHON, "-c", READ, tmp_path / "tpu" / "model"], env=env, text=True)
    assert read == "LlamaForCausalLM 1 and 2 are 3\n"

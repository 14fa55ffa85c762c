"""A network that is trained on the emulated device and exported in the same job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.systems.conftest import PYTHON
from tests.torchtpu.hosts import SECONDS, Job, example, losses

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.timeout(SECONDS)


def test_what_was_trained_answers_alike_in_executorch(start: Callable[..., Job], tmp_path: Path) -> None:
    env = {"STEPS": "30", "CHECKPOINTS": str(tmp_path)}
    job = start("-c", example("executorch"), hosts=1, python=PYTHON, **env)
    assert job.wait() == [0], job.said
    found = losses(job.hosts[0].stdout)
    assert float(found[30]) < float(found[10])
    told = re.search(
        r"^model\.pte has (\d+) bytes, and its answers are (\S+) apart$",
        job.hosts[0].stdout.decode(),
        re.MULTILINE,
    )
    assert told, job.said
    assert int(told[1]) == (tmp_path / "model.pte").stat().st_size
    assert float(told[2]) < 1e-4

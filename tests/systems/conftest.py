from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.torchtpu.hosts import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PYTHON = Path(__file__).parents[2] / ".venv-systems" / "bin" / "python"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Starts jobs with the packages of systems, and ends those that still run."""
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is not there: run `make systems` first")
    started: list[Job] = []

    def run(*command: str | Path, **options: str) -> Job:
        started.append(Job(tmp_path / f"job-{len(started)}", *command, **options))  # type: ignore[arg-type]
        return started[-1]

    yield run
    for job in started:
        job.kill()

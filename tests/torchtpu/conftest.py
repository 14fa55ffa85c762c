from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.conftest import e2e_cluster, kube, operator  # noqa: F401 - fixtures
from tests.e2e.nodes import slice_of_two, two_slices_of_one  # noqa: F401 - fixtures
from tests.torchtpu.hosts import PYTHON, SECONDS, Job, example, losses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Start = Callable[..., Job]
    Trained = Callable[[str, int], dict[int, str]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of this directory more time than others."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(2 * SECONDS))


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts jobs, and ends those that still run after all tests."""
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is not there: run `make torchtpu` first")
    started: list[Job] = []

    def run(*command: str | Path, **options: str) -> Job:
        started.append(Job(tmp_path_factory.mktemp("job") / "hosts", *command, **options))  # type: ignore[arg-type]
        return started[-1]

    yield run
    for job in started:
        job.kill()


@pytest.fixture(scope="session")
def trained(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Losses of a whole run of the example on 2 hosts x 2 processes, by PARALLEL and STEPS."""

    @cache
    def run(parallel: str, steps: int) -> dict[int, str]:
        folder = str(tmp_path_factory.mktemp(parallel))
        job = start("-c", example(), CHECKPOINTS=folder, PARALLEL=parallel, STEPS=str(steps))
        assert job.wait() == [0, 0], job.said
        return losses(job.hosts[0].stdout)

    return run

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import e2e_cluster, kube, operator  # noqa: F401 - fixtures
from tests.systems.rl.programs import PYTHON, SECONDS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of this directory more time than others."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(2 * SECONDS))


@pytest.fixture(autouse=True, scope="session")
def packages() -> None:
    """The packages of requirements/rl.lock."""
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is not there: run `make rl` first")

"""Fixtures of the operations tests."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from tests.cluster.operations.site import Site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hack.devcluster import Cluster
    from tests.cluster.conftest import Operator


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One seed, or those of OPS_SEEDS, such as `7` or `0-9`."""
    if "seed" in metafunc.fixturenames:
        first, _, last = os.environ.get("OPS_SEEDS", "0").partition("-")
        metafunc.parametrize("seed", range(int(first), int(last or first) + 1))


@pytest.fixture
async def site(control_plane: Cluster, operator: Operator) -> AsyncIterator[Site]:
    """The cluster, with an operator at work, and its nodes."""
    made = Site(control_plane.kubeconfig)
    await made.prepare()
    looking = asyncio.create_task(made.watch())
    yield made
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    await made.clean()
    await made.close()

"""Fixtures that several suites share."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hack.devcluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

FAKE_NODES = 16
CLUSTERS = [Path(__file__).parent / suite for suite in ("cluster", "e2e", "torchtpu")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep what needs a cluster together: of workers that share the tests, one has all of it."""
    for item in items:
        if any(suite in item.path.parents for suite in CLUSTERS):
            item.add_marker(pytest.mark.xdist_group("cluster"))


@pytest.fixture(scope="session", autouse=True)
def current_loop() -> Iterator[None]:
    """A current event loop: pytest-asyncio asks for it, and never closes one that is made by asking."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """A real API server, controller manager and scheduler, with fake TPU nodes."""
    cluster = Cluster.up("test", nodes=0, fake_nodes=FAKE_NODES)
    yield cluster
    cluster.down()

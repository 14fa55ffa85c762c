"""Fixtures that several suites share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hack.devcluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

FAKE_NODES = 16


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

"""Fixtures that several suites share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hack.devcluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

FAKE_NODES = 16


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """A real API server, controller manager and scheduler, with fake TPU nodes."""
    cluster = Cluster.up("test", nodes=0, fake_nodes=FAKE_NODES)
    yield cluster
    cluster.down()

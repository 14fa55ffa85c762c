"""Fixtures that several suites share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

from hack.devcluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdist.remote import Producer

FAKE_NODES = 16
CLUSTERS = ("tests/cluster/devcluster/", "tests/cluster/", "tests/e2e/", "tests/torchtpu/")
"""Suites that use one cluster each, or make some of their own; a test belongs to the first that it is in."""


class OneHasTheCluster(LoadScopeScheduling):  # type: ignore[misc] # it has no types
    """Of workers that share the tests, each cluster is one's.

    Marks of groups, pytest-xdist's own way to say so, are lost on pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        return next((suite for suite in CLUSTERS if nodeid.startswith(suite)), nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneHasTheCluster:
    """Called by pytest-xdist where there are workers."""
    return OneHasTheCluster(config, log)


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

"""Fixtures of the tests with the real Envoy and the real endpoint picker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.routing.gateway import Gateway
from tests.gateway import picker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hack.devcluster import Cluster
    from tests.kube import Kube


@pytest.fixture(scope="module")
def kinds(control_plane: Cluster, kube: Kube) -> Iterator[None]:
    """The cluster serves pools and routes, for the rest of the module."""
    picker.install(control_plane)
    yield
    picker.uninstall(control_plane)


@pytest.fixture
def gateway(
    control_plane: Cluster, kube: Kube, kinds: None, namespace: str, tmp_path: Path
) -> Iterator[Gateway]:
    """A gateway with a picker and a pool of its own, and no replicas yet."""
    made = Gateway(control_plane, kube, namespace, tmp_path)
    made.start()
    yield made
    made.stop()

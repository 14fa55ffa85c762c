"""Fixtures of the fault tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.faults.lab import Lab
from tests.cluster.faults.scenarios import Oracle
from tests.cluster.faults.together import Begun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hack.devcluster import Cluster
    from tests.kube import Kube


@pytest.fixture(scope="session")
def lab(control_plane: Cluster, kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The lab, with nodes and namespaces of its own."""
    made = Lab(control_plane.kubeconfig, tmp_path_factory.mktemp("faults"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def oracle(lab: Lab) -> Oracle:
    """What scenarios end in."""
    return Oracle(lab)


@pytest.fixture(scope="session")
def begun(lab: Lab, oracle: Oracle) -> Begun:
    """Tests that run side by side."""
    return Begun(lab, oracle)


@pytest.fixture
def alone(begun: Begun) -> None:
    """Nothing else goes on meanwhile."""
    begun.wait()

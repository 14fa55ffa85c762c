"""TPUJobs of the tests in this directory."""

from collections.abc import Iterator

import pytest

from tests.cluster.api.client import ControlPlane, Jobs


@pytest.fixture(scope="module")
def jobs(control_plane: ControlPlane) -> Iterator[Jobs]:
    """Return a client with the CRDs installed; nothing is left for an operator to run afterwards."""
    client = Jobs(control_plane)
    yield client
    client.kubectl("delete", "namespace", client.namespace, "--timeout=120s")

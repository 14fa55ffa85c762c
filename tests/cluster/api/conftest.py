"""TPUJobs of the tests in this directory."""

import pytest

from tests.cluster.api.client import ControlPlane, Jobs


@pytest.fixture(scope="session")
def jobs(control_plane: ControlPlane) -> Jobs:
    """Return a client with the CRDs installed."""
    return Jobs(control_plane)

"""What the tests of one operator process share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.operator.jobs import Jobs

if TYPE_CHECKING:
    from tests.kube import Kube


@pytest.fixture
def jobs(kube: Kube, namespace: str) -> Jobs:
    """The jobs of a namespace of the test's own."""
    return Jobs(kube, namespace)

"""Fixtures of the tests with Kueue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.inference.models import INFERENCE, Models
from tests.cluster.kueue.kueue import Kueue, Queue
from tests.cluster.operator.jobs import Jobs
from tests.kube import POD, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hack.devcluster import Cluster
    from tests.kube import Kube


@pytest.fixture(scope="module")
def kueue(control_plane: Cluster, kube: Kube) -> Iterator[Kueue]:
    """Kueue, for the rest of the module."""
    made = Kueue(control_plane, kube)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def jobs(kube: Kube, namespace: str) -> Jobs:
    """The jobs of a namespace of the test's own."""
    return Jobs(kube, namespace)


@pytest.fixture
def models(kube: Kube, namespace: str) -> Iterator[Models]:
    """The TPUInferences of that namespace, gone while Kueue is there, which holds their pods."""
    yield Models(kube, namespace)
    for each in kube.list(INFERENCE, namespace):
        kube.delete(INFERENCE, each["metadata"]["name"], namespace)
    wait_for(lambda: not kube.list(POD, namespace), f"the pods of {namespace} to go")


@pytest.fixture
def make_queue(kube: Kube, kueue: Kueue, namespace: str) -> Iterator[Callable[..., Queue]]:
    """Makes a queue of the namespace, with a quota of chips."""
    made: list[Queue] = []

    def make(name: str = "team", chips: int = 16, **more: Any) -> Queue:
        made.append(Queue(kube, namespace, name))
        made[-1].create(chips, **more)
        return made[-1]

    yield make
    for queue in made:
        queue.delete()

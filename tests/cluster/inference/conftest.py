"""What the tests of TPUInference share."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest

from hack.devcluster import fake
from tests.cluster.inference.models import INFERENCE, ONE_HOST, Models
from tests.kube import NODE, POD, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.kube import Kube


@pytest.fixture
def models(kube: Kube, namespace: str) -> Iterator[Models]:
    """The TPUInferences of a namespace of the test's own, which leave no pod behind."""
    yield Models(kube, namespace)
    for each in kube.list(INFERENCE, namespace):
        kube.delete(INFERENCE, each["metadata"]["name"], namespace)
    wait_for(lambda: _gone(kube, namespace), f"the pods of {namespace} to go")


@pytest.fixture(scope="module")
def make_nodes(kube: Kube) -> Iterator[Callable[..., list[str]]]:
    """Makes nodes that no other test asks for, each in a pool of its own unless labels say otherwise.

    They outlive the pods of each test, which nobody would end without a node.
    """
    made: list[str] = []

    def make(prefix: str, count: int, **labels: str) -> list[str]:
        names = [f"{prefix}-{index}" for index in range(count)]
        for name in names:
            node = copy.deepcopy(fake.node(0))
            own = {"cloud.google.com/gke-nodepool": name}
            own |= {f"cloud.google.com/gke-{key}": value for key, value in labels.items()}
            labelled = node["metadata"]["labels"] | own | {"kubernetes.io/hostname": name}
            node["metadata"] |= {"name": name, "labels": labelled}
            kube.create(NODE, node)
            made.append(name)
        return names

    yield make
    for name in made:
        kube.delete(NODE, name)


@pytest.fixture(scope="module")
def single_hosts(make_nodes: Callable[..., list[str]]) -> None:
    """Nodes for ten replicas of one host."""
    make_nodes("single", 10, **{"tpu-topology": ONE_HOST["topology"]})


def _gone(kube: Kube, namespace: str) -> bool:
    """Whether no pod is left; kwok leaves those alone that are held, also when they are to go."""
    pods = kube.list(POD, namespace)
    for pod in pods:
        if "devcluster/hold" in (pod["metadata"].get("annotations") or {}):
            kube.delete(POD, pod["metadata"]["name"], namespace, gracePeriodSeconds=0)
    return not pods

"""What the tests of TPUInference share."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest

from hack.devcluster import fake
from tests.cluster.inference.models import INFERENCE, ONE_HOST, Models
from tests.kube import NODE, POD, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kube import Kube


@pytest.fixture
def models(kube: Kube, namespace: str) -> Iterator[Models]:
    """The TPUInferences of a namespace of the test's own, which leave no pod behind."""
    yield Models(kube, namespace)
    for each in kube.list(INFERENCE, namespace):
        kube.delete(INFERENCE, each["metadata"]["name"], namespace)
    wait_for(lambda: _gone(kube, namespace), f"the pods of {namespace} to go")


@pytest.fixture
def single_hosts(kube: Kube) -> Iterator[None]:
    """Nodes for ten replicas of one host, which no other test asks for."""
    names = [f"single-{index}" for index in range(10)]
    for name in names:
        made = copy.deepcopy(fake.node(0))
        labels = {
            "kubernetes.io/hostname": name,
            "cloud.google.com/gke-tpu-topology": ONE_HOST["topology"],
            "cloud.google.com/gke-nodepool": name,
        }
        made["metadata"] |= {"name": name, "labels": made["metadata"]["labels"] | labels}
        kube.create(NODE, made)
    yield
    for name in names:
        kube.delete(NODE, name)


def _gone(kube: Kube, namespace: str) -> bool:
    """Whether no pod is left; kwok leaves those alone that are held, also when they are to go."""
    pods = kube.list(POD, namespace)
    for pod in pods:
        if "devcluster/hold" in (pod["metadata"].get("annotations") or {}):
            kube.delete(POD, pod["metadata"]["name"], namespace, gracePeriodSeconds=0)
    return not pods

"""What the tests of TPUInference share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.inference.models import INFERENCE, Models
from tests.kube import POD, wait_for

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


def _gone(kube: Kube, namespace: str) -> bool:
    """Whether no pod is left; kwok leaves those alone that are held, also when they are to go."""
    pods = kube.list(POD, namespace)
    for pod in pods:
        if "devcluster/hold" in (pod["metadata"].get("annotations") or {}):
            kube.delete(POD, pod["metadata"]["name"], namespace, gracePeriodSeconds=0)
    return not pods

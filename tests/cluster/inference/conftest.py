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
    wait_for(lambda: not kube.list(POD, namespace), f"the pods of {namespace} to go")

"""A cluster of three slices of two hosts each, with the operator, a gateway, and what is between them.

The engines and the sidecar are those for tests; Envoy and the endpoint picker are real, and the picker is run
by the Deployment that the operator makes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.e2e.serving.model import install_operator, up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hack.devcluster import Cluster
    from tests.e2e.kube import Kube

NODES = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster, with images and kinds."""
    with up("serving", NODES, tmp_path_factory.mktemp("images")) as made:
        yield made


@pytest.fixture(scope="module")
def serving(cluster: Cluster) -> Kube:
    """The operator, beside nodes that are slices of two hosts."""
    return install_operator(cluster, "2x4", 2)


@pytest.fixture
def kube(serving: Kube, request: pytest.FixtureRequest) -> Iterator[Kube]:
    """A namespace for one test, gone before the next one."""
    name = f"serving-{abs(hash(request.node.nodeid)) % 16**8:08x}"
    serving.kubectl("create", "namespace", name)
    yield replace(serving, namespace=name)
    serving.kubectl("delete", "namespace", name, "--ignore-not-found", "--timeout=180s")

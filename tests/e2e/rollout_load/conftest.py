"""A cluster of six slices of one host each: four for a model, and one more of each of its roles."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.e2e.rollout_load.stage import ONE_HOST, TARGET, Stage, staged
from tests.e2e.serving.model import TOPOLOGY, install_operator, up

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hack.devcluster import Cluster
    from tests.e2e.kube import Kube

NODES = 6
NODE_LOST_SECONDS = 3
"""Kubernetes itself takes 50 s to call a node unknown, which is enough of patience."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster, with images and kinds."""
    with up("load", NODES, tmp_path_factory.mktemp("images")) as made:
        yield made


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Kube:
    """The operator, where no test ends a node."""
    last = f"nodeSelector.kubernetes\\.io/hostname={cluster.nodes()[-1].name}"
    lost = f"extraArgs={{--node-lost-after={NODE_LOST_SECONDS}}}"
    return install_operator(cluster, str(ONE_HOST["topology"]), 1, "--set", last, "--set", lost)


@pytest.fixture
def exactly_full(installed: Kube) -> Iterator[None]:
    """As many slices as the model has replicas."""
    nodes = [node["metadata"]["name"] for node in installed.find("nodes")][: NODES - 2 * TARGET]
    installed.kubectl("label", "node", *nodes, "--overwrite", f"{TOPOLOGY}=4x4")
    yield
    installed.kubectl("label", "node", *nodes, "--overwrite", f"{TOPOLOGY}={ONE_HOST['topology']}")


@pytest.fixture
def stage(
    cluster: Cluster, installed: Kube, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Stage]:
    """The model in a namespace of the test's own, gone before the next one."""
    name = f"load-{abs(hash(request.node.nodeid)) % 16**8:08x}"
    installed.kubectl("create", "namespace", name)
    with staged(cluster, replace(installed, namespace=name), tmp_path) as made:
        yield made
    installed.kubectl("delete", "namespace", name, "--ignore-not-found", "--timeout=180s")

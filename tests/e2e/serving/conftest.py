"""A cluster of three slices of two hosts each, with the operator, a gateway, and what is between them.

The engines and the sidecar are those for tests; Envoy and the endpoint picker are real, and the picker is run
by the Deployment that the operator makes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hack.devcluster import Cluster, binaries, images
from tests.e2e.conftest import IMAGES, install
from tests.e2e.kube import OPERATOR, Kube
from tests.gateway import picker

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES = 6
HOSTS = 2
PICKER_IMAGE = "localhost/endpoint-picker:dev"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster, with images and kinds."""
    if missing := [name for name in ("operator", "runtime") if not (IMAGES / f"{name}.tar").exists()]:
        pytest.fail(f"images {', '.join(missing)} are not there, run `make images` first")
    made = Cluster.up(name="serving", nodes=NODES)
    try:
        archive = tmp_path_factory.mktemp("images") / "picker.tar"
        images.write_program(archive, PICKER_IMAGE, binaries.ensure(["epp"])["epp"])
        for each in (IMAGES / "operator.tar", IMAGES / "runtime.tar", archive):
            made.load(each)
        picker.install(made)
        yield made
    finally:
        made.down()


@pytest.fixture(scope="session")
def serving(cluster: Cluster) -> Kube:
    """The operator, beside nodes that are slices of two hosts."""
    kube = Kube(cluster.kubeconfig, cluster.kubectl, cluster.helm)
    nodes = sorted(node["metadata"]["name"] for node in kube.find("nodes"))
    for index, node in enumerate(nodes):
        pool = f"cloud.google.com/gke-nodepool=pair-{index // HOSTS}"
        kube.kubectl("label", "node", node, "--overwrite", "cloud.google.com/gke-tpu-topology=2x4", pool)
    # Pickers run on ordinary nodes, of which there are none here.
    kube.kubectl("taint", "node", nodes[-1], "google.com/tpu-")
    install(kube, "--set", f"inference.endpointPickerImage={PICKER_IMAGE}")
    return replace(kube, namespace=OPERATOR)


@pytest.fixture
def kube(serving: Kube, request: pytest.FixtureRequest) -> Iterator[Kube]:
    """A namespace for one test, gone before the next one."""
    name = f"serving-{abs(hash(request.node.nodeid)) % 16**8:08x}"
    serving.kubectl("create", "namespace", name)
    yield replace(serving, namespace=name)
    serving.kubectl("delete", "namespace", name, "--ignore-not-found", "--timeout=180s")

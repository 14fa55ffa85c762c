"""A cluster with real kubelets, the images of the Dockerfile in it, and the chart installed by helm.

By default a dev cluster of four nodes that is taken down at the end. With E2E_KUBECONFIG set, that cluster:
it needs four nodes that pose as v5e 4x4 hosts and hold the images of `make images`.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hack.devcluster import Cluster, binaries
from tests.e2e.kube import CHART, OPERATOR, ROOT, CommandError, Kube, wait_for
from tests.e2e.nodes import slice_of_two, two_slices_of_one  # noqa: F401 - fixtures

IMAGES = ROOT / "dist" / "images"
SECONDS = 900
"""Time for one test: the first one waits for the cluster and for images to be unpacked on four nodes."""
VALUES = ROOT / "hack" / "demo-values.yaml"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of this directory more time than others."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(scope="session")
def e2e_cluster() -> Iterator[Kube]:
    """A cluster that has the images."""
    if given := os.environ.get("E2E_KUBECONFIG"):
        yield Kube(Path(given), _tool("kubectl"), _tool("helm"))
        return
    archives = [IMAGES / "operator.tar", IMAGES / "runtime.tar"]
    if missing := [str(archive) for archive in archives if not archive.exists()]:
        pytest.fail(f"{', '.join(missing)}: not there, run `make images` first")
    cluster = Cluster.up(name="e2e", nodes=4)
    try:
        for archive in archives:
            cluster.load(archive)
        yield Kube(cluster.kubeconfig, cluster.kubectl, cluster.helm)
    finally:
        cluster.down()


def _tool(name: str) -> Path:
    found = shutil.which(name)
    return Path(found) if found else binaries.ensure([name])[name]


def install(kube: Kube, *arguments: str | Path, chart: Path = CHART) -> None:
    """Install or upgrade the release and wait until the operator is ready."""
    kube.helm("upgrade", "--install", OPERATOR, chart, "--create-namespace", "--values", VALUES, *arguments)
    kube.kubectl("rollout", "status", f"deployment/{OPERATOR}", f"--namespace={OPERATOR}", "--timeout=120s")


@pytest.fixture(scope="session")
def operator(e2e_cluster: Kube, tmp_path_factory: pytest.TempPathFactory) -> Kube:
    """The cluster with the packaged chart installed, in the operator's namespace."""
    directory = tmp_path_factory.mktemp("chart")
    e2e_cluster.helm("package", CHART, "--destination", directory)
    (package,) = directory.glob("*.tgz")
    install(e2e_cluster, chart=package)
    return replace(e2e_cluster, namespace=OPERATOR)


@pytest.fixture
def kube(operator: Kube, request: pytest.FixtureRequest) -> Iterator[Kube]:
    """A namespace for one test, gone before the next one: each job wants all chips there are."""
    name = f"e2e-{abs(hash(request.node.nodeid)) % 16**8:08x}"
    operator.kubectl("create", "namespace", name)
    yield replace(operator, namespace=name)
    operator.kubectl("delete", "namespace", name, "--ignore-not-found", "--timeout=120s")


@pytest.fixture
def two_slices(operator: Kube) -> Iterator[None]:
    """The nodes as the pools `half-0` and `half-1` of 2x4 slices, in place of one of a 4x4 slice."""
    topology, pool = "cloud.google.com/gke-tpu-topology", "cloud.google.com/gke-nodepool"
    before = {
        node["metadata"]["name"]: node["metadata"]["labels"] for node in operator.find("nodes", topology)
    }
    for index, name in enumerate(before):
        half = [f"{topology}=2x4", f"{pool}=half-{index // 2}"]
        operator.kubectl("label", "node", name, "--overwrite", *half)
    yield
    for name, labels in before.items():
        old = [f"{key}={labels[key]}" for key in (topology, pool)]
        operator.kubectl("label", "node", name, "--overwrite", *old)


@pytest.fixture(scope="session")
def machines(operator: Kube) -> Cluster:
    """The dev cluster below the API: its nodes' own processes."""
    if "E2E_KUBECONFIG" in os.environ:
        pytest.skip("only the dev cluster lets us at its nodes")
    return Cluster.attach("e2e")


@pytest.fixture
def reinstall(operator: Kube) -> Iterator[None]:
    """Put the release back as it was, whatever the test did to it."""
    yield
    install(operator)


def crd_uid(kube: Kube) -> str:
    """UID of the CRD of TPUJobs."""
    return str(kube.get("crd", "tpujobs.tpu-operator.dev")["metadata"]["uid"])


def wait_gone(kube: Kube, kind: str, name: str, seconds: float = 60) -> None:
    """Wait until an object is no more."""

    def probe() -> bool:
        try:
            kube.get(kind, name)
        except CommandError as error:
            return "NotFound" in str(error)
        return False

    wait_for(f"{kind} {name} is gone", probe, seconds)

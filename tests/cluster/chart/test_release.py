"""helm upgrade, uninstall and install under twenty running jobs."""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING, Final

import pytest
import yaml

from hack.devcluster import fake, tpu
from tests.cluster.chart.release import CHART, Release
from tests.cluster.conftest import SYSTEM
from tests.cluster.operator.jobs import Jobs
from tests.kube import NODE, POD, SERVICE, TPUJOB, wait_for
from tests.unit.chart import promql
from tests.unit.chart.exposed import everything
from tests.unit.chart.test_monitoring import QUERIES, RULES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cluster.conftest import Operator
    from tests.kube import Kube

LARGE: Final = 4
"""Jobs of four hosts: as many as the control plane has nodes for."""
SMALL: Final = 16
"""Jobs of one host, on nodes of their own."""
ELSEWHERE: Final = ("tpu_launch_", "tpu_operator_inference_", "tpu_operator_gang_restart_seconds")
"""What no job of this test leads to."""
DEPLOYMENT = ("apps/v1", "Deployment")
CRD = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")


@pytest.fixture
def nodes(kube: Kube) -> Iterator[None]:
    """Nodes for the small jobs."""
    for index in range(SMALL):
        node = fake.node(0)
        name = node["metadata"]["name"] = f"small-{index}"
        labels = {"kubernetes.io/hostname": name, tpu.POOL: name, "cloud.google.com/gke-tpu-topology": "2x2"}
        node["metadata"]["labels"] |= labels
        kube.create(NODE, node)
        # New nodes get a not-ready taint, which the controller manager takes off some 7 nodes a second.
        kube.patch(NODE, name, "", {"spec": {"taints": [tpu.TAINT]}})
    yield
    for index in range(SMALL):
        kube.delete(NODE, f"small-{index}")


def earlier(directory: Path) -> Path:
    """The chart as an earlier version: with another number, and a CRD without what came later."""
    chart = directory / "tpu-operator"
    shutil.copytree(CHART, chart)
    description = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump(description | {"version": "0.0.9"}))
    file = chart / "files" / "crds" / "tpu-operator.dev_tpujobs.yaml"
    crd = yaml.safe_load(file.read_text())
    del crd["spec"]["versions"][0]["additionalPrinterColumns"][-1]
    file.write_text(yaml.safe_dump(crd))
    return chart


class Fleet:
    """Twenty jobs that run, and all that must not change about them."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube, self._namespace = kube, namespace
        self._jobs = Jobs(kube, namespace)
        self.names = [*(f"large-{i}" for i in range(LARGE)), *(f"small-{i}" for i in range(SMALL))]

    def start(self) -> None:
        for name in self.names:
            topology = "4x4" if name.startswith("large") else "2x2"
            self._jobs.create(name, tpu={"accelerator": "v5e", "topology": topology})
        wait_for(lambda: self._phases() == {"Running"}, "twenty jobs to run")

    def _phases(self) -> set[str]:
        jobs = self._kube.list(TPUJOB, self._namespace)
        return {job.get("status", {}).get("phase", "") for job in jobs}

    def uids(self) -> dict[str, str]:
        """UIDs of the jobs and their pods."""
        found = [*self._kube.list(TPUJOB, self._namespace), *self._kube.list(POD, self._namespace)]
        return {f"{each['kind']} {each['metadata']['name']}": each["metadata"]["uid"] for each in found}

    def provoke(self) -> None:
        """Make the operator look at all of them: it has work with each, as its Service is gone."""
        for name in self.names:
            self._kube.delete(SERVICE, name, self._namespace)
        wait_for(
            lambda: len(self._kube.list(SERVICE, self._namespace)) == len(self.names), "Services to come back"
        )

    def check(self, uids: dict[str, str]) -> None:
        assert self.uids() == uids
        assert self._phases() == {"Running"}
        jobs = self._kube.list(TPUJOB, self._namespace)
        assert {job["status"].get("restarts", {}).get("total", 0) for job in jobs} == {0}

    def end(self, name: str) -> None:
        """Let one of them come to its end, under the operator that runs now."""
        for pod in self._kube.list(POD, self._namespace, f"tpu-operator.dev/job={name}"):
            self._jobs.end_pod(pod["metadata"]["name"], 0)
        self._jobs.reaches("Succeeded", name)


def stop(operator: Operator) -> None:
    operator.signal(signal.SIGTERM)
    assert operator.wait() == 0, operator.log.read_text()


def columns(kube: Kube) -> list[str]:
    crd = kube.get(CRD, "tpujobs.tpu-operator.dev") or {}
    return [column["name"] for column in crd["spec"]["versions"][0]["additionalPrinterColumns"]]


@pytest.mark.usefixtures("nodes")
@pytest.mark.timeout(900)
def test_upgrades_and_removal_touch_no_running_job(
    release: Release, kube: Kube, namespace: str, tmp_path: Path
) -> None:
    release.install(earlier(tmp_path / "earlier"))
    before = columns(kube)
    operator = release.start()
    fleet = Fleet(kube, namespace)
    fleet.start()
    uids = fleet.uids()
    assert len(uids) == LARGE * (1 + tpu.HOSTS) + 2 * SMALL

    release.install()
    assert len(columns(kube)) == len(before) + 1
    stop(operator)
    operator = release.start()
    fleet.provoke()
    fleet.check(uids)
    check_metrics(operator)

    release.uninstall()
    stop(operator)
    assert kube.get(DEPLOYMENT, SYSTEM, SYSTEM) is None
    fleet.check(uids)

    release.install()
    release.start()
    fleet.provoke()
    fleet.check(uids)
    fleet.end("large-0")
    fleet.end("small-0")


def check_metrics(operator: Operator) -> None:
    """What alerts and panels ask for is what this process shows."""
    status, page = operator.http(operator.metrics_port, "/metrics")
    assert status == 200
    exposed = everything()
    queries = [rule["expr"] for rule in RULES] + [target["expr"] for _, target in QUERIES]
    wanted = {name for query in queries for name in promql.names(query, exposed)}
    shown = {name for name in wanted if f"\n{name}" in page}
    # Counters of what must not happen have no samples; their families are there.
    told = {name for name in wanted if f"# TYPE {name} " in page}
    missing = {name for name in wanted - shown - told if not name.startswith(ELSEWHERE)}
    assert not missing

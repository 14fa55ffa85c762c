"""Spare slices on a real control plane: a node pool that goes, and one that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hack.devcluster import fake
from tests.cluster.operator.jobs import of_slice, uids
from tests.docs import examples
from tests.kube import NODE, POD, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.cluster.operator.jobs import Jobs
    from tests.kube import Kube, Object

pytestmark = pytest.mark.usefixtures("operator")
POOL = "cloud.google.com/gke-nodepool"
HELD: Object = {"metadata": {"annotations": {fake.HOLD: "true"}}}


@pytest.fixture
def deleted(kube: Kube) -> Iterator[list[Object]]:
    """Nodes that a test has deleted, which come back for the next one."""
    nodes: list[Object] = []
    yield nodes
    for node in nodes:
        meta = {key: node["metadata"][key] for key in ("name", "labels", "annotations")}
        taints = [taint for taint in node["spec"].get("taints", []) if taint["key"] == "google.com/tpu"]
        status = {key: node["status"][key] for key in ("capacity", "allocatable", "addresses")}
        kube.create(NODE, {"metadata": meta, "spec": {"taints": taints}, "status": status})
    names = {node["metadata"]["name"] for node in nodes}
    wait_for(lambda: names <= {n["metadata"]["name"] for n in kube.list(NODE, "") if _open(n)}, "the nodes")


def _open(node: Object) -> bool:
    return {taint["key"] for taint in node["spec"].get("taints", [])} == {"google.com/tpu"}


def slices(jobs: Jobs) -> list[dict[str, Any]]:
    return [dict(each) for each in jobs.status().get("slices", [])]


def reaches(jobs: Jobs, *states: str) -> list[dict[str, Any]]:
    def there() -> list[dict[str, Any]] | None:
        found = slices(jobs)
        return found if [each["state"] for each in found] == list(states) else None

    try:
        return wait_for(there, f"slices {states}")
    except AssertionError as error:
        raise AssertionError(f"{error}; {jobs.shown()}") from None


def lose(jobs: Jobs, nodes: Iterable[Object], pods: Iterable[str]) -> None:
    """Delete nodes and then the pods on them, as Kubernetes' collector does some 45 s later."""
    for pod in pods:
        jobs.kube.patch(POD, pod, jobs.namespace, HELD)
    for node in nodes:
        jobs.kube.delete(NODE, node["metadata"]["name"])
    target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
    for pod in pods:
        jobs.pod_status(pod, phase="Failed", conditions=[target])
        jobs.kube.delete(POD, pod, jobs.namespace, gracePeriodSeconds=0)


def test_a_slice_that_has_lost_its_pool_gets_the_spares(
    jobs: Jobs, kube: Kube, deleted: list[Object]
) -> None:
    example = examples()["A node pool is lost, and a spare is there"]
    jobs.create(**example.spec)
    before = reaches(jobs, "Running", "Running", "Spare")
    assert jobs.status()["ready"] == "8/8"
    assert len({each["nodePool"] for each in before}) == 3
    untouched = uids(of_slice(jobs.pods(), 0))
    deleted += kube.list(NODE, "", f"{POOL}={before[1]['nodePool']}")
    lose(jobs, deleted, of_slice(jobs.pods(), 1))
    wait_for(lambda: slices(jobs)[1].get("nodePool") == before[2]["nodePool"], "the take-over")
    after = reaches(jobs, "Running", "Running", "Spare")
    assert example.shown(jobs.reaches("Running", restarts=1)) == example.status
    assert after[1]["nodePool"] == before[2]["nodePool"]
    assert after[2]["nodePool"] not in {each["nodePool"] for each in before}
    assert uids(of_slice(jobs.pods(), 0)) == untouched


def test_a_spare_that_is_deleted_by_hand_is_made_again(jobs: Jobs, kube: Kube) -> None:
    jobs.create(tpu={"accelerator": "v5e", "topology": "4x4", "spareSlices": 1})
    reaches(jobs, "Running", "Spare")
    before = uids(of_slice(jobs.pods(), 0))
    kube.delete(POD, "train-1-2", jobs.namespace)
    wait_for(lambda: slices(jobs)[1]["attempt"] == 1, "the spare's next attempt")
    reaches(jobs, "Running", "Spare")
    assert uids(of_slice(jobs.pods(), 0)) == before
    status = jobs.status()
    assert (status["phase"], status["restarts"]["total"], status["ready"]) == ("Running", 0, "4/4")

"""PodGroups and the real scheduler: all pods of a slice find nodes, or none of them is bound."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from hack.devcluster import fake
from tests.cluster.operator.jobs import attempts, restarts, uids
from tests.kube import NODE, POD, POD_GROUP, TPUJOB, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.operator.jobs import Jobs
    from tests.kube import Kube, Object

pytestmark = pytest.mark.usefixtures("operator")
V5P: Object = {"accelerator": "v5p", "topology": "2x2x4"}
"""A shape that no other node of the cluster has: 4 hosts of 4 chips."""
POOL = [f"gang-{index}" for index in range(4)]
CORDON: Object = {"spec": {"unschedulable": True}}
UNCORDON: Object = {"spec": {"unschedulable": None}}


@pytest.fixture(scope="module")
def pool(kube: Kube) -> Iterator[None]:
    """A node pool of four hosts; it outlives the pods of each test, which nobody would end without a node."""
    for name in POOL:
        made = copy.deepcopy(fake.node(0))
        labels = {
            "kubernetes.io/hostname": name,
            "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
            "cloud.google.com/gke-tpu-topology": "2x2x4",
            "cloud.google.com/gke-nodepool": "gang",
        }
        made["metadata"] |= {"name": name, "labels": made["metadata"]["labels"] | labels}
        kube.create(NODE, made)
        kube.patch(NODE, name, "", {"spec": {"taints": made["spec"]["taints"]}})
    yield
    for name in POOL:
        kube.delete(NODE, name)


@pytest.fixture
def hosts(jobs: Jobs, pool: None) -> Hosts:
    """The hosts of that pool, one of them cordoned."""
    jobs.kube.patch(NODE, POOL[-1], "", CORDON)
    return Hosts(jobs)


class Hosts:
    """What is on the hosts of the test's pool."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs, self.kube = jobs, jobs.kube

    def bound(self) -> dict[str, str]:
        """Nodes of the pods that have one."""
        found = self.jobs.pods().items()
        return {name: node for name, pod in found if (node := pod["spec"].get("nodeName"))}

    def group(self) -> Object | None:
        return self.kube.get(POD_GROUP, "train-0", self.jobs.namespace)

    def groups(self) -> dict[str, int]:
        """Pods of each PodGroup that have to find nodes at the same time, by its name."""
        found = self.kube.list(POD_GROUP, self.jobs.namespace)
        return {g["metadata"]["name"]: g["spec"]["schedulingPolicy"]["gang"]["minCount"] for g in found}

    def tried(self) -> str:
        """What the scheduler says of the group; empty before it has tried."""
        conditions = (self.group() or {}).get("status", {}).get("conditions", ())
        return next((c["message"] for c in conditions if c["status"] == "False"), "")

    def uncordon(self) -> None:
        self.kube.patch(NODE, POOL[-1], "", UNCORDON)


def test_with_three_free_hosts_of_four_no_pod_is_bound(hosts: Hosts, jobs: Jobs) -> None:
    jobs.create(tpu=V5P)
    assert "minCount (4) cannot be satisfied" in wait_for(hosts.tried, "the scheduler to try")
    assert jobs.blocked("Unschedulable") == (
        "a slice needs 4 hosts of one node pool at the same time, and gang, the one with the most of them, "
        "has 3 that pods may use: gang-3 is cordoned"
    )
    assert hosts.bound() == {}
    hosts.uncordon()
    jobs.reaches("Running")
    assert sorted(hosts.bound().values()) == POOL
    assert "pending" not in jobs.status()


def test_without_a_gang_three_are(hosts: Hosts, jobs: Jobs) -> None:
    jobs.create(tpu=V5P, scheduling={"gang": "None"})
    wait_for(lambda: len(hosts.bound()) == 3, "three pods to hold nodes for nothing")
    assert hosts.group() is None


def test_a_restart_in_a_free_pool_needs_no_group_any_more(hosts: Hosts, jobs: Jobs) -> None:
    jobs.create(tpu=V5P)
    wait_for(hosts.tried, "the scheduler to try")
    hosts.uncordon()
    jobs.reaches("Running")
    jobs.end_pod("train-0-1", 1)
    jobs.reaches("Running", restarts=1)
    wait_for(lambda: hosts.group() is None, "the PodGroup that nobody is in to go")


def test_case_67_a_group_outlives_restarts_and_goes_with_suspension_and_with_the_job(
    hosts: Hosts, jobs: Jobs, kube: Kube
) -> None:
    hosts.uncordon()
    jobs.create(tpu=V5P, scheduling={"gang": "PodGroup"})
    jobs.reaches("Running")
    before, old = hosts.group(), uids(jobs.pods())
    assert before is not None
    jobs.end_pod("train-0-1", 1)
    jobs.reaches("Running", restarts=1)
    assert attempts(jobs.pods()) == {"1"}
    assert not old & uids(jobs.pods())
    assert uid(hosts.group()) == uid(before)

    kube.patch(TPUJOB, "train", jobs.namespace, {"spec": {"suspend": True}})
    jobs.reaches("Suspended")
    wait_for(lambda: hosts.group() is None, "the PodGroup of a suspended job to go")
    kube.patch(TPUJOB, "train", jobs.namespace, {"spec": {"suspend": False}})
    jobs.reaches("Running")
    assert uid(hosts.group()) not in {"", uid(before)}
    kube.delete(TPUJOB, "train", jobs.namespace)
    wait_for(lambda: not jobs.pods() and hosts.group() is None, "pods and PodGroup to go with the job")


def test_case_67_a_resized_job_has_groups_of_its_new_size(hosts: Hosts, jobs: Jobs, kube: Kube) -> None:
    jobs.create(tpu=V5P | {"slices": 2}, scheduling={"gang": "PodGroup"})
    wait_for(lambda: hosts.groups() == {"train-0": 4, "train-1": 4}, "a PodGroup for each slice")
    jobs.change(suspend=True)
    jobs.reaches("Suspended")
    wait_for(lambda: hosts.groups() == {}, "the PodGroups of a suspended job to go")
    jobs.change(suspend=False, tpu={"topology": "2x2x2", "slices": 1})
    wait_for(lambda: hosts.groups() == {"train-0": 2}, "a PodGroup of the new size")


def uid(found: Any) -> str:
    return str(found["metadata"]["uid"]) if found else ""


def test_a_pod_of_somebody_else_holds_its_host(hosts: Hosts, jobs: Jobs, kube: Kube) -> None:
    hosts.uncordon()
    container = {"name": "main", "image": "example", "resources": {"limits": {"google.com/tpu": "1"}}}
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": POOL[1]},
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }
    kube.create(POD, {"metadata": {"name": "notebook"}, "spec": spec}, jobs.namespace)
    wait_for(lambda: _phase(kube, jobs.namespace) == "Running", "the pod of somebody else")
    jobs.create(tpu=V5P)
    used = f"{POOL[1]} is used by pod {jobs.namespace}/notebook"
    wait_for(lambda: used in jobs.blocked("Unschedulable"), "the pod to be named")
    assert not hosts.bound()
    kube.delete(POD, "notebook", jobs.namespace)
    assert restarts(jobs.reaches("Running")) == (0, 0, {})


def _phase(kube: Kube, namespace: str) -> str | None:
    phase: str | None = (kube.get(POD, "notebook", namespace) or {}).get("status", {}).get("phase")
    return phase

"""What fails under a job, and what is left of its budget: rules, scopes, counts and root causes."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from hack.devcluster import fake, tpu
from tests.cluster.operator.jobs import HOLD, RELEASE, attempts, of_slice, restarts, uids
from tests.docs import examples
from tests.kube import EVENT, NODE, POD, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.conftest import Operator
    from tests.cluster.operator.jobs import Jobs
    from tests.kube import Kube, Object

pytestmark = pytest.mark.usefixtures("operator")
PRIORITY_CLASS = ("scheduling.k8s.io/v1", "PriorityClass")
URGENT = "urgent-tests"
TWO_SLICES = {"accelerator": "v5e", "topology": "4x4", "slices": 2}
"""Eight hosts."""


@pytest.fixture
def urgent(kube: Kube) -> Iterator[str]:
    """A priority above that of all others."""
    kube.create(PRIORITY_CLASS, {"metadata": {"name": URGENT}, "value": 1000})
    yield URGENT
    kube.delete(PRIORITY_CLASS, URGENT)


def intruder(node: str, priority: str) -> Object:
    """A pod that wants all chips of a node."""
    container = {"name": "main", "image": "example", "resources": {"limits": {"google.com/tpu": "4"}}}
    spec = {
        "priorityClassName": priority,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [{"key": "google.com/tpu", "operator": "Exists"}],
        "containers": [container],
    }
    return {"metadata": {"name": "intruder"}, "spec": spec}


def test_case_30_preempted_three_times_with_a_budget_of_one(jobs: Jobs, kube: Kube, urgent: str) -> None:
    example = examples()["Preempted three times, with one restart allowed"]
    jobs.create(**example.spec)
    for times in range(1, 4):
        jobs.reaches("Running", restarts=times - 1)
        # kwok would end it before anybody could see who wanted that.
        kube.patch(POD, "train-0-1", jobs.namespace, HOLD)
        node = jobs.pods()["train-0-1"]["spec"]["nodeName"]
        kube.create(POD, intruder(node, urgent), jobs.namespace)
        jobs.restarted(times)
        kube.delete(POD, "intruder", jobs.namespace)
        kube.patch(POD, "train-0-1", jobs.namespace, RELEASE)
        wait_for(lambda: kube.get(POD, "intruder", jobs.namespace) is None, "the intruder to go")
    assert example.shown(jobs.reaches("Running", restarts=3)) == example.status


@pytest.mark.parametrize(
    ("title", "code", "error"),
    [("A rule by exit code", 3, ""), ("A rule by message", 1, "the loss is not a number")],
)
def test_case_31_a_rule_ends_the_job(jobs: Jobs, title: str, code: int, error: str) -> None:
    example = examples()[title]
    jobs.create(**example.spec)
    jobs.reaches("Running")
    jobs.end_pod("train-0-2", code, error=error)
    status = jobs.reaches("Failed")
    assert example.shown(status) == example.status
    assert "a rule of failurePolicy ends the job" in status["message"]


@pytest.mark.parametrize(
    ("title", "code", "error"),
    [
        ("A rule by exit code", 1, ""),
        ("A rule by message", 3, "the loss is not a number"),
        ("A rule by message", 1, "out of range"),
    ],
)
def test_case_31_a_rule_that_does_not_match_changes_nothing(
    jobs: Jobs, title: str, code: int, error: str
) -> None:
    jobs.create(**examples()[title].spec)
    jobs.reaches("Running")
    jobs.end_pod("train-0-2", code, error=error)
    assert restarts(jobs.reaches("Running", restarts=1)) == (1, 1, {"UserError": 1})


def test_case_31_a_broad_rule_keeps_those_after_it_from_being_asked(jobs: Jobs) -> None:
    example = examples()["The order of rules"]
    jobs.create(**example.spec)
    jobs.reaches("Running")
    jobs.end_pod("train-0-2", 3)
    assert example.shown(jobs.reaches("Running", restarts=1)) == example.status


def test_case_31_an_ignored_failure_neither_restarts_nor_ends_the_job(jobs: Jobs) -> None:
    example = examples()["A failure that does not matter"]
    jobs.create(**example.spec)
    jobs.reaches("Running")
    jobs.end_pod("train-0-2", 3)
    for pod in ("train-0-0", "train-0-1", "train-0-3"):
        jobs.end_pod(pod, 0)
    assert example.shown(jobs.reaches("Succeeded")) == example.status


def test_case_32_only_the_slice_that_failed_restarts(jobs: Jobs) -> None:
    example = examples()["One slice of two restarts"]
    jobs.create(**example.spec)
    jobs.reaches("Running")
    before = jobs.pods()
    jobs.end_pod("train-1-3", 1)
    status = jobs.reaches("Running", restarts=1)
    after = jobs.pods()
    assert uids(of_slice(after, 0)) == uids(of_slice(before, 0))
    assert not uids(of_slice(after, 1)) & uids(of_slice(before, 1))
    assert example.shown(status) == example.status
    assert "lastFailure" not in status["slices"][0]


def test_slices_restart_together_by_default(jobs: Jobs) -> None:
    jobs.create(tpu=TWO_SLICES)
    jobs.reaches("Running")
    before = jobs.pods()
    jobs.end_pod("train-1-3", 1)
    status = jobs.reaches("Running", restarts=1)
    assert not uids(before) & uids(jobs.pods())
    assert [each["attempt"] for each in status["slices"]] == [1, 1]


def test_case_33_restarting_from_the_failure_until_all_pods_are_made_anew(jobs: Jobs, kube: Kube) -> None:
    jobs.create()
    jobs.reaches("Running")
    assert jobs.condition("Restarting") == {}
    kube.patch(POD, "train-0-3", jobs.namespace, HOLD)
    jobs.end_pod("train-0-2", 1)
    wait_for(lambda: set(jobs.pods()) == {"train-0-3"}, "the free old pods to go")
    began = jobs.condition("Restarting")
    assert (began["status"], began["reason"]) == ("True", "UserError")
    assert "train-0-2" in began["message"]
    kube.patch(POD, "train-0-3", jobs.namespace, RELEASE)
    jobs.reaches("Running", restarts=1)
    ended = jobs.condition("Restarting")
    assert (ended["status"], ended["reason"]) == ("False", "Restarted")
    jobs.change(ttlSecondsAfterFinished=3600)
    jobs.seen()
    assert jobs.condition("Restarting") == ended


@pytest.mark.parametrize("scope", ["Job", "Slice"])
def test_case_39_a_deleted_host_takes_its_gang_along_and_an_event_names_it(
    jobs: Jobs, kube: Kube, scope: str
) -> None:
    jobs.create(tpu=TWO_SLICES, failurePolicy={"restartScope": scope})
    jobs.reaches("Running")
    before = jobs.pods()
    kube.delete(POD, "train-1-1", jobs.namespace)
    jobs.reaches("Running", restarts=1)
    kept = uids(before) & uids(jobs.pods())
    assert kept == (uids(of_slice(before, 0)) if scope == "Slice" else set())
    assert len(jobs.pods()) == 8
    told = [e["note"] for e in kube.list(EVENT, jobs.namespace) if e["reason"] == "PodDeleted"]
    assert len(told) == 1
    assert "PodDeleted in pod train-1-1" in told[0]


def test_case_41_all_pods_deleted_together_are_one_restart(jobs: Jobs, kube: Kube) -> None:
    jobs.create()
    for times in (1, 2):
        jobs.reaches("Running", restarts=times - 1)
        for pod in jobs.pods():
            kube.delete(POD, pod, jobs.namespace)
        jobs.reaches("Running", restarts=times)
        assert attempts(jobs.pods()) == {str(times)}
    assert restarts(jobs.status()) == (2, 0, {"PodDeleted": 2})


def test_case_41_one_pod_after_the_other_is_a_restart_each(jobs: Jobs, kube: Kube) -> None:
    jobs.create()
    jobs.reaches("Running")
    for host in range(2):
        kube.delete(POD, f"train-0-{host}", jobs.namespace)
        jobs.reaches("Running", restarts=host + 1)
    assert restarts(jobs.status()) == (2, 0, {"PodDeleted": 2})


def test_hosts_that_fail_together_have_one_root_cause_and_cost_one_restart(jobs: Jobs, kube: Kube) -> None:
    example = examples()["Two hosts fail together"]
    jobs.create(**example.spec)
    jobs.reaches("Running")
    for host in (0, 2):
        kube.patch(POD, f"train-0-{host}", jobs.namespace, HOLD)
    # Kubelets report as they please: what comes to light last happened first.
    first = time.time()
    jobs.end_pod("train-0-0", 3, after=0.3)
    jobs.reaches("Restarting", restarts=1)
    assert jobs.status()["lastFailure"]["host"] == 0
    jobs.end_pod("train-0-2", 1, after=first - time.time(), error="the loss is not a number")
    wait_for(lambda: jobs.status()["lastFailure"]["host"] == 2, "the root cause to be corrected")
    for host in (0, 2):
        kube.patch(POD, f"train-0-{host}", jobs.namespace, RELEASE)
    assert example.shown(jobs.reaches("Running", restarts=1)) == example.status


def test_a_late_failure_of_an_old_attempt_costs_nothing(jobs: Jobs, kube: Kube) -> None:
    example = examples()["A late failure of an old attempt"]
    jobs.create(**example.spec)
    jobs.reaches("Running")
    kube.patch(POD, "train-0-3", jobs.namespace, HOLD)
    jobs.end_pod("train-0-2", 1)
    wait_for(lambda: set(jobs.pods()) == {"train-0-3"}, "the free old pods to go")
    jobs.end_pod("train-0-3", 1, after=5)
    kube.patch(POD, "train-0-3", jobs.namespace, RELEASE)
    assert example.shown(jobs.reaches("Running", restarts=1)) == example.status


@pytest.mark.parametrize("late", [False, True])
def test_an_error_that_a_preemption_led_to_is_not_charged(
    jobs: Jobs, kube: Kube, operator: Operator, *, late: bool
) -> None:
    """Also if all of it has happened, and the pod has gone, before the operator gets to look."""
    example = examples()["An error that follows a preemption"]
    jobs.create(**example.spec)
    jobs.reaches("Running")
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    target["lastTransitionTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if late:
        operator.signal(signal.SIGSTOP)
    kube.patch(POD, "train-0-2", jobs.namespace, HOLD)
    jobs.pod_status("train-0-2", conditions=[target])
    kube.delete(POD, "train-0-2", jobs.namespace)
    jobs.end_pod("train-0-0", 1)
    if not late:
        jobs.restarted(1)
    kube.patch(POD, "train-0-2", jobs.namespace, RELEASE)
    if late:
        wait_for(lambda: kube.get(POD, "train-0-2", jobs.namespace) is None, "the pod to go")
        operator.signal(signal.SIGCONT)
    assert example.shown(jobs.reaches("Running", restarts=1)) == example.status


def resize(jobs: Jobs, slices: int) -> dict[str, Object]:
    """Change the number of slices the way that is allowed, by way of a suspension."""
    jobs.change(suspend=True)
    jobs.reaches("Suspended")
    jobs.change(tpu={"slices": slices}, suspend=False)
    jobs.reaches("Running")
    return jobs.pods()


def places(pods: dict[str, Object]) -> set[tuple[int, int]]:
    """Slice and host of each pod."""
    labels = [pod["metadata"]["labels"] for pod in pods.values()]
    return {(int(each["tpu-operator.dev/slice"]), int(each["tpu-operator.dev/host"])) for each in labels}


def grid(slices: int, hosts: int) -> set[tuple[int, int]]:
    return {(index, host) for index in range(slices) for host in range(hosts)}


def test_case_37_slices_are_whole_whatever_their_number(jobs: Jobs, kube: Kube) -> None:
    jobs.create(tpu=TWO_SLICES, failurePolicy={"restartScope": "Slice"})
    jobs.reaches("Running")
    assert places(jobs.pods()) == grid(2, 4)
    assert places(resize(jobs, 1)) == grid(1, 4)
    before = resize(jobs, 3)
    assert len(before) == 12
    kube.delete(POD, "train-1-2", jobs.namespace)
    jobs.reaches("Running", restarts=1)
    after = jobs.pods()
    assert places(after) == grid(3, 4)
    assert uids(before) & uids(after) == uids(of_slice(before, 0)) | uids(of_slice(before, 2))


@pytest.fixture
def single_hosts(kube: Kube) -> Iterator[None]:
    """Five node pools of one host each."""
    made = [fake.node(index) for index in range(5)]
    for index, node in enumerate(made):
        labels = node["metadata"]["labels"]
        node["metadata"]["name"] = labels["kubernetes.io/hostname"] = f"single-{index}"
        labels |= {tpu.POOL: f"single-{index}", "cloud.google.com/gke-tpu-topology": "2x2"}
        kube.create(NODE, node)
        # New nodes get a not-ready taint, which the controller manager takes its time to take off.
        kube.patch(NODE, f"single-{index}", "", {"spec": {"taints": [tpu.TAINT]}})
    yield
    for node in made:
        kube.delete(NODE, node["metadata"]["name"])


@pytest.mark.usefixtures("single_hosts")
def test_case_38_a_slice_of_one_host_comes_back_under_its_own_index(jobs: Jobs, kube: Kube) -> None:
    jobs.create(
        tpu={"accelerator": "v5e", "topology": "2x2", "slices": 3}, failurePolicy={"restartScope": "Slice"}
    )
    jobs.reaches("Running")
    before = jobs.pods()
    kube.delete(POD, "train-1-0", jobs.namespace)
    jobs.reaches("Running", restarts=1)
    assert uids(before) - uids(jobs.pods()) == uids(of_slice(before, 1))
    assert places(jobs.pods()) == grid(3, 1)
    assert places(resize(jobs, 4)) == grid(4, 1)

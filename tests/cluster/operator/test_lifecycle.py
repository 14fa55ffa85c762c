"""TPUJobs against a real API server, scheduler and garbage collector; kwok plays the nodes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.cluster.operator.jobs import HOLD, RELEASE, attempts, restarts, uids
from tests.docs import examples
from tests.kube import EVENT, NODE, POD, QUOTA, SERVICE, TPUJOB, wait_for
from tpu_operator.core.numbers import quantity
from tpu_operator.core.quota import demand

if TYPE_CHECKING:
    from tests.cluster.conftest import Operator
    from tests.cluster.operator.jobs import Jobs
    from tests.kube import Kube, Object

pytestmark = pytest.mark.usefixtures("operator")


def test_the_smallest_job_runs(jobs: Jobs) -> None:
    jobs.create()
    status = jobs.reaches("Running")
    assert status["ready"] == "4/4"
    assert status["slices"][0]["nodePool"].startswith("fake-pool-")
    assert set(jobs.pods()) == {f"train-0-{host}" for host in range(4)}


def test_case_3_one_headless_service_owned_by_the_job(jobs: Jobs, kube: Kube) -> None:
    uid = jobs.create()["metadata"]["uid"]
    jobs.reaches("Running")
    (service,) = kube.list(SERVICE, jobs.namespace)
    assert service["metadata"]["name"] == "train"
    assert service["metadata"]["ownerReferences"][0]["uid"] == uid
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True


def test_case_4_a_deleted_service_comes_back_without_touching_pods(jobs: Jobs, kube: Kube) -> None:
    jobs.create()
    jobs.reaches("Running")
    before = uids(jobs.pods())
    old = kube.list(SERVICE, jobs.namespace)[0]["metadata"]["uid"]
    kube.delete(SERVICE, "train", jobs.namespace)
    new = wait_for(lambda: kube.get(SERVICE, "train", jobs.namespace), "the Service to come back")
    assert new["metadata"]["uid"] != old
    assert uids(jobs.pods()) == before
    assert jobs.status()["restarts"]["total"] == 0


def test_a_service_changed_by_hand_is_put_right(jobs: Jobs, kube: Kube) -> None:
    jobs.create()
    jobs.reaches("Running")
    kube.patch(SERVICE, "train", jobs.namespace, {"spec": {"publishNotReadyAddresses": False}})
    wait_for(
        lambda: (kube.get(SERVICE, "train", jobs.namespace) or {})["spec"].get("publishNotReadyAddresses"),
        "the Service to be repaired",
    )


def test_all_hosts_done_is_success(jobs: Jobs) -> None:
    jobs.create()
    jobs.reaches("Running")
    for pod in jobs.pods():
        jobs.end_pod(pod, 0)
    assert jobs.reaches("Succeeded")["completionTime"]
    assert len(jobs.pods()) == 4


def test_case_26_a_failed_host_without_budget_fails_the_job_once(jobs: Jobs, kube: Kube) -> None:
    jobs.create(failurePolicy={"maxRestarts": 0})
    jobs.reaches("Running")
    kube.patch(POD, "train-0-2", jobs.namespace, HOLD)
    jobs.end_pod("train-0-0", 1, after=60)
    jobs.end_pod("train-0-2", 1)
    kube.patch(POD, "train-0-2", jobs.namespace, RELEASE)
    status = jobs.reaches("Failed")
    failure = status["lastFailure"]
    assert (failure["slice"], failure["host"], failure["exitCode"], failure["cause"]) == (
        0,
        2,
        1,
        "UserError",
    )
    assert "train-0-2" in status["message"]
    wait_for(
        lambda: {pod["status"]["phase"] for pod in jobs.pods().values()} == {"Failed"},
        "the survivors to be gone",
    )
    reasons = [event["reason"] for event in kube.list(EVENT, jobs.namespace)]
    assert reasons.count("MaxRestartsReached") == 1


def test_case_27_restarts_up_to_the_limit_and_no_further(jobs: Jobs) -> None:
    example = examples()["One host fails twice, with one restart allowed"]
    jobs.create(**example.spec)
    jobs.reaches("Running")
    before = uids(jobs.pods())
    jobs.end_pod("train-0-2", 1)
    jobs.reaches("Running", restarts=1)
    assert attempts(jobs.pods()) == {"1"}
    assert not before & uids(jobs.pods())
    jobs.end_pod("train-0-2", 1)
    assert example.shown(jobs.reaches("Failed")) == example.status


def test_case_28_no_new_pod_while_an_old_one_is_held(jobs: Jobs, kube: Kube) -> None:
    jobs.create()
    jobs.reaches("Running")
    kube.patch(POD, "train-0-3", jobs.namespace, HOLD)
    jobs.end_pod("train-0-2", 1)
    wait_for(lambda: set(jobs.pods()) == {"train-0-3"}, "the free old pods to go")
    assert jobs.status()["phase"] == "Restarting"
    # A pass provoked now has every reason to create but the held pod.
    kube.delete(SERVICE, "train", jobs.namespace)
    wait_for(lambda: kube.get(SERVICE, "train", jobs.namespace), "a pass")
    assert attempts(jobs.pods()) == {"0"}
    kube.patch(POD, "train-0-3", jobs.namespace, RELEASE)
    jobs.reaches("Running", restarts=1)
    assert attempts(jobs.pods()) == {"1"}


def test_a_pod_deleted_by_hand_is_one_uncharged_restart(jobs: Jobs, kube: Kube) -> None:
    jobs.create()
    jobs.reaches("Running")
    kube.delete(POD, "train-0-1", jobs.namespace)
    assert restarts(jobs.reaches("Running", restarts=1)) == (1, 0, {"PodDeleted": 1})


def test_delete_and_apply_again_leaves_nothing_behind(jobs: Jobs, kube: Kube) -> None:
    for round_ in range(2):
        uid = jobs.create()["metadata"]["uid"]
        jobs.reaches("Running")
        owners = {pod["metadata"]["ownerReferences"][0]["uid"] for pod in jobs.pods().values()}
        assert owners == {uid}, f"round {round_}"
        kube.delete(TPUJOB, "train", jobs.namespace)
    wait_for(lambda: not jobs.pods() and not kube.list(SERVICE, jobs.namespace), "everything to be gone")
    assert jobs.get() == {}


def test_a_foreground_delete_ends(jobs: Jobs, kube: Kube) -> None:
    jobs.create()
    jobs.reaches("Running")
    kube.delete(TPUJOB, "train", jobs.namespace, propagationPolicy="Foreground")
    wait_for(lambda: not jobs.get() and not jobs.pods(), "the job and its pods to be gone")


def test_slices_get_a_pool_each(jobs: Jobs) -> None:
    jobs.create(tpu={"accelerator": "v5e", "topology": "4x4", "slices": 2})
    status = jobs.reaches("Running")
    assert status["ready"] == "8/8"
    assert len({s["nodePool"] for s in status["slices"]}) == 2


def quota(**hard: str) -> Object:
    return {"metadata": {"name": "team"}, "spec": {"hard": hard}}


def test_a_quota_that_is_too_small_is_named_and_no_part_of_the_gang_is_made(jobs: Jobs, kube: Kube) -> None:
    kube.create(QUOTA, quota(**{"requests.google.com/tpu": "8"}), jobs.namespace)
    wait_for(
        lambda: (kube.get(QUOTA, "team", jobs.namespace) or {}).get("status", {}).get("hard"),
        "the quota to be in force",
    )
    jobs.create()
    assert jobs.blocked("QuotaExceeded") == (
        "ResourceQuota team has 8 of 8 requests.google.com/tpu left, 16 are needed at once; "
        "it has to be raised"
    )
    assert not jobs.pods()
    kube.patch(QUOTA, "team", jobs.namespace, {"spec": {"hard": {"requests.google.com/tpu": "16"}}})
    assert "pending" not in jobs.reaches("Running")


def test_the_server_counts_pods_of_a_gang_as_the_operator_does(jobs: Jobs, kube: Kube) -> None:
    """Of what is in the template, with everything that Kubernetes counts in a way of its own."""
    small: Object = {"requests": {"cpu": "250m"}, "limits": {"memory": "64Mi"}}
    large: Object = {"requests": {"cpu": "3", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
    template = {
        "initContainers": [
            {"name": "proxy", "image": "i", "restartPolicy": "Always", "resources": small},
            {"name": "fetch", "image": "i", "resources": large},
        ],
        "containers": [
            {"name": "main", "resources": small},
            {"name": "more", "image": "i", "resources": small},
        ],
        "priorityClassName": "system-cluster-critical",
    }
    names = ("pods", "count/pods", "cpu", "requests.cpu", "memory", "requests.memory", "limits.memory")
    all_of = dict.fromkeys((*names, "requests.google.com/tpu"), "1Ti")
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": ["system-cluster-critical"]}
    kube.create(QUOTA, quota(**all_of), jobs.namespace)
    selective = {"hard": {"pods": "1k"}, "scopeSelector": {"matchExpressions": [scope]}}
    kube.create(QUOTA, {"metadata": {"name": "critical"}, "spec": selective}, jobs.namespace)
    jobs.create(template={"spec": template})
    jobs.reaches("Running")
    counted = demand(jobs.pods().values())

    def used(name: str) -> dict[str, int]:
        found = (kube.get(QUOTA, name, jobs.namespace) or {})["status"]["used"]
        return {resource: int(1000 * (quantity(amount) or 0)) for resource, amount in found.items()}

    expected = {use.resource: amount for use, amount in counted.items() if use.resource in all_of}
    assert expected.keys() == all_of.keys()
    wait_for(lambda: used("team") == expected, f"the server to count {expected}")
    wait_for(lambda: used("critical") == {"pods": 4000}, "the quota of a PriorityClass to count all pods")


def test_of_two_jobs_with_a_quota_for_one_the_second_runs_after_the_first(jobs: Jobs, kube: Kube) -> None:
    kube.create(QUOTA, quota(**{"requests.google.com/tpu": "16"}), jobs.namespace)
    wait_for(
        lambda: (kube.get(QUOTA, "team", jobs.namespace) or {}).get("status", {}).get("hard"),
        "the quota to be in force",
    )
    for name in ("one", "two"):
        jobs.create(name)
    running = wait_for(
        lambda: [name for name in ("one", "two") if jobs.status(name).get("phase") == "Running"],
        "one of them to run",
    )
    (other,) = {"one", "two"} - set(running)
    jobs.blocked("QuotaExceeded", other)
    assert not jobs.pods(other)
    for pod in jobs.pods(running[0]):
        jobs.end_pod(pod, 0)
    jobs.reaches("Running", other)


def test_what_the_server_refuses_is_said_and_tried_again(jobs: Jobs, kube: Kube) -> None:
    # Of what a LimitRange adds the operator knows nothing beforehand.
    default = {"limits": [{"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "1"}}]}
    kube.create(("v1", "LimitRange"), {"metadata": {"name": "cpus"}, "spec": default}, jobs.namespace)
    kube.create(QUOTA, quota(**{"requests.cpu": "0"}), jobs.namespace)
    jobs.create()
    assert "exceeded quota: team" in jobs.blocked("QuotaExceeded")
    kube.delete(QUOTA, "team", jobs.namespace)
    assert "pending" not in jobs.reaches("Running")


def test_a_service_of_somebody_else_is_not_adopted(jobs: Jobs, kube: Kube) -> None:
    ports = [{"port": 80}]
    kube.create(SERVICE, {"metadata": {"name": "train"}, "spec": {"ports": ports}}, jobs.namespace)
    jobs.create()
    assert "Service" in jobs.blocked("CreateRefused")
    assert not jobs.pods()
    assert "ownerReferences" not in (kube.get(SERVICE, "train", jobs.namespace) or {})["metadata"]


def test_no_matching_nodes_is_said(jobs: Jobs) -> None:
    jobs.create(tpu={"accelerator": "v6e", "topology": "4x4"})
    assert "gke-tpu-accelerator=tpu-v6e-slice" in jobs.blocked("NoMatchingNodes")
    assert jobs.status()["pending"]["reason"] == "NoMatchingNodes"


def test_who_holds_the_node_pools_is_said_and_how_many_hosts_are_free(jobs: Jobs, kube: Kube) -> None:
    jobs.create("big", tpu={"accelerator": "v5e", "topology": "4x4", "slices": 3})
    jobs.reaches("Running", "big")
    jobs.create("late", tpu={"accelerator": "v5e", "topology": "4x4", "slices": 2})
    assert f" by {jobs.namespace}/big" in jobs.blocked("CapacityInUse", "late")
    full = "0 of 16 hosts of the kind are free, 4 in one node pool are needed; held are "
    wait_for(
        lambda: (jobs.status("late").get("pending") or {}).get("message", "").startswith(full),
        "the hosts to be counted when one of its slices has its own",
    )
    kube.delete(TPUJOB, "big", jobs.namespace)
    assert "pending" not in jobs.reaches("Running", "late")


def test_hosts_that_are_cordoned_are_said(jobs: Jobs, kube: Kube) -> None:
    cordoned = [f"fake-node-{4 * index}" for index in range(4)]
    try:
        for name in cordoned:
            kube.patch(NODE, name, "", {"spec": {"unschedulable": True}})
        jobs.create()
        message = jobs.blocked("Unschedulable")
        assert message.startswith("a slice needs 4 hosts of one node pool at the same time, and fake-pool-")
        assert re.search(r"has 3 that pods may use: fake-node-\d+ is cordoned$", message)
    finally:
        for name in cordoned:
            kube.patch(NODE, name, "", {"spec": {"unschedulable": None}})
    jobs.reaches("Running")


def test_suspend_and_resume(jobs: Jobs, kube: Kube) -> None:
    jobs.create(suspend=True)
    jobs.reaches("Suspended")
    assert not jobs.pods()
    kube.patch(TPUJOB, "train", jobs.namespace, {"spec": {"suspend": False}})
    jobs.reaches("Running")
    kube.patch(TPUJOB, "train", jobs.namespace, {"spec": {"suspend": True}})
    jobs.reaches("Suspended")
    wait_for(lambda: not jobs.pods(), "the pods to go")
    kube.patch(TPUJOB, "train", jobs.namespace, {"spec": {"suspend": False}})
    assert jobs.reaches("Running")["restarts"]["total"] == 0
    assert attempts(jobs.pods()) == {"1"}


def test_a_finished_job_is_deleted_after_its_time(jobs: Jobs) -> None:
    jobs.create(ttlSecondsAfterFinished=1)
    jobs.reaches("Running")
    for pod in jobs.pods():
        jobs.end_pod(pod, 0)
    wait_for(lambda: not jobs.get() and not jobs.pods(), "the job to be deleted")


def test_status_is_quiet_when_nothing_happens(jobs: Jobs, kube: Kube) -> None:
    jobs.create()
    jobs.reaches("Running")
    version = jobs.get()["metadata"]["resourceVersion"]
    # A pass that finds nothing to do must write nothing: the Service's return proves that one took place.
    kube.delete(SERVICE, "train", jobs.namespace)
    wait_for(lambda: kube.get(SERVICE, "train", jobs.namespace), "a pass")
    assert jobs.get()["metadata"]["resourceVersion"] == version


def test_events_tell_the_story(jobs: Jobs, kube: Kube) -> None:
    jobs.create()
    jobs.reaches("Running")
    wait_for(
        lambda: "AllHostsReady" in {event["reason"] for event in kube.list(EVENT, jobs.namespace)},
        "the event of the start",
    )


def test_health_and_metrics(operator: Operator, jobs: Jobs) -> None:
    jobs.create()
    jobs.reaches("Running")
    assert operator.http(operator.health_port, "/healthz")[0] == 200
    status, text = operator.http(operator.metrics_port, "/metrics")
    assert status == 200
    for name in (
        "reconcile_duration_seconds_bucket",
        "queue_depth",
        "watch_age_seconds",
        "api_requests_total",
        "loop_lag_seconds",
        "leader 1.0",
        f'job_phase{{name="train",namespace="{jobs.namespace}",phase="Running"}} 1.0',
        'slice_chips{state="Running"} 16.0',
        "gang_start_seconds_count",
        f'job_chip_seconds_total{{name="train",namespace="{jobs.namespace}",state="running"}}',
    ):
        assert f"tpu_operator_{name}" in text

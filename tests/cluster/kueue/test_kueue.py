"""Jobs in queues of the real Kueue: admitted, preempted, evicted, requeued."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.inference.models import Models, image, role
from tests.cluster.kueue.kueue import CHECK, WORKLOAD, Queue, priority
from tests.cluster.operator.jobs import attempts, restarts, uids
from tests.docs import ROOT, yaml_blocks
from tests.kube import SERVICE, TPUJOB, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cluster.kueue.kueue import Kueue
    from tests.cluster.operator.jobs import Jobs
    from tests.kube import Kube, Object

    MakeQueue = Callable[..., Queue]

pytestmark = pytest.mark.usefixtures("operator")
PAGE = ROOT / "docs" / "queueing.md"
TEAM = {"queueName": "team"}
POOL = "cloud.google.com/gke-nodepool"
UNCHARGED: tuple[int, int, dict[str, int]] = (0, 0, {})


def create(jobs: Jobs, name: str = "train", labels: dict[str, str] | None = None, **spec: Any) -> None:
    """Make a job in the queue `team`."""
    body: Object = {
        "tpu": {"accelerator": "v5e", "topology": "4x4"},
        "run": {"command": ["python", "train.py"]},
        "scheduling": TEAM,
    } | spec
    jobs.kube.create(
        TPUJOB, {"metadata": {"name": name, "labels": labels or {}}, "spec": body}, jobs.namespace
    )


def says(jobs: Jobs, text: str, name: str = "train") -> Object:
    """Wait until a job says that of its admission; its status."""

    def told() -> Object | None:
        status = jobs.status(name)
        pending = status.get("pending", {})
        there = pending.get("reason") == "AwaitingAdmission" and text in pending["message"]
        return status if there else None

    try:
        return wait_for(told, f"{name} to say {text!r}", 60)
    except AssertionError as error:
        raise AssertionError(f"{error}; it says {jobs.status(name)}") from None


def succeed(jobs: Jobs, name: str) -> None:
    """End all of a job's pods well."""
    for pod in jobs.pods(name):
        jobs.end_pod(pod, 0)
    jobs.reaches("Succeeded", name)


def test_without_kueue_it_says_what_to_install_and_finds_it_later(
    jobs: Jobs, kube: Kube, request: pytest.FixtureRequest
) -> None:
    create(jobs)
    says(jobs, "does not serve kueue.x-k8s.io/v1beta2: install Kueue")
    assert not jobs.pods()
    assert not kube.list(SERVICE, jobs.namespace)
    make_queue: MakeQueue = request.getfixturevalue("make_queue")
    says(jobs, "LocalQueue team doesn't exist")
    make_queue()
    assert "pending" not in jobs.reaches("Running")


def test_quota_for_one_of_two_runs_one_after_the_other(jobs: Jobs, kube: Kube, make_queue: MakeQueue) -> None:
    queue = make_queue(chips=16)
    create(jobs, "first")
    jobs.reaches("Running", "first")
    create(jobs, "second")
    status = says(jobs, "insufficient unused quota for google.com/tpu", "second")
    assert status["phase"] == "Pending"
    assert "startTime" not in status
    assert not jobs.pods("second")
    assert {service["metadata"]["name"] for service in kube.list(SERVICE, jobs.namespace)} == {"first"}
    assert queue.condition("PodsReady", "first")["status"] == "True"
    succeed(jobs, "first")
    jobs.reaches("Running", "second")
    assert queue.condition("Finished", "first")["reason"] == "Succeeded"
    assert restarts(jobs.status("second")) == UNCHARGED


def test_preemption_by_priority_suspends_and_resumes_without_a_charge(
    jobs: Jobs, kube: Kube, make_queue: MakeQueue
) -> None:
    queue = make_queue(chips=16)
    priority(kube, "low", 1)
    priority(kube, "high", 1000)
    create(jobs, "modest", {"kueue.x-k8s.io/priority-class": "low"})
    jobs.reaches("Running", "modest")
    create(jobs, "urgent", {"kueue.x-k8s.io/priority-class": "high"})
    jobs.reaches("Running", "urgent")
    assert queue.condition("Evicted", "modest")["reason"] == "Preempted"
    status = jobs.reaches("Suspended", "modest")
    assert jobs.condition("Suspended", "modest")["reason"] == "Preempted"
    assert status["reason"] == "AwaitingAdmission"
    assert not jobs.pods("modest")
    says(jobs, "insufficient unused quota", "modest")
    succeed(jobs, "urgent")
    status = jobs.reaches("Running", "modest")
    assert restarts(status) == UNCHARGED
    assert attempts(jobs.pods("modest")) == {"1"}
    assert jobs.condition("Suspended", "modest")["status"] == "False"


def test_eviction_by_people_ends_when_they_want(jobs: Jobs, make_queue: MakeQueue) -> None:
    queue = make_queue()
    create(jobs)
    jobs.reaches("Running")
    queue.activate(False)
    jobs.reaches("Suspended")
    says(jobs, "spec.active of Workload tpujob-train is false")
    wait_for(lambda: not jobs.pods(), "the pods to go")
    wait_for(lambda: "admission" not in queue.workload()["status"], "the quota to be given back")
    queue.activate(True)
    assert restarts(jobs.reaches("Running")) == UNCHARGED
    queue.stop("HoldAndDrain")
    jobs.reaches("Suspended")
    says(jobs, "is inactive")
    queue.stop("None")
    assert restarts(jobs.reaches("Running")) == UNCHARGED


def test_a_failure_restarts_within_the_admission(jobs: Jobs, make_queue: MakeQueue) -> None:
    queue = make_queue()
    create(jobs)
    jobs.reaches("Running")
    before = queue.workload()["metadata"]["uid"]
    jobs.end_pod("train-0-1", 1)
    jobs.reaches("Running", restarts=1)
    assert queue.workload()["metadata"]["uid"] == before
    wait_for(lambda: queue.condition("PodsReady")["reason"] == "Recovered", "PodsReady again")


def test_a_flavor_decides_about_the_nodes(jobs: Jobs, make_queue: MakeQueue) -> None:
    toleration = {"key": "example.com/reserved", "operator": "Exists"}
    make_queue(flavor={"nodeLabels": {POOL: "fake-pool-2"}, "tolerations": [toleration]})
    create(jobs)
    status = jobs.reaches("Running")
    assert status["slices"][0]["nodePool"] == "fake-pool-2"
    for pod in jobs.pods().values():
        assert pod["spec"]["nodeSelector"][POOL] == "fake-pool-2"
        assert toleration in pod["spec"]["tolerations"]
        assert pod["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "workers"


def test_the_head_is_a_set_of_its_own(jobs: Jobs, make_queue: MakeQueue) -> None:
    queue = make_queue()
    create(jobs, head={"spec": {"containers": [{"name": "driver", "image": "example"}]}})
    wait_for(lambda: "train-head" in jobs.pods(), "the head to be made")
    sets = {each["name"]: each["count"] for each in queue.workload()["spec"]["podSets"]}
    assert sets == {"workers": 4, "head": 1}


@pytest.fixture
def check(kube: Kube, kueue: object, namespace: str) -> str:
    """An admission check that the test decides about."""
    name = f"{namespace}-check"
    kube.create(CHECK, {"metadata": {"name": name}, "spec": {"controllerName": "example.com/check"}})
    active = {
        "type": "Active",
        "status": "True",
        "reason": "Active",
        "message": "",
        "lastTransitionTime": "2026-11-30T12:00:00Z",
    }
    kube.patch_status(CHECK, name, "", {"conditions": [active]})
    return name


def test_case_66_an_admission_check_gates_and_adds_to_pods(
    jobs: Jobs, kube: Kube, make_queue: MakeQueue, check: str
) -> None:
    queue = make_queue(checks=(check,))
    create(jobs)
    says(jobs, f"quota is reserved, the admission check {check} is Pending")
    assert not jobs.pods()

    def decide(state: str, **more: Any) -> None:
        told = {
            "name": check,
            "state": state,
            "message": f"it is {state}",
            "lastTransitionTime": "2026-11-30T12:00:00Z",
            **more,
        }
        kube.patch_status(WORKLOAD, "tpujob-train", jobs.namespace, {"admissionChecks": [told]})

    update = {
        "name": "workers",
        "annotations": {"example.com/slice": "a"},
        "nodeSelector": {POOL: "fake-pool-1"},
    }
    decide("Ready", podSetUpdates=[update])
    jobs.reaches("Running")
    for pod in jobs.pods().values():
        assert pod["metadata"]["annotations"]["example.com/slice"] == "a"
        assert pod["spec"]["nodeSelector"][POOL] == "fake-pool-1"
    decide("Retry")
    jobs.reaches("Suspended")
    says(jobs, f"quota is reserved, the admission check {check} is Pending")
    assert restarts(jobs.status()) == UNCHARGED
    decide("Rejected")
    says(jobs, "spec.active of Workload tpujob-train is false")
    assert queue.workload()["spec"]["active"] is False


def test_finished_slices_give_their_quota_to_others(jobs: Jobs, make_queue: MakeQueue) -> None:
    queue = make_queue(chips=32)
    two = {"accelerator": "v5e", "topology": "4x4", "slices": 2}
    create(jobs, "wide", tpu=two, failurePolicy={"restartScope": "Slice"})
    jobs.reaches("Running", "wide")
    create(jobs, "narrow")
    says(jobs, "insufficient unused quota", "narrow")
    for host in range(4):
        jobs.end_pod(f"wide-0-{host}", 0)
    jobs.reaches("Running", "narrow")
    assert queue.workload("wide")["status"]["reclaimablePods"] == [{"name": "workers", "count": 4}]


def test_the_users_own_suspension_leaves_the_queue(jobs: Jobs, make_queue: MakeQueue) -> None:
    queue = make_queue()
    create(jobs, suspend=True)
    jobs.reaches("Suspended")
    assert not queue.workload()
    jobs.kube.patch(TPUJOB, "train", jobs.namespace, {"spec": {"suspend": False}})
    jobs.reaches("Running")
    jobs.kube.patch(TPUJOB, "train", jobs.namespace, {"spec": {"suspend": True}})
    jobs.reaches("Suspended")
    wait_for(lambda: not jobs.pods() and not queue.workload(), "pods and Workload to go")
    jobs.kube.patch(TPUJOB, "train", jobs.namespace, {"spec": {"suspend": False}})
    jobs.reaches("Running")


def test_a_job_that_waits_may_ask_for_less(jobs: Jobs, make_queue: MakeQueue) -> None:
    queue = make_queue(chips=16)
    create(jobs, tpu={"accelerator": "v5e", "topology": "4x4", "slices": 2})
    says(jobs, "insufficient quota")
    assert queue.workload()["spec"]["podSets"][0]["count"] == 8
    jobs.kube.patch(TPUJOB, "train", jobs.namespace, {"spec": {"tpu": {"slices": 1}}})
    jobs.reaches("Running")
    assert queue.workload()["spec"]["podSets"][0]["count"] == 4


def test_a_workload_deleted_by_hand_is_asked_for_again(jobs: Jobs, kube: Kube, make_queue: MakeQueue) -> None:
    queue = make_queue()
    create(jobs)
    jobs.reaches("Running")
    before = queue.workload()["metadata"]["uid"]
    kube.delete(WORKLOAD, "tpujob-train", jobs.namespace)
    wait_for(lambda: queue.workload().get("metadata", {}).get("uid") not in {None, before}, "a new Workload")
    wait_for(lambda: queue.condition("Admitted").get("status") == "True", "admission")
    assert restarts(jobs.reaches("Running")) == UNCHARGED


def test_nothing_is_left_of_a_deleted_job(jobs: Jobs, kube: Kube, make_queue: MakeQueue) -> None:
    queue = make_queue()
    create(jobs)
    jobs.reaches("Running")
    kube.delete(TPUJOB, "train", jobs.namespace)
    wait_for(lambda: not jobs.pods() and not queue.workload(), "pods and Workload to go")


def test_a_workload_of_somebody_else_is_left_alone(jobs: Jobs, kube: Kube, make_queue: MakeQueue) -> None:
    queue = make_queue()
    template = {"spec": {"containers": [{"name": "main", "image": "example"}], "restartPolicy": "Never"}}
    body = {"podSets": [{"name": "main", "count": 1, "template": template}]}
    kube.create(WORKLOAD, {"metadata": {"name": "tpujob-train"}, "spec": body}, jobs.namespace)
    create(jobs)
    assert "exists and belongs to something else" in jobs.blocked("CreateRefused")
    assert not jobs.pods()
    kube.delete(WORKLOAD, "tpujob-train", jobs.namespace)
    jobs.reaches("Running")
    assert queue.workload()["metadata"]["ownerReferences"]


def test_pc29_a_surge_that_kueue_does_not_admit_is_held_in_kueues_words(
    make_queue: MakeQueue, models: Models
) -> None:
    queue = make_queue(chips=16)
    queued = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}}
    models.create(roles=[role("decode", type="prefill-decode", template=queued)])
    old = models.serves()["currentRevision"]
    models.change(engine=image("2"))

    def held() -> Object | None:
        hold = models.status()["rollout"].get("hold", {})
        return hold if hold.get("gate") == "Capacity" and "Kueue" not in hold["reason"] else None

    reason = wait_for(held, "the surge to be held")["reason"]
    assert "4 pods wait for admission" in reason
    assert "LocalQueue team: couldn't assign flavors to pod set main: insufficient" in reason
    assert models.condition("Blocked")["reason"] == "AwaitingAdmission"
    queue.grant(32)
    assert models.serves()["currentRevision"] != old


def test_what_the_documentation_shows(jobs: Jobs, kube: Kube, kueue: Kueue) -> None:
    shown = [body for _, body in yaml_blocks(PAGE) if body["kind"] != "Configuration"]
    made = []
    for body in shown:
        kind = (body["apiVersion"], body["kind"])
        namespace = jobs.namespace if body["kind"] in {"LocalQueue", "TPUJob", "TPUInference"} else ""
        if body["metadata"]["name"] == "demo-today":
            jobs.reaches("Running", "nightly")
        kube.create(kind, body, namespace)
        made.append((kind, body["metadata"]["name"], namespace))
    jobs.reaches("Running", "demo-today")
    assert jobs.reaches("Suspended", "nightly")["pending"]["reason"] == "AwaitingAdmission"
    assert jobs.condition("Suspended", "nightly")["reason"] == "Preempted"
    models = Models(kube, jobs.namespace)
    wait_for(
        lambda: "LocalQueue team" in models.status().get("pending", {}).get("message", ""), "Kueue's words"
    )
    for kind, name, namespace in reversed(made):
        kube.delete(kind, name, namespace)


def test_the_chart_grants_what_was_used(kueue: Kueue) -> None:
    """After all others: the audit log against the rules that the chart has for Kueue."""
    template = (ROOT / "charts/tpu-operator/templates/_helpers.tpl").read_text()
    rules = re.findall(
        r"- apiGroups: \[kueue\.x-k8s\.io\]\n  resources: \[(.*)\]\n  verbs: \[(.*)\]", template
    )
    granted = {
        (res, verb)
        for resources, verbs in rules
        for res in resources.split(", ")
        for verb in verbs.split(", ")
    }
    assert kueue.asked_for("tpu-operator") == granted


def test_a_job_that_runs_goes_on_when_kueue_is_removed(jobs: Jobs, kube: Kube, kueue: Kueue) -> None:
    """The very last: with its CRDs, all Workloads go first, and no other can be made."""
    Queue(kube, jobs.namespace, "team").create(16)
    create(jobs)
    jobs.reaches("Running")
    before = uids(jobs.pods())
    kueue.stop()
    create(jobs, "later")
    says(jobs, "install Kueue", "later")
    assert uids(jobs.pods()) == before
    status = jobs.reaches("Running")
    assert restarts(status) == UNCHARGED
    assert status["slices"][0]["attempt"] == 0

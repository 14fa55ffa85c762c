"""Crashes, hand-overs and absence of the operator."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tests.cluster.conftest import SYSTEM, Operator
from tests.kube import LEASE, NAMESPACE, POD, TPUJOB, Kube, Object, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cluster.operator.jobs import Jobs

SPEC = {"tpu": {"accelerator": "v5e", "topology": "4x4"}, "run": {"command": ["python", "train.py"]}}


def create(kube: Kube, namespace: str) -> None:
    kube.create(TPUJOB, {"metadata": {"name": "train"}, "spec": SPEC}, namespace)


def holder(kube: Kube) -> str:
    lease = kube.get(LEASE, SYSTEM, SYSTEM)
    return lease["spec"].get("holderIdentity", "") if lease else ""


def leads(kube: Kube, operator: Operator) -> bool:
    return holder(kube).startswith(f"{operator.identity}_")


def running(kube: Kube, namespace: str) -> Object | None:
    job = kube.get(TPUJOB, "train", namespace) or {}
    return job if job.get("status", {}).get("phase") == "Running" else None


def test_two_replicas_have_one_leader_and_hand_over_on_sigterm(
    kube: Kube, namespace: str, make_operator: Callable[..., Operator]
) -> None:
    first = make_operator().start()
    wait_for(lambda: leads(kube, first), "the first replica to lead")
    second = make_operator().start()
    assert "tpu_operator_leader 0.0" in second.http(second.metrics_port, "/metrics")[1]
    first.signal(signal.SIGTERM)
    wait_for(lambda: leads(kube, second), "the second replica to take over")
    assert first.wait() == 0
    create(kube, namespace)
    wait_for(lambda: running(kube, namespace), "the job to run")


def test_a_killed_leader_is_succeeded_and_its_work_goes_on(
    kube: Kube, namespace: str, make_operator: Callable[..., Operator]
) -> None:
    first = make_operator().start()
    wait_for(lambda: leads(kube, first), "the first replica to lead")
    second = make_operator().start()
    create(kube, namespace)
    wait_for(lambda: kube.list(POD, namespace), "the first pod")
    first.kill()
    wait_for(lambda: leads(kube, second), "the second replica to take over")
    job = wait_for(lambda: running(kube, namespace), "the job to run")
    assert job["status"]["restarts"]["total"] == 0
    assert len(kube.list(POD, namespace)) == 4


def test_a_leader_frozen_past_its_lease_stands_by(
    kube: Kube, namespace: str, make_operator: Callable[..., Operator]
) -> None:
    first = make_operator().start()
    wait_for(lambda: leads(kube, first), "the first replica to lead")
    second = make_operator().start()
    first.signal(signal.SIGSTOP)
    wait_for(lambda: leads(kube, second), "the second replica to take over")
    first.signal(signal.SIGCONT)
    create(kube, namespace)
    wait_for(lambda: running(kube, namespace), "the job to run")
    assert leads(kube, second)
    wait_for(
        lambda: "tpu_operator_leader 0.0" in first.http(first.metrics_port, "/metrics")[1], "it to notice"
    )
    second.signal(signal.SIGTERM)
    wait_for(lambda: leads(kube, first), "the first replica to lead again")


def test_namespaces_go_without_the_operator(
    kube: Kube, namespace: str, make_operator: Callable[..., Operator]
) -> None:
    operator = make_operator().start()
    create(kube, namespace)
    wait_for(lambda: running(kube, namespace), "the job to run")
    operator.kill()
    kube.delete(NAMESPACE, namespace)
    wait_for(lambda: kube.get(NAMESPACE, namespace) is None, "the namespace to be gone")


def test_one_namespace_only(kube: Kube, namespace: str, make_operator: Callable[..., Operator]) -> None:
    kube.create(NAMESPACE, {"metadata": {"name": f"{namespace}-other"}})
    try:
        make_operator(f"--namespace={namespace}").start()
        create(kube, f"{namespace}-other")
        create(kube, namespace)
        wait_for(lambda: running(kube, namespace), "the job to run")
        assert not kube.list(POD, f"{namespace}-other")
    finally:
        kube.delete(NAMESPACE, f"{namespace}-other")


def test_case_45_the_time_to_live_counts_from_the_end_whatever_becomes_of_the_operator(
    jobs: Jobs, make_operator: Callable[..., Operator]
) -> None:
    first = make_operator().start()
    jobs.create()
    jobs.reaches("Running")
    for pod in jobs.pods():
        jobs.end_pod(pod, 0)
    ended = datetime.fromisoformat(jobs.reaches("Succeeded")["completionTime"])
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    jobs.change(ttlSecondsAfterFinished=3)
    wait_for(lambda: datetime.now(UTC) > ended + timedelta(seconds=3), "its time to be over")
    assert jobs.get()
    make_operator().start()
    wait_for(lambda: not jobs.get(), "the job to be deleted")

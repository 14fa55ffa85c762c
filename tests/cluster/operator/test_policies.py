"""When a job begins, pauses, ends and goes, and who is in charge of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.operator.jobs import uids
from tests.kube import SERVICE, TPUJOB, wait_for

if TYPE_CHECKING:
    from tests.cluster.operator.jobs import Jobs
    from tests.kube import Kube

pytestmark = pytest.mark.usefixtures("operator")
HEAD = {
    "spec": {
        "containers": [{"name": "main", "image": "example"}],
        "tolerations": [{"key": "google.com/tpu", "operator": "Exists"}],
    }
}
"""Fake nodes are all there is to run it on."""


class TestEnd:
    @pytest.mark.parametrize(("more", "leader"), [({}, "train-0-0"), ({"head": HEAD}, "train-head")])
    def test_case_43_the_leaders_success_is_the_jobs_though_others_run(
        self, jobs: Jobs, more: dict[str, Any], leader: str
    ) -> None:
        jobs.create(successPolicy="Leader", **more)
        jobs.reaches("Running")
        jobs.end_pod(leader, 0)
        jobs.reaches("Succeeded")
        wait_for(lambda: set(jobs.pods()) == {leader}, "the others to be ended")

    def test_case_43_host_0_does_not_lead_where_there_is_a_head(self, jobs: Jobs) -> None:
        jobs.create(successPolicy="Leader", head=HEAD)
        jobs.reaches("Running")
        jobs.end_pod("train-0-0", 0)
        jobs.change(ttlSecondsAfterFinished=3600)
        jobs.seen()
        assert jobs.status()["phase"] == "Running"

    def test_case_43_no_success_before_the_last_host_is_done(self, jobs: Jobs) -> None:
        jobs.create()
        jobs.reaches("Running")
        for pod in ("train-0-0", "train-0-1", "train-0-2"):
            jobs.end_pod(pod, 0)
        jobs.change(ttlSecondsAfterFinished=3600)
        jobs.seen()
        assert jobs.status()["phase"] == "Running"
        jobs.end_pod("train-0-3", 0)
        jobs.reaches("Succeeded")

    def test_case_44_a_failed_job_keeps_what_has_ended_and_ends_the_rest(self, jobs: Jobs) -> None:
        jobs.create(failurePolicy={"maxRestarts": 0})
        jobs.reaches("Running")
        jobs.end_pod("train-0-1", 0)
        jobs.end_pod("train-0-2", 1)
        jobs.reaches("Failed")
        wait_for(lambda: set(jobs.pods()) == {"train-0-1", "train-0-2"}, "the others to be ended")

    def test_case_45_no_time_to_live_is_at_once(self, jobs: Jobs) -> None:
        self.succeed(jobs, ttlSecondsAfterFinished=0)
        wait_for(lambda: not jobs.get(), "the job to be deleted")

    def test_case_45_a_shorter_time_to_live_is_heeded_after_the_end(self, jobs: Jobs) -> None:
        self.succeed(jobs, ttlSecondsAfterFinished=3600)
        jobs.reaches("Succeeded")
        jobs.change(ttlSecondsAfterFinished=1)
        wait_for(lambda: not jobs.get(), "the job to be deleted")

    def test_case_45_a_job_without_one_gets_one_after_the_end(self, jobs: Jobs) -> None:
        self.succeed(jobs)
        jobs.reaches("Succeeded")
        jobs.change(ttlSecondsAfterFinished=0)
        wait_for(lambda: not jobs.get(), "the job to be deleted")

    def succeed(self, jobs: Jobs, **spec: Any) -> None:
        jobs.create(**spec)
        jobs.reaches("Running")
        for pod in jobs.pods():
            jobs.end_pod(pod, 0)

    def test_the_deadline_ends_a_running_job(self, jobs: Jobs) -> None:
        jobs.create(activeDeadlineSeconds=1)
        status = jobs.reaches("Failed")
        assert status["reason"] == "DeadlineExceeded"
        assert status["message"] == "the job was active for longer than 1 s"
        wait_for(lambda: not jobs.pods(), "the pods to be ended")


class TestStart:
    def test_case_48_a_job_that_is_created_suspended_has_nothing(self, jobs: Jobs, kube: Kube) -> None:
        jobs.create(suspend=True, activeDeadlineSeconds=1)
        status = jobs.reaches("Suspended")
        assert jobs.condition("Suspended")["status"] == "True"
        assert (status["ready"], status["restarts"]["total"]) == ("0/4", 0)
        assert "startTime" not in status
        assert not jobs.pods()
        assert not kube.list(SERVICE, jobs.namespace)

    def test_case_6_a_changed_subdomain_is_never_mixed_with_the_old_one(self, jobs: Jobs, kube: Kube) -> None:
        jobs.create(template={"spec": {"subdomain": "old"}})
        jobs.reaches("Running")
        before = jobs.pods()
        jobs.change(template={"spec": {"subdomain": "new"}})
        wait_for(lambda: kube.get(SERVICE, "new", jobs.namespace), "the Service of that name")
        assert uids(jobs.pods()) == uids(before)
        jobs.end_pod("train-0-2", 1)
        jobs.reaches("Running", restarts=1)
        for pod in jobs.pods().values():
            assert pod["spec"]["subdomain"] == "new"
            (main,) = [c for c in pod["spec"]["containers"] if c["name"] == "main"]
            (hosts,) = [each["value"] for each in main["env"] if each["name"] == "TPU_WORKER_HOSTNAMES"]
            assert hosts == ",".join(f"train-0-{host}.new" for host in range(4))

    def test_case_68_the_status_counts_hosts_as_their_pods_are(self, jobs: Jobs) -> None:
        jobs.create(tpu={"accelerator": "v5e", "topology": "4x4", "slices": 2})
        status = jobs.reaches("Running")
        assert status["hosts"] == {"desired": 8, "ready": 8}
        unready = [{"type": kind, "status": "False"} for kind in ("Ready", "ContainersReady")]
        for pod in ("train-0-1", "train-1-1", "train-1-2"):
            jobs.pod_status(pod, conditions=[{"type": "PodScheduled", "status": "True"}, *unready])
        wait_for(lambda: jobs.status()["ready"] == "5/8", "three hosts to be missed")
        status = jobs.status()
        assert status["hosts"] == {"desired": 8, "ready": 5}
        assert [each["ready"] for each in status["slices"]] == ["3/4", "2/4"]
        assert status["phase"] == "Starting"
        jobs.end_pod("train-0-1", 0)
        wait_for(lambda: jobs.status()["ready"] == "6/8", "a host that is done to count")

    def test_case_52_a_job_of_another_controller_is_left_alone(self, jobs: Jobs, kube: Kube) -> None:
        jobs.create("theirs", managedBy="kueue.x-k8s.io/multikueue")
        told = {"phase": "Running", "ready": "4/4", "reason": "Elsewhere"}
        kube.patch_status(TPUJOB, "theirs", jobs.namespace, told)
        version = jobs.get("theirs")["metadata"]["resourceVersion"]
        # Whoever comes later is served by now.
        jobs.create("ours")
        jobs.reaches("Running", "ours")
        assert not jobs.pods("theirs")
        assert jobs.get("theirs")["metadata"]["resourceVersion"] == version
        assert jobs.status("theirs") == told

"""A job in a queue of Kueue's, step by step; with the real Kueue in tests/cluster/kueue."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests import builders
from tests.builders import NOW, RUNNING, SETTINGS, World, job, terminated
from tests.queues import NAME, TEAM, V5E, Queue, flavor, priority
from tpu_operator.core.kueue import Queues

if TYPE_CHECKING:
    from tpu_operator.core.plan import Manifest


MORE: Final = {"limits": {"memory": "1Gi"}}


def created(queue: Queue) -> Manifest:
    """The Workload that a job asks for."""
    queue.world.workloads.clear()
    (manifest,) = queue.world.plan().creates
    return manifest


class TestAsking:
    def test_nothing_but_the_workload_is_made(self) -> None:
        queue = Queue()
        assert (queue.world.pods, queue.world.services) == ({}, {})
        assert queue.world.condition("Ready") == "False/AwaitingAdmission"
        assert queue.world.job.status.phase == "Pending"
        assert queue.world.job.status.start_time is None
        assert (
            queue.pending
            == "AwaitingAdmission: LocalQueue team has not looked at the job yet: does Kueue run?"
        )

    def test_the_workload(self) -> None:
        queue = Queue(tpu=V5E | {"slices": 2}, head={"spec": {"containers": [{"name": "h", "image": "i"}]}})
        manifest = created(queue)
        assert manifest["metadata"]["name"] == "tpujob-train"
        assert manifest["metadata"]["ownerReferences"][0]["kind"] == "TPUJob"
        assert manifest["spec"]["queueName"] == "team"
        workers, head = manifest["spec"]["podSets"]
        assert (workers["name"], workers["count"], head["name"], head["count"]) == ("workers", 8, "head", 1)
        spec = workers["template"]["spec"]
        assert spec["containers"][0]["resources"]["limits"] == {"google.com/tpu": "4"}
        assert spec["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"
        assert "affinity" not in spec
        assert "env" not in spec["containers"][0]

    @pytest.mark.parametrize(
        ("labels", "scheduling", "expected"),
        [
            ({}, {}, (0, None)),
            ({}, {"priorityClassName": "batch"}, (7, "PriorityClass")),
            (
                {"kueue.x-k8s.io/priority-class": "high"},
                {"priorityClassName": "batch"},
                (100, "WorkloadPriorityClass"),
            ),
        ],
        ids=["none", "of the pods", "of the job"],
    )
    def test_priority(self, labels: dict[str, str], scheduling: dict[str, str], expected: Any) -> None:
        queue = Queue(scheduling=scheduling)
        meta = queue.world.job.metadata.model_copy(update={"labels": labels})
        queue.world.job = queue.world.job.model_copy(update={"metadata": meta})
        spec = created(queue)["spec"]
        assert (spec["priority"], spec.get("priorityClassRef", {}).get("kind")) == expected

    def test_a_priority_that_there_is_not(self) -> None:
        queue = Queue(scheduling={"priorityClassName": "gone"})
        assert queue.world.workloads == {}
        assert queue.pending == "AwaitingAdmission: PriorityClass gone, which the job names, does not exist"

    def test_the_clusters_default_priority(self) -> None:
        queue = Queue()
        queue.world.queues = Queues({}, {}, {"usual": priority("usual", 3, default=True)}, {})
        assert created(queue)["spec"]["priorityClassRef"]["name"] == "usual"

    @pytest.mark.parametrize("named", ["", "batch"])
    def test_an_admission_outlasts_changes_of_classes_that_the_job_does_not_make(self, named: str) -> None:
        """A job that restarts would wait anew, behind whoever has taken its quota meanwhile."""
        queue = Queue(scheduling={"priorityClassName": named} if named else {}).run()
        classes = {"batch": priority("batch", 9), "usual": priority("usual", 3, default=True)}
        queue.world.queues = Queues({}, {"v5e": flavor("v5e", pool="a")}, classes, {})
        queue.world.set_pod("train-0-1", **terminated(1))
        queue.world.settle().all_pods(**RUNNING).settle()
        assert queue.world.job.status.restarts.total == 1
        assert NAME in queue.world.workloads
        assert len(queue.world.pods) == 4

    def test_without_kueue_the_job_says_so_and_runs_on_if_it_runs(self) -> None:
        world = World(job(scheduling=TEAM)).settle()
        assert world.pods == {}
        assert "install Kueue" in world.job.status.pending.message  # type: ignore[union-attr]
        queue = Queue().run()
        queue.world.queues = None
        queue.world.settle()
        assert len(queue.world.pods) == 4

    def test_a_job_that_runs_goes_on_while_kueue_is_removed(self) -> None:
        """The objects of a CRD go before it, and meanwhile the server makes no others."""
        queue = Queue().run()
        del queue.world.workloads[NAME]
        plan = queue.world.plan()
        assert [manifest["kind"] for manifest in plan.creates] == ["Workload"]
        assert not plan.deletes
        queue.world.refusal = "create not allowed while custom resource definition is terminating"
        queue.world.carry_out(queue.world.plan(), writes=0)
        queue.world.queues, queue.world.refusal = None, ""
        queue.world.settle()
        assert len(queue.world.pods) == 4
        assert queue.world.job.status.phase == "Running"
        assert queue.world.job.status.slices[0].attempt == 0

    def test_a_job_that_runs_heeds_what_becomes_of_another_workload(self) -> None:
        queue = Queue().run()
        del queue.world.workloads[NAME]
        queue.world.step()
        queue.admit()
        assert queue.world.job.status.phase == "Running"
        assert queue.world.job.status.slices[0].attempt == 0
        del queue.world.workloads[NAME]
        queue.world.settle()
        assert queue.world.pods == {}
        assert queue.world.condition("Suspended") == "True/NotAdmitted"

    def test_pods_are_only_made_by_an_admission(self) -> None:
        queue = Queue().run()
        del queue.world.workloads[NAME]
        queue.world.set_pod("train-0-1", **terminated(1))
        queue.world.settle()
        assert queue.world.pods == {}
        assert queue.world.job.status.phase == "Suspended"

    def test_a_template_that_no_pod_can_be_made_from(self) -> None:
        queue = Queue(template={"spec": {"restartPolicy": "Always"}})
        assert queue.world.workloads == {}
        assert queue.pending.startswith("EnvironmentConflict")

    def test_a_changed_spec_is_asked_for_anew(self) -> None:
        queue = Queue()
        before = queue.workload.metadata.uid
        queue.world.patch_spec(tpu=V5E | {"slices": 2})
        queue.world.settle()
        assert queue.workload.metadata.uid != before
        before = queue.workload.metadata.uid
        queue.world.patch_spec(scheduling={"queueName": "other"})
        queue.world.settle()
        assert queue.workload.metadata.uid != before


class TestAdmitted:
    def test_pods_get_what_the_flavor_and_the_checks_say(self) -> None:
        update = {
            "name": "workers",
            "labels": {"l": "1"},
            "annotations": {"a": "2"},
            "nodeSelector": {"n": "3"},
            "tolerations": [{"key": "t"}],
        }
        head = {"spec": {"containers": [{"name": "h", "image": "i"}]}}
        checks = [{"name": "c", "state": "Ready", "podSetUpdates": [update]}]
        queue = Queue(head=head)
        queue.says(admissionChecks=checks)
        reserved, admitted = ("QuotaReserved", "True", "", ""), ("Admitted", "True", "", "")
        assigned = [
            {"name": n, "flavors": {"google.com/tpu": "v5e", "cpu": "v5e"}} for n in ("workers", "head")
        ]
        queue.says(reserved, admitted, admission={"podSetAssignments": assigned})
        pods = {m["metadata"]["name"]: m for m in queue.world.plan().creates if m["kind"] == "Pod"}
        worker, leader = pods["train-0-0"], pods["train-head"]
        assert worker["spec"]["nodeSelector"].items() >= {"pool": "a", "n": "3"}.items()
        assert [t["key"] for t in worker["spec"]["tolerations"]] == ["google.com/tpu", "v5e", "t"]
        assert worker["metadata"]["labels"].items() >= {"l": "1", "kueue.x-k8s.io/podset": "workers"}.items()
        assert worker["metadata"]["annotations"] == {"a": "2"}
        assert leader["spec"]["nodeSelector"] == {"pool": "a"}
        assert leader["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "head"
        assert "annotations" not in leader["metadata"]

    def test_a_flavor_that_is_not_there_is_waited_for(self) -> None:
        queue = Queue()
        queue.world.queues = Queues()
        queue.admit()
        assert "ResourceFlavor v5e, which does not exist" in queue.pending
        assert queue.world.pods == {}

    def test_a_topology_is_refused(self) -> None:
        queue = Queue()
        assigned = [{"name": "workers", "flavors": {}, "topologyAssignment": {"levels": ["x"]}}]
        queue.admit(admission={"podSetAssignments": assigned})
        assert "use a ResourceFlavor without spec.topologyName" in queue.pending

    def test_quota_alone_is_no_admission(self) -> None:
        queue = Queue()
        checks = [{"name": "slices", "state": "Pending", "message": "making one"}]
        queue.says(("QuotaReserved", "True", "", ""), admissionChecks=checks).world.settle()
        assert queue.pending == (
            "AwaitingAdmission: LocalQueue team: quota is reserved, the admission check slices is Pending: "
            "making one"
        )
        assert queue.world.pods == {}

    def test_ready_pods_are_told_of(self) -> None:
        queue = Queue().run()
        assert queue.condition("PodsReady") == "True/Started"
        queue.world.set_pod("train-0-1", **terminated(1))
        queue.world.settle()
        assert queue.condition("PodsReady") == "False/WaitForRecovery"
        queue.world.all_pods(**RUNNING).settle()
        assert queue.condition("PodsReady") == "True/Recovered"
        assert queue.world.job.status.restarts.counted == 1
        assert queue.condition("Admitted") == "True/Admitted"

    @pytest.mark.parametrize("exit_code", [0, 1])
    def test_the_end(self, exit_code: int) -> None:
        queue = Queue(failurePolicy={"maxRestarts": 0}).run()
        for name in queue.world.pods:
            queue.world.set_pod(name, **terminated(exit_code))
        queue.world.settle()
        assert queue.condition("Finished") == ("True/Succeeded" if exit_code == 0 else "True/Failed")

    def test_slices_that_are_done_for_good_are_reclaimed(self) -> None:
        queue = Queue(tpu=V5E | {"slices": 2}, failurePolicy={"restartScope": "Slice"}).run()
        for host in range(4):
            queue.world.set_pod(f"train-1-{host}", **terminated(0))
        queue.world.settle()
        assert [(p.name, p.count) for p in queue.workload.status.reclaimable_pods] == [("workers", 4)]

    def test_slices_that_restart_with_the_others_are_not(self) -> None:
        queue = Queue(tpu=V5E | {"slices": 2}).run()
        for host in range(4):
            queue.world.set_pod(f"train-1-{host}", **terminated(0))
        queue.world.settle()
        assert queue.workload.status.reclaimable_pods == []


class TestEvicted:
    def test_pods_go_before_the_quota_and_nothing_is_charged(self) -> None:
        queue = Queue().run()
        queue.world.keep_deleted = True
        queue.evict().world.settle()
        assert all(pod.deleting for pod in queue.world.pods.values())
        assert queue.workload.reserved
        assert queue.world.job.status.phase == "Suspended"
        assert queue.world.condition("Suspended") == "True/Preempted"
        assert queue.pending == (
            "AwaitingAdmission: LocalQueue team has taken the job back: Preempted: for another"
        )
        queue.world.vanish().settle()
        assert queue.condition("QuotaReserved") == "False/Pending"
        assert queue.condition("Admitted") == "False/NoReservation"
        assert queue.condition("Requeued") == "True/Preempted"
        assert queue.condition("PodsReady") == "False/WaitForStart"
        assert queue.workload.status.admission is None
        assert queue.world.job.status.restarts.total == 0
        assert queue.world.job.status.start_time is None

    def test_it_resumes_with_the_next_attempt(self) -> None:
        queue = Queue().run().evict()
        queue.world.settle()
        queue.run()
        assert queue.world.job.status.phase == "Running"
        assert {pod.attempt for pod in queue.world.pods.values()} == {1}
        assert queue.world.condition("Suspended") == "False/Resumed"
        assert queue.world.job.status.restarts.total == 0

    def test_what_fails_while_it_goes_is_no_failure(self) -> None:
        queue = Queue(failurePolicy={"maxRestarts": 0}).run()
        queue.world.keep_deleted = True
        queue.evict().world.settle()
        queue.world.set_pod("train-0-0", **terminated(1))
        queue.world.vanish(*queue.world.pods).settle()
        assert queue.world.job.status.phase == "Suspended"

    def test_other_evictions_are_requeued_by_kueue_alone(self) -> None:
        queue = Queue().run().evict("AdmissionCheck", "a check")
        queue.world.settle()
        assert queue.condition("Requeued") == "False/AdmissionCheck"

    def test_an_inactive_workload_is_no_admission(self) -> None:
        queue = Queue().run()
        queue.activate(False).world.settle()
        assert queue.world.pods == {}
        assert queue.world.condition("Suspended") == "True/Deactivated"
        assert "set it to true to queue the job again" in queue.pending

    def test_between_two_attempts(self) -> None:
        queue = Queue(activeDeadlineSeconds=60).run()
        queue.world.set_pod("train-0-1", **terminated(1))
        queue.world.step()
        queue.world.pods.clear()
        assert queue.world.job.status.phase == "Restarting"
        queue.evict().world.settle()
        status = queue.world.job.status
        assert (status.phase, status.start_time) == ("Suspended", None)
        assert queue.world.condition("Suspended") == "True/Preempted"
        assert queue.world.condition("Restarting").startswith("False")
        queue.world.now += timedelta(seconds=61)
        queue.run()
        assert queue.world.job.status.phase == "Running"
        assert queue.world.job.status.start_time == NOW + timedelta(seconds=61)
        assert [s.attempt for s in queue.world.job.status.slices] == [1]

    def test_done_slices_stay_done(self) -> None:
        queue = Queue(tpu=V5E | {"slices": 2}, failurePolicy={"restartScope": "Slice"}).run()
        for host in range(4):
            queue.world.set_pod(f"train-1-{host}", **terminated(0))
        queue.world.settle()
        queue.evict().world.settle()
        assert sorted(queue.world.pods) == [f"train-1-{host}" for host in range(4)]
        assert [s.state for s in queue.world.job.status.slices] == ["Pending", "Succeeded"]
        queue.admit()
        assert {
            name: pod.attempt for name, pod in queue.world.pods.items() if name.startswith("train-0")
        } == {f"train-0-{host}": 1 for host in range(4)}


class TestLeaving:
    def test_done_slices_need_no_quota_when_the_job_is_resumed(self) -> None:
        queue = Queue(tpu=V5E | {"slices": 2}, failurePolicy={"restartScope": "Slice"}).run()
        for host in range(4):
            queue.world.set_pod(f"train-1-{host}", **terminated(0))
        queue.world.settle().patch_spec(suspend=True)
        queue.world.settle()
        assert queue.world.workloads == {}
        queue.world.patch_spec(suspend=False)
        queue.world.settle()
        assert not queue.workload.reserved
        assert [(p.name, p.count) for p in queue.workload.status.reclaimable_pods] == [("workers", 4)]
        queue.run()
        assert [s.state for s in queue.world.job.status.slices] == ["Running", "Succeeded"]

    def test_a_suspended_job_is_in_no_queue(self) -> None:
        queue = Queue().run()
        queue.world.keep_deleted = True
        queue.world.patch_spec(suspend=True)
        queue.world.settle()
        assert queue.workload.admitted
        queue.world.vanish().settle()
        assert queue.world.workloads == {}
        assert queue.world.condition("Suspended") == "True/Suspended"
        queue.world.patch_spec(suspend=False)
        queue.world.settle()
        assert queue.world.condition("Suspended") == "False/Resumed"
        assert queue.world.job.status.phase == "Pending"
        queue.run()
        assert queue.world.job.status.phase == "Running"

    def test_a_job_may_leave_its_queue(self) -> None:
        queue = Queue()
        queue.world.patch_spec(scheduling={})
        queue.world.settle()
        assert queue.world.workloads == {}
        assert len(queue.world.pods) == 4

    def test_a_running_job_that_is_put_into_a_queue_waits_its_turn(self) -> None:
        world = World(job(), queues=Queues()).run()
        world.patch_spec(scheduling=TEAM)
        world.settle()
        assert world.pods == {}
        assert NAME in world.workloads
        assert world.condition("Suspended") == "True/NotAdmitted"

    def test_a_changed_template_is_asked_for_at_the_next_attempt(self) -> None:
        queue = Queue().run()
        before = queue.workload.metadata.uid
        limits = {"limits": {"memory": "1Gi"}}
        queue.world.patch_spec(template={"spec": {"containers": [{"name": "main", "resources": limits}]}})
        queue.world.settle()
        assert queue.workload.metadata.uid == before
        queue.world.set_pod("train-0-1", **terminated(1))
        queue.world.settle()
        assert queue.workload.metadata.uid != before
        assert queue.world.job.status.phase == "Suspended"
        assert queue.world.condition("Suspended") == "True/NotAdmitted"
        assert queue.world.pods == {}
        queue.run()
        assert queue.world.job.status.phase == "Running"

    def test_another_demand_waits_until_nothing_runs_by_the_old_one(self) -> None:
        queue = Queue().run()
        queue.world.keep_deleted = True
        before = queue.workload.metadata.uid
        queue.world.patch_spec(template={"spec": {"containers": [{"name": "main", "resources": MORE}]}})
        queue.world.set_pod("train-0-1", **terminated(1))
        queue.world.settle()
        assert queue.workload.metadata.uid == before
        queue.world.vanish().settle()
        assert queue.workload.metadata.uid != before

    @pytest.mark.parametrize(
        ("setting", "image"), [("runtime_image", "new/runtime:2"), ("launcher_image", "new/operator:2")]
    )
    def test_a_new_operator_costs_no_admission(
        self, monkeypatch: pytest.MonkeyPatch, setting: str, image: str
    ) -> None:
        changed: Any = {setting: image}
        run = {"command": ["x"]} | ({"image": "users/own:1"} if setting == "launcher_image" else {})
        queue = Queue(run=run).run()
        before = queue.workload.metadata.uid
        monkeypatch.setattr(builders, "SETTINGS", replace(SETTINGS, **changed))
        queue.world.set_pod("train-0-1", **terminated(1))
        queue.world.settle().all_pods(**RUNNING).settle()
        assert queue.workload.metadata.uid == before
        assert {pod.attempt for pod in queue.world.pods.values()} == {1}
        assert queue.world.job.status.phase == "Running"

    def test_a_slice_alone_does_not_get_more_than_the_job_was_admitted_with(self) -> None:
        queue = Queue(tpu=V5E | {"slices": 2}, failurePolicy={"restartScope": "Slice"}).run()
        before = queue.workload.metadata.uid
        queue.world.patch_spec(template={"spec": {"containers": [{"name": "main", "resources": MORE}]}})
        queue.world.settle()
        assert len(queue.world.pods) == 8
        queue.world.set_pod("train-1-1", **terminated(1))
        queue.world.settle()
        assert queue.world.pods == {}
        assert queue.world.condition("Suspended") == "True/NotAdmitted"
        assert queue.workload.metadata.uid != before
        queue.run()
        assert queue.world.job.status.phase == "Running"

    def test_a_template_that_is_wrong_stops_no_slice_that_runs(self) -> None:
        queue = Queue(tpu=V5E | {"slices": 2}, failurePolicy={"restartScope": "Slice"}).run()
        queue.world.patch_spec(template={"spec": {"restartPolicy": "Always"}})
        queue.world.set_pod("train-1-1", **terminated(1))
        queue.world.settle()
        assert sorted(queue.world.pods) == [f"train-0-{host}" for host in range(4)]
        assert queue.pending.startswith("EnvironmentConflict")

    def test_quota_of_a_done_slice_that_is_to_run_again_is_asked_for_again(self) -> None:
        queue = Queue(tpu=V5E | {"slices": 2}, failurePolicy={"restartScope": "Slice"}).run()
        for host in range(4):
            queue.world.set_pod(f"train-1-{host}", **terminated(0))
        queue.world.settle()
        before = queue.workload.metadata.uid
        queue.world.patch_spec(failurePolicy={"restartScope": "Job"})
        queue.world.set_pod("train-0-1", **terminated(1))
        queue.world.settle()
        assert queue.workload.metadata.uid != before
        assert queue.workload.status.reclaimable_pods == []
        queue.run()
        assert queue.world.job.status.phase == "Running"
        assert len(queue.world.pods) == 8

    def test_pods_go_before_the_workload_of_a_job_that_leaves_its_queue(self) -> None:
        queue = Queue().run()
        queue.world.keep_deleted = True
        queue.evict().world.settle()
        queue.world.patch_spec(scheduling={})
        queue.world.settle()
        assert NAME in queue.world.workloads
        queue.world.vanish().settle()
        assert queue.world.workloads == {}
        assert len(queue.world.pods) == 4

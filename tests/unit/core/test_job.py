"""Decisions about a TPUJob, played through pass by pass."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tests.builders import (
    NOW,
    RUNNING,
    STARTING,
    World,
    decode_pod,
    job,
    node_pool,
    report,
    stamp,
    terminated,
)
from tests.docs import examples
from tpu_operator.api import TPUJobStatus
from tpu_operator.core.snapshot import Node

FOUR = {"train-0-0", "train-0-1", "train-0-2", "train-0-3"}

NO_ROOM = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/9 nodes fit"}


def world(**spec: Any) -> World:
    return World(job(**spec))


def attempts(the_world: World) -> set[int]:
    return {pod.attempt for pod in the_world.pods.values()}


def uids(the_world: World) -> set[str]:
    return {pod.metadata.uid for pod in the_world.pods.values()}


class TestStart:
    def test_service_and_pods_in_one_pass_the_service_first(self) -> None:
        plan = world().plan()
        assert [m["kind"] for m in plan.creates] == ["Service"] + ["Pod"] * 4
        assert {m["metadata"]["name"] for m in plan.creates[1:]} == FOUR

    def test_case_3_one_headless_service_that_publishes_unready_addresses(self) -> None:
        the_world = world().settle()
        assert list(the_world.services) == ["train"]
        service = the_world.services["train"]
        assert service.spec.cluster_ip == "None"
        assert service.spec.publish_not_ready_addresses
        assert service.metadata.owner_uid == the_world.job.metadata.uid

    def test_case_4_a_deleted_service_comes_back_and_nothing_else_moves(self) -> None:
        the_world = world().run()
        before = uids(the_world)
        del the_world.services["train"]
        the_world.settle()
        assert "train" in the_world.services
        assert uids(the_world) == before
        assert the_world.job.status.restarts.total == 0

    def test_a_changed_service_is_put_right(self) -> None:
        the_world = world().run()
        before = the_world.services["train"].spec.selector
        wire = msgspec.to_builtins(the_world.services["train"])
        wire["spec"]["selector"] = {"app": "other"}
        the_world.services["train"] = msgspec.convert(wire, type(the_world.services["train"]))
        assert [(patch.kind, patch.name) for patch in the_world.step().patches] == [("Service", "train")]
        assert the_world.services["train"].spec.selector == before
        assert the_world.plan().patches == ()

    def test_phases_on_the_way_up(self) -> None:
        the_world = world().settle()
        assert the_world.job.status.phase == "Pending"
        the_world.all_pods(**STARTING).settle()
        assert the_world.job.status.phase == "Starting"
        the_world.all_pods(**RUNNING).settle()
        status = the_world.job.status
        assert (status.phase, status.ready, status.hosts.ready) == ("Running", "4/4", 4)
        assert the_world.condition("Ready") == "True/AllHostsReady"

    def test_ready_counts_hosts(self) -> None:
        the_world = world().settle().all_pods(**STARTING)
        the_world.set_pod("train-0-2", **RUNNING)
        the_world.settle()
        assert the_world.job.status.ready == "1/4"
        assert the_world.job.status.slices[0].ready == "1/4"

    def test_the_way_to_running_is_told_together(self) -> None:
        the_world = world()
        assert the_world.step().progress == "Pending 0/4"
        the_world.job = the_world.job.model_copy(update={"status": TPUJobStatus()})
        the_world.all_pods(**STARTING)
        assert the_world.plan().progress == "Starting 0/4"
        the_world.all_pods(**RUNNING)
        assert the_world.plan().progress == ""

    def test_the_end_of_a_restart_is_told_with_what_comes_next(self) -> None:
        the_world = world().run()
        del the_world.pods["train-0-1"]
        assert the_world.step().progress == "", "a restart is a decision"
        the_world.step()
        the_world.step()
        assert the_world.job.status.phase == "Restarting"
        assert the_world.plan().progress == "Pending 0/4"

    def test_what_only_the_pass_knows_that_makes_the_pods_is_told_by_it(self) -> None:
        run = {"command": ["x"], "env": [{"name": "TPU_NAME", "value": "mine"}]}
        plan = world(run=run).plan()
        assert plan.progress == ""
        assert plan.status is not None
        assert "EnvironmentOverridden" in [c["reason"] for c in plan.status["conditions"]]

    def test_what_the_scheduler_says_for_a_moment_is_told_with_what_comes_next(self) -> None:
        """It looks at gangs before all of their pods are there, and says of those that are that none fits."""
        the_world = world()
        the_world.nodes |= node_pool("a")
        the_world.settle().all_pods(node=None, conditions=[NO_ROOM])
        assert the_world.plan().progress == "Pending 0/4"
        assert the_world.step().events, "who waits for longer is told"
        assert the_world.condition("Blocked") == "True/Unschedulable"
        the_world.all_pods(**STARTING)
        assert the_world.plan().progress == "Starting 0/4"

    @pytest.mark.parametrize("spec", [{"suspend": True}, {"template": {"spec": {"hostname": "x"}}}])
    def test_what_keeps_a_job_from_starting_is_told_at_once(self, spec: dict[str, Any]) -> None:
        assert world(**spec).plan().progress == ""

    def test_an_attempt_given_up_for_the_same_reason_twice_is_told_twice(self) -> None:
        the_world = world().settle()
        for attempt in (1, 2):
            the_world.vanish("train-0-1")
            the_world.patch_spec(run={"command": [f"v{attempt}"]})
            plan = the_world.step()
            assert the_world.job.status.slices[0].attempt == attempt
            assert plan.progress == ""
            the_world.step()
            the_world.step()

    def test_only_a_status_that_brings_nothing_but_progress_can_wait(self) -> None:
        the_world = world().settle().all_pods(**STARTING).settle()
        the_world.set_pod("train-0-2", **RUNNING)
        counts = the_world.plan()
        assert counts.status is not None
        assert counts.progress == "Starting 1/4"
        the_world.all_pods(**RUNNING)
        assert the_world.plan().progress == ""

    def test_status_says_which_node_pool(self) -> None:
        the_world = world()
        the_world.nodes["node"] = msgspec.convert(
            {"metadata": {"name": "node", "labels": {"cloud.google.com/gke-nodepool": "pool-7"}}}, Node
        )
        the_world.settle().set_pod("train-0-2", **STARTING)
        assert the_world.plan().progress, "more news are to be expected"
        assert the_world.run().job.status.slices[0].node_pool == "pool-7"

    def test_nothing_is_written_when_nothing_has_changed(self) -> None:
        the_world = world().run()
        plan = the_world.plan()
        assert plan.status is None
        assert not (plan.applies)
        assert not (plan.creates)
        assert not (plan.deletes)
        assert not (plan.events)

    def test_case_2_a_template_may_choose_the_subdomain(self) -> None:
        the_world = world(template={"spec": {"subdomain": "mesh"}}).settle()
        assert list(the_world.services) == ["mesh"]

    def test_a_job_of_another_controller_is_left_alone(self) -> None:
        assert world(managedBy="kueue.x-k8s.io/multikueue").plan() == world(managedBy="x.y/z").plan()
        assert world(managedBy="x.y/z").plan().status is None

    def test_more_hosts_than_anybody_can_count_are_refused_before_they_are_counted(self) -> None:
        tpu = {"accelerator": "v9", "topology": "999x999x999", "chipsPerHost": 1}
        plan = World(job(tpu=tpu)).plan()
        assert plan.status is not None
        assert plan.status["message"] == "997002999 hosts are more than the 16384 that a job may have"
        assert not plan.creates

    def test_a_refused_create_is_shown_and_clears_itself(self) -> None:
        the_world = world()
        the_world.refusal = 'pods "train-0-0" is forbidden: exceeded quota: team'
        the_world.step()
        assert the_world.condition("Blocked") == "True/QuotaExceeded"
        assert the_world.job.status.pending is not None
        assert "exceeded quota" in the_world.job.status.pending.message
        the_world.refusal = ""
        the_world.run()
        assert the_world.condition("Blocked") == "False/NotBlocked"
        assert the_world.job.status.pending is None


class TestTemplateChange:
    def test_case_6_no_attempt_mixes_pods_of_two_templates(self) -> None:
        the_world = world(template={"spec": {"subdomain": "old"}}).settle()
        the_world.patch_spec(template={"spec": {"subdomain": "new"}})
        the_world.settle()
        assert attempts(the_world) == {0}, "a change alone moves nothing"
        the_world.vanish("train-0-1").settle()
        assert attempts(the_world) == {1}
        assert len({pod.metadata.labels["tpu-operator.dev/revision"] for pod in the_world.pods.values()}) == 1
        assert set(the_world.services) == {"old", "new"}
        assert the_world.job.status.restarts.total == 0


class TestConflicts:
    @pytest.mark.parametrize(
        ("spec", "field"),
        [
            ({"restartPolicy": "Always"}, "spec.restartPolicy"),
            ({"hostname": "mine"}, "spec.hostname"),
            ({"nodeSelector": {"cloud.google.com/gke-tpu-topology": "8x8"}}, "gke-tpu-topology"),
        ],
    )
    def test_a_template_that_breaks_the_gang_is_a_condition(self, spec: dict[str, Any], field: str) -> None:
        the_world = world(template={"spec": spec}).settle()
        assert the_world.condition("Blocked") == "True/EnvironmentConflict"
        assert field in (the_world.job.status.message or "")
        assert not the_world.pods

    def test_case_15_overridden_variables_are_told_and_respected(self) -> None:
        env = [{"name": "TPU_WORKER_ID", "value": "7"}]
        the_world = world(run={"command": ["x"], "env": env})
        the_world.step()
        assert the_world.condition("Blocked") == "False/EnvironmentOverridden"
        assert set(the_world.pods) == FOUR

    def test_pods_of_a_namesake_are_waited_for(self) -> None:
        the_world = world()
        creates = the_world.plan().creates
        other = decode_pod(creates[1] | {"metadata": creates[1]["metadata"] | {"ownerReferences": []}})
        the_world.pods[other.name] = other
        the_world.settle()
        assert set(the_world.pods) == {other.name}
        assert the_world.condition("Blocked") == "True/WaitingForOldPods"
        the_world.vanish(other.name).settle()
        assert set(the_world.pods) == FOUR


class TestFailure:
    def fail(self, the_world: World, name: str, exit_code: int = 1, after: float = 0.0) -> None:
        at = NOW + timedelta(seconds=after)
        the_world.set_pod(name, **terminated(exit_code, report(exit_code=exit_code, at=at)))

    def test_a_failed_host_restarts_the_whole_job(self) -> None:
        the_world = world().run()
        before = uids(the_world)
        self.fail(the_world, "train-0-2")
        the_world.settle()
        assert attempts(the_world) == {1}
        assert set(the_world.pods) == FOUR
        assert not before & uids(the_world)
        restarts = the_world.job.status.restarts
        assert (restarts.total, restarts.counted, restarts.by_cause) == (1, 1, {"UserError": 1})

    def test_the_restart_is_on_record_before_any_pod_is_deleted(self) -> None:
        the_world = world().run()
        self.fail(the_world, "train-0-2")
        plan = the_world.step()
        assert plan.status is not None
        assert not plan.deletes
        assert the_world.job.status.phase == "Restarting"
        assert len(the_world.step().deletes) == 4

    def test_nothing_is_written_while_old_pods_go(self) -> None:
        the_world = world().run()
        the_world.keep_deleted = True
        self.fail(the_world, "train-0-2")
        the_world.step()
        assert the_world.step().status is None
        assert the_world.condition("Ready") == "False/Restarting"

    def test_case_28_no_new_pod_before_the_last_old_one_is_gone(self) -> None:
        the_world = world().run()
        the_world.keep_deleted = True
        self.fail(the_world, "train-0-2")
        the_world.settle()
        assert attempts(the_world) == {0}
        the_world.vanish("train-0-0", "train-0-1").settle()
        assert attempts(the_world) == {0}
        the_world.vanish("train-0-3").settle()
        assert attempts(the_world) == {1}
        assert set(the_world.pods) == FOUR

    def test_old_pods_that_do_not_go_are_told(self) -> None:
        example = examples()["A pod that does not terminate"]
        the_world = world(**example.spec).run()
        the_world.keep_deleted = True
        self.fail(the_world, "train-0-2")
        the_world.settle().vanish("train-0-0", "train-0-1")
        the_world.now += timedelta(seconds=59)
        assert the_world.settle().condition("Blocked") == ""
        the_world.now += timedelta(seconds=2)
        assert example.shown(the_world.settle().job.status.wire()) == example.status
        the_world.vanish("train-0-3").settle()
        assert the_world.condition("Blocked") == "False/NotBlocked"
        assert attempts(the_world) == {1}

    def test_restarting_ends_when_all_pods_of_the_new_attempt_exist(self) -> None:
        the_world = world().run()
        self.fail(the_world, "train-0-2")
        the_world.settle()
        assert the_world.condition("Restarting") == "False/Restarted"
        assert the_world.job.status.phase == "Pending"
        assert the_world.all_pods(**RUNNING).settle().job.status.phase == "Running"

    def test_the_root_cause_is_the_earliest_failure_not_the_first_seen(self) -> None:
        the_world = world().run()
        self.fail(the_world, "train-0-0", after=0.3)
        the_world.keep_deleted = True
        the_world.step()
        assert the_world.job.status.last_failure is not None
        assert the_world.job.status.last_failure.host == 0
        self.fail(the_world, "train-0-2", exit_code=3, after=0.1)
        the_world.settle()
        failure = the_world.job.status.last_failure
        assert failure is not None
        assert (failure.slice, failure.host, failure.exit_code, failure.cause) == (0, 2, 3, "UserError")
        assert the_world.job.status.restarts.total == 1

    def test_a_survivor_that_was_told_to_stop_is_no_root_cause(self) -> None:
        the_world = world().run()
        self.fail(the_world, "train-0-2", after=1)
        the_world.keep_deleted = True
        the_world.settle()
        stopped = report(cause=None, exit_code=143, at=NOW - timedelta(hours=1), terminated=True)
        the_world.set_pod("train-0-1", **terminated(143, stopped))
        the_world.settle()
        assert the_world.job.status.last_failure is not None
        assert the_world.job.status.last_failure.host == 2

    def test_case_26_no_budget_fails_the_job_and_names_the_member(self) -> None:
        the_world = world(failurePolicy={"maxRestarts": 0}).run()
        self.fail(the_world, "train-0-2")
        the_world.settle()
        assert the_world.job.status.phase == "Failed"
        assert the_world.condition("Failed") == "True/MaxRestartsReached"
        assert "train-0-2" in (the_world.job.status.message or "")
        assert the_world.events.count("MaxRestartsReached") == 1

    def test_case_27_restarts_never_exceed_the_limit(self) -> None:
        the_world = world(failurePolicy={"maxRestarts": 1}).run()
        for attempt in range(2):
            assert attempts(the_world) == {attempt}
            self.fail(the_world, "train-0-2")
            the_world.settle().all_pods(**RUNNING) if attempt == 0 else the_world.settle()
        status = the_world.job.status
        assert (status.phase, status.restarts.total, status.restarts.counted) == ("Failed", 1, 1)

    def test_the_last_failure_waits_for_the_others_to_report(self) -> None:
        the_world = world(failurePolicy={"maxRestarts": 0}).run()
        the_world.keep_deleted = True
        self.fail(the_world, "train-0-0", after=0.3)
        the_world.step()
        the_world.step()
        assert the_world.job.status.phase != "Failed"
        self.fail(the_world, "train-0-2", exit_code=1, after=0.1)
        the_world.settle()
        the_world.vanish("train-0-1", "train-0-3").settle()
        status = the_world.job.status
        assert status.phase == "Failed"
        assert status.last_failure is not None
        assert status.last_failure.host == 2

    def test_it_does_not_wait_for_ever(self) -> None:
        the_world = world(failurePolicy={"maxRestarts": 0}).run()
        the_world.keep_deleted = True
        self.fail(the_world, "train-0-2")
        the_world.step()
        assert the_world.step().requeue_after == pytest.approx(10)
        the_world.now += timedelta(seconds=11)
        assert the_world.settle().job.status.phase == "Failed"

    def test_case_44_a_failed_job_keeps_the_failed_pods_and_no_running_one(self) -> None:
        the_world = world(failurePolicy={"maxRestarts": 0}).run()
        self.fail(the_world, "train-0-2")
        the_world.settle()
        assert set(the_world.pods) == {"train-0-2"}

    def test_a_failed_job_stays_failed_whatever_happens_to_its_pods(self) -> None:
        the_world = world(failurePolicy={"maxRestarts": 0}).run()
        self.fail(the_world, "train-0-2")
        the_world.settle().vanish("train-0-2").settle()
        assert the_world.job.status.phase == "Failed"
        assert not the_world.pods

    def test_a_pod_deleted_by_hand_restarts_the_gang_without_a_charge(self) -> None:
        the_world = world().run().vanish("train-0-1").settle()
        restarts = the_world.job.status.restarts
        assert attempts(the_world) == {1}
        assert (restarts.total, restarts.counted, restarts.by_cause) == (1, 0, {"PodDeleted": 1})

    def test_pods_deleted_before_the_gang_has_nodes_are_made_again(self) -> None:
        the_world = world().settle().vanish("train-0-1").settle()
        assert set(the_world.pods) == FOUR
        assert attempts(the_world) == {0}

    def test_rules_are_asked_in_order(self) -> None:
        rules = [
            {"onExitCodes": [3], "action": "FailJob"},
            {"onCauses": ["UserError"], "action": "RestartUncounted"},
        ]
        the_world = world(failurePolicy={"rules": rules}).run()
        self.fail(the_world, "train-0-2", exit_code=1)
        the_world.settle()
        assert the_world.job.status.restarts.counted == 0
        the_world.all_pods(**RUNNING).settle()
        self.fail(the_world, "train-0-2", exit_code=3)
        the_world.settle()
        assert the_world.condition("Failed") == "True/FailureRule"

    def test_only_the_slice_restarts_where_that_is_asked_for(self) -> None:
        tpu = {"accelerator": "v5e", "topology": "4x4", "slices": 2}
        the_world = world(tpu=tpu, failurePolicy={"restartScope": "Slice"}).run()
        before = {name: pod.metadata.uid for name, pod in the_world.pods.items()}
        self.fail(the_world, "train-1-3")
        the_world.settle()
        after = {name: pod.metadata.uid for name, pod in the_world.pods.items()}
        assert {name for name in before if before[name] != after[name]} == {f"train-1-{i}" for i in range(4)}
        assert [s.attempt for s in the_world.job.status.slices] == [0, 1]

    def test_a_lost_status_is_read_off_the_pods(self) -> None:
        the_world = world().run()
        self.fail(the_world, "train-0-2")
        the_world.settle().all_pods(**RUNNING).settle()
        before = uids(the_world)
        the_world.set_status({})
        the_world.settle()
        assert uids(the_world) == before
        assert the_world.job.status.slices[0].attempt == 1


class TestEnd:
    def test_all_hosts_have_to_succeed(self) -> None:
        the_world = world().run()
        for name in sorted(FOUR)[:3]:
            the_world.set_pod(name, **terminated(0))
        assert the_world.settle().job.status.phase == "Running"
        the_world.set_pod("train-0-3", **terminated(0))
        the_world.settle()
        assert the_world.job.status.phase == "Succeeded"
        assert the_world.job.status.ready == "4/4"
        assert the_world.job.status.completion_time is not None

    @pytest.mark.parametrize("name", ["train-0-1", "train-head"])
    def test_who_has_ended_well_is_not_missed(self, name: str) -> None:
        """Ended pods go with their nodes, or where there are many."""
        the_world = world(head={"spec": {"containers": [{"name": "driver", "image": "driver"}]}}).run()
        the_world.set_pod(name, **terminated(0))
        the_world.settle().vanish(name).settle()
        assert the_world.job.status.phase == "Running"
        assert the_world.job.status.restarts.total == 0
        assert name not in the_world.pods
        the_world.all_pods(**terminated(0)).settle()
        assert the_world.job.status.phase == "Succeeded"

    def test_who_has_ended_well_is_made_again_with_the_others(self) -> None:
        the_world = world().run()
        the_world.set_pod("train-0-1", **terminated(0))
        the_world.settle().vanish("train-0-1").settle()
        the_world.set_pod("train-0-2", **terminated(1))
        the_world.settle()
        assert the_world.job.status.slices[0].attempt == 1
        assert set(the_world.pods) == FOUR

    def test_who_may_fail_is_not_missed(self) -> None:
        rules = {"rules": [{"onExitCodes": [3], "action": "Ignore"}]}
        the_world = world(failurePolicy=rules).run()
        the_world.set_pod("train-0-1", **terminated(3))
        the_world.settle().vanish("train-0-1").settle()
        assert the_world.job.status.restarts.total == 0
        assert "train-0-1" not in the_world.pods

    def test_the_leader_decides_where_that_is_asked_for(self) -> None:
        the_world = world(successPolicy="Leader").run()
        the_world.set_pod("train-0-0", **terminated(0))
        the_world.settle()
        assert the_world.job.status.phase == "Succeeded"
        assert set(the_world.pods) == {"train-0-0"}

    @pytest.mark.parametrize(
        "head", [None, {"spec": {"containers": [{"name": "driver", "image": "driver"}]}}]
    )
    def test_a_leader_whose_failure_is_ignored_is_done(self, head: dict[str, Any] | None) -> None:
        rules = {"rules": [{"onExitCodes": [3], "action": "Ignore"}]}
        headed = {"head": head} if head else {}
        the_world = world(successPolicy="Leader", failurePolicy=rules, **headed).run()
        leader = "train-head" if head else "train-0-0"
        failed = terminated(3)
        if head:
            failed["containerStatuses"][0]["name"] = "driver"
        the_world.set_pod(leader, **failed)
        the_world.settle()
        assert the_world.job.status.phase == "Succeeded"
        assert the_world.job.status.restarts.total == 0

    def test_deadline(self) -> None:
        the_world = world(activeDeadlineSeconds=60).run()
        assert the_world.plan().requeue_after == pytest.approx(60)
        the_world.now += timedelta(seconds=61)
        assert the_world.settle().condition("Failed") == "True/DeadlineExceeded"
        assert not the_world.pods

    def test_a_finished_job_goes_after_its_time(self) -> None:
        the_world = world(ttlSecondsAfterFinished=100).run().all_pods(**terminated(0)).settle()
        assert the_world.plan().requeue_after == pytest.approx(100)
        the_world.now += timedelta(seconds=101)
        the_world.step()
        assert not the_world.alive


class TestSuspend:
    def test_created_suspended(self) -> None:
        the_world = world(suspend=True).settle()
        assert not the_world.pods
        assert the_world.condition("Suspended") == "True/Suspended"
        assert the_world.job.status.phase == "Suspended"
        assert the_world.job.status.start_time is None

    def test_suspending_and_resuming_counts_an_attempt_and_no_restart(self) -> None:
        the_world = world().run()
        the_world.patch_spec(suspend=True)
        the_world.settle()
        assert not the_world.pods
        assert the_world.job.status.ready == "0/4"
        the_world.patch_spec(suspend=False)
        the_world.run()
        assert attempts(the_world) == {1}
        assert the_world.job.status.restarts.total == 0
        assert the_world.job.status.phase == "Running"
        assert the_world.condition("Suspended") == "False/Resumed"

    def test_the_deadline_does_not_run_while_suspended_and_starts_anew(self) -> None:
        the_world = world(activeDeadlineSeconds=60).run()
        the_world.now += timedelta(seconds=61)
        the_world.patch_spec(suspend=True)
        assert the_world.settle().job.status.phase == "Suspended"
        assert the_world.job.status.start_time is None
        the_world.now += timedelta(days=1)
        the_world.patch_spec(suspend=False)
        assert the_world.run().job.status.phase == "Running"
        assert the_world.plan().requeue_after == pytest.approx(60)
        the_world.now += timedelta(seconds=61)
        assert the_world.settle().condition("Failed") == "True/DeadlineExceeded"

    def test_between_two_attempts(self) -> None:
        the_world = world().run()
        the_world.set_pod("train-0-1", **terminated(1, report()))
        the_world.step()
        the_world.pods.clear()
        the_world.patch_spec(suspend=True)
        status = the_world.settle().job.status
        assert (status.phase, status.start_time) == ("Suspended", None)
        assert the_world.condition("Restarting").startswith("False")

    def test_slices_that_are_done_alone_stay_done(self) -> None:
        the_world = world(
            tpu={"accelerator": "v5e", "topology": "4x4", "slices": 2},
            failurePolicy={"restartScope": "Slice"},
        ).run()
        for host in range(4):
            the_world.set_pod(f"train-0-{host}", **terminated(0))
        the_world.settle().patch_spec(suspend=True)
        the_world.settle()
        assert sorted(the_world.pods) == [f"train-0-{host}" for host in range(4)]
        assert [s.state for s in the_world.job.status.slices] == ["Succeeded", "Suspended"]
        the_world.vanish(*the_world.pods).patch_spec(suspend=False)
        the_world.run()
        assert {name: pod.attempt for name, pod in the_world.pods.items()} == {
            f"train-1-{host}": 1 for host in range(4)
        }
        assert [s.state for s in the_world.job.status.slices] == ["Succeeded", "Running"]

    def test_a_slice_that_is_done_alone_runs_again_with_others_that_it_now_restarts_with(self) -> None:
        two = {"accelerator": "v5e", "topology": "4x4", "slices": 2}
        the_world = world(tpu=two, failurePolicy={"restartScope": "Slice"}).run()
        for host in range(4):
            the_world.set_pod(f"train-0-{host}", **terminated(0))
        the_world.settle().patch_spec(suspend=True)
        the_world.settle().vanish(*the_world.pods).patch_spec(suspend=False, failurePolicy={})
        the_world.run()
        assert len(the_world.pods) == 8
        assert len(attempts(the_world)) == 1

    def test_slices_that_restart_with_the_others_run_again_with_them(self) -> None:
        the_world = world(tpu={"accelerator": "v5e", "topology": "4x4", "slices": 2}).run()
        for host in range(4):
            the_world.set_pod(f"train-0-{host}", **terminated(0))
        the_world.settle().patch_spec(suspend=True)
        the_world.settle()
        assert the_world.pods == {}
        the_world.patch_spec(suspend=False)
        the_world.settle()
        assert len(the_world.pods) == 8


class TestDurations:
    def test_the_start_of_a_job_that_is_ready_before_its_first_status_counts(self) -> None:
        the_world = world()
        the_world.carry_out(the_world.plan(), status=False)
        for name, pod in the_world.pods.items():
            wire = msgspec.to_builtins(pod)
            wire["metadata"]["creationTimestamp"] = stamp(NOW)
            the_world.pods[name] = msgspec.convert(wire, type(pod))
        the_world.all_pods(**RUNNING)
        the_world.now += timedelta(seconds=2)
        (start,) = the_world.plan().observations
        assert (start.metric, start.seconds) == ("gang_start_seconds", 2)

    def test_hosts_that_are_ready_again_have_not_started(self) -> None:
        the_world = world().run()
        the_world.now += timedelta(days=2)
        the_world.set_pod("train-0-2", **STARTING)
        the_world.settle().all_pods(**RUNNING)
        assert the_world.plan().observations == ()

    def test_start_and_restart_are_measured_once_each(self) -> None:
        the_world = world().settle().all_pods(**RUNNING)
        the_world.now += timedelta(seconds=42)
        (start,) = the_world.plan().observations
        assert (start.metric, start.seconds) == ("gang_start_seconds", 42)
        the_world.settle()
        assert the_world.plan().observations == ()
        the_world.set_pod("train-0-2", **terminated(1, report()))
        the_world.settle().all_pods(**RUNNING)
        the_world.now += timedelta(seconds=7)
        (restart,) = the_world.plan().observations
        assert (restart.metric, restart.seconds, restart.labels) == (
            "gang_restart_seconds",
            7,
            ("UserError",),
        )

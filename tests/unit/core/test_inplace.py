"""Restarts in place: what the operator makes of containers that are started again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.builders import NOW, RUNNING, World, ended, job, lives, node, report, stamp, terminated

IN_PLACE = {"restartStrategy": "InPlace"}
HEAD = {"spec": {"containers": [{"name": "driver", "image": "driver"}]}}


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def said(
    attempt: int, after: float = 0.0, cause: str = "UserError", code: int = 1, **more: Any
) -> dict[str, Any]:
    """The end of a container with the launcher's word."""
    at = NOW + seconds(after)
    return ended(code, report(cause, code, at, attempt=attempt, **more), at)


def oom(after: float = 0.0) -> dict[str, Any]:
    """The end of a container that was killed with all that is in it."""
    return ended(137, "", NOW + seconds(after), "OOMKilled")


def world(policy: dict[str, Any] | None = None, **spec: Any) -> World:
    """A job that runs."""
    return World(job(failurePolicy=IN_PLACE | (policy or {}), **spec)).run()


def uids(the_world: World) -> set[str]:
    return {pod.metadata.uid for pod in the_world.pods.values()}


def attempts(the_world: World) -> list[tuple[int, int]]:
    return [(s.attempt, s.restarts_in_place) for s in the_world.job.status.slices]


def up_again(the_world: World, name: str, *ends: dict[str, Any]) -> None:
    the_world.set_pod(name, **lives(*ends, ready=True))
    the_world.settle()


class TestPods:
    def test_their_kubelets_start_them_again_and_the_launcher_remembers(self) -> None:
        the_world = World(job(failurePolicy=IN_PLACE, head=HEAD))
        pods = {m["metadata"]["name"]: m for m in the_world.plan().creates if m["kind"] == "Pod"}
        assert pods["train-head"]["spec"]["restartPolicy"] == "Never"
        for host in range(4):
            pod = pods[f"train-0-{host}"]
            assert pod["spec"]["restartPolicy"] == "OnFailure"
            (main,) = pod["spec"]["containers"]
            env = {variable["name"]: variable["value"] for variable in main["env"]}
            assert {"name": "state", "mountPath": env["TPU_LAUNCH_STATE_DIR"]} in main["volumeMounts"]
            assert {"name": "state", "emptyDir": {}} in pod["spec"]["volumes"]
            assert pod["metadata"]["labels"]["tpu-operator.dev/first-attempt"] == "0"

    def test_nothing_of_that_without_restarts_in_place(self) -> None:
        (pod, *_) = [m for m in World(job()).plan().creates if m["kind"] == "Pod"]
        assert pod["spec"]["restartPolicy"] == "Never"
        assert "state" not in {volume["name"] for volume in pod["spec"]["volumes"]}
        assert "tpu-operator.dev/first-attempt" not in pod["metadata"]["labels"]

    def test_slices_that_restart_alone_meet_alone(self) -> None:
        tpu = {"accelerator": "v5e", "topology": "4x4", "slices": 2}
        the_world = World(job(failurePolicy={"restartScope": "Slice"}, tpu=tpu))
        pods = {m["metadata"]["name"]: m for m in the_world.plan().creates if m["kind"] == "Pod"}
        for index in range(2):
            env = {e["name"]: e["value"] for e in pods[f"train-{index}-1"]["spec"]["containers"][0]["env"]}
            assert env["TPU_OPERATOR_COORDINATOR"] == f"train-{index}-0.train"
            assert env["TPU_OPERATOR_RESTART_SCOPE"] == "Slice"


class TestOneFailure:
    def test_it_is_charged_once_however_often_it_is_seen_and_no_pod_is_touched(self) -> None:
        the_world = world()
        before = uids(the_world)
        for now in ("terminated", "waiting", "running"):
            the_world.set_pod("train-0-2", **lives(said(0), now=now))
            the_world.settle()
            status = the_world.job.status
            assert attempts(the_world) == [(1, 1)]
            assert (status.phase, status.ready) == ("Restarting", "0/4")
            assert the_world.condition("Restarting") == "True/UserError"
            assert status.restarts.by_cause == {"UserError": 1}
            assert (status.restarts.total, status.restarts.counted) == (1, 1)
            assert status.last_failure is not None
            assert (status.last_failure.pod, status.last_failure.attempt) == ("train-0-2", 0)
        up_again(the_world, "train-0-2", said(0))
        status = the_world.job.status
        assert (status.phase, status.ready, status.restarts.total) == ("Running", "4/4", 1)
        assert status.slices[0].in_place_since is None
        assert status.slices[0].state == "Running"
        assert uids(the_world) == before
        assert the_world.events.count("UserError") == 1

    def test_it_takes_two_writes_of_the_status_on_four_hosts_as_on_one(self) -> None:
        the_world = world()
        writes = []
        steps = [lives(said(0), now="terminated"), lives(said(0)), lives(said(0), ready=True)]
        for step in steps:
            the_world.set_pod("train-0-2", **step)
            for _ in range(3):
                plan = the_world.step()
                writes += [plan.status["phase"]] if plan.status else []
        assert writes == ["Restarting", "Running"]

    def test_how_long_it_took_is_measured(self) -> None:
        the_world = world()
        the_world.set_pod("train-0-2", **lives(said(0)))
        the_world.settle()
        the_world.now += seconds(4)
        the_world.set_pod("train-0-2", **lives(said(0), ready=True))
        (observed,) = the_world.plan().observations
        assert (observed.metric, observed.seconds) == ("gang_restart_seconds", 4)
        assert observed.labels == ("UserError",)

    def test_the_host_that_failed_first_by_its_own_clock_is_to_blame(self) -> None:
        the_world = world()
        the_world.set_pod("train-0-2", **lives(said(0, after=1.0)))
        the_world.settle()
        the_world.set_pod("train-0-1", **lives(said(0, after=0.5, cause="OutOfMemory", code=137)))
        the_world.settle()
        status = the_world.job.status
        assert status.restarts.by_cause == {"OutOfMemory": 1}
        assert status.last_failure is not None
        assert status.last_failure.pod == "train-0-1"
        assert attempts(the_world) == [(1, 1)]

    def test_a_late_echo_changes_nothing(self) -> None:
        the_world = world()
        the_world.set_pod("train-0-2", **lives(said(0)))
        the_world.settle()
        the_world.set_pod("train-0-1", **lives(said(0, after=2.0)))
        before = the_world.job.status
        assert the_world.settle().job.status == before

    def test_all_slices_go_on_to_the_next_attempt_or_one_of_them(self) -> None:
        for scope, expected in (("Job", [(1, 1), (1, 1)]), ("Slice", [(0, 0), (1, 1)])):
            tpu = {"accelerator": "v5e", "topology": "4x4", "slices": 2}
            the_world = world({"restartScope": scope}, tpu=tpu)
            the_world.set_pod("train-1-2", **lives(said(0)))
            the_world.settle()
            assert attempts(the_world) == expected
            up_again(the_world, "train-1-2", said(0))
            assert the_world.job.status.phase == "Running"

    def test_a_head_is_left_alone(self) -> None:
        the_world = world(head=HEAD)
        before = uids(the_world)
        the_world.set_pod("train-0-2", **lives(said(0), ready=True))
        the_world.settle()
        assert attempts(the_world) == [(1, 1)]
        assert uids(the_world) == before

    def test_back_off_of_the_container_is_not_what_the_job_waits_for(self) -> None:
        the_world = world()
        the_world.set_pod("train-0-2", **lives(said(0), now="waiting"))
        assert the_world.settle().condition("Blocked") == ""


class TestPolicy:
    def test_a_rule_ends_the_job_and_takes_the_pods_down(self) -> None:
        the_world = world({"rules": [{"onExitCodes": [3], "action": "FailJob"}]})
        the_world.set_pod("train-0-2", **lives(said(0, code=3)))
        the_world.settle()
        assert the_world.condition("Failed") == "True/FailureRule"
        assert the_world.pods == {}
        assert attempts(the_world) == [(0, 0)]

    def test_what_the_launchers_begin_before_the_pods_are_gone_counts_for_nothing(self) -> None:
        the_world = world({"maxRestarts": 0})
        the_world.keep_deleted = True
        the_world.set_pod("train-0-2", **lives(said(0)))
        the_world.step()
        the_world.set_pod("train-0-1", **lives(said(1, after=1, cause="Hang")))
        the_world.settle()
        the_world.vanish().settle()
        status = the_world.job.status
        assert the_world.condition("Failed") == "True/MaxRestartsReached"
        assert status.restarts.total == 0
        assert status.last_failure is not None
        assert (status.last_failure.pod, status.last_failure.cause) == ("train-0-2", "UserError")

    def test_restarts_are_counted_until_they_are_used_up(self) -> None:
        the_world = world({"maxRestarts": 2})
        ends = [said(0), said(1, after=20), said(2, after=40)]
        for count in (1, 2):
            up_again(the_world, "train-0-2", *ends[:count])
            assert attempts(the_world) == [(count, count)]
        up_again(the_world, "train-0-2", *ends)
        assert the_world.condition("Failed") == "True/MaxRestartsReached"
        assert the_world.job.status.restarts.counted == 2

    def test_a_rule_makes_it_free(self) -> None:
        the_world = world({"maxRestarts": 0, "rules": [{"onExitCodes": [1], "action": "RestartUncounted"}]})
        up_again(the_world, "train-0-2", said(0))
        restarts = the_world.job.status.restarts
        assert (restarts.total, restarts.counted) == (1, 0)
        assert the_world.job.status.phase == "Running"

    def test_what_a_rule_ignores_is_another_attempt_all_the_same_and_on_no_account(self) -> None:
        the_world = world({"rules": [{"onExitCodes": [1], "action": "Ignore"}]})
        before = uids(the_world)
        up_again(the_world, "train-0-2", said(0))
        assert attempts(the_world) == [(1, 1)]
        assert the_world.job.status.restarts.total == 0
        assert the_world.job.status.last_failure is None
        assert uids(the_world) == before

    def test_new_pods_for_what_a_rule_ignores_are_not_made_again_and_again_at_once(self) -> None:
        """A host that has ended well is not started again, so that all need new pods."""
        the_world = world({"rules": [{"onExitCodes": [1], "action": "Ignore"}]})
        for number in range(2):
            assert {pod.attempt for pod in the_world.pods.values()} == {number}
            the_world.set_pod("train-0-0", **terminated(0))
            the_world.set_pod("train-0-2", **lives(said(number)))
            the_world.settle()
        assert the_world.pods == {}
        assert the_world.plan().requeue_after == pytest.approx(2)
        assert the_world.job.status.restarts.total == 0


class TestManyFailures:
    def test_an_operator_that_was_away_counts_all_of_them(self) -> None:
        the_world = world({"maxRestarts": 9})
        earlier = [
            {"attempt": 0, "cause": "OutOfMemory", "exitCode": 137, "time": NOW.timestamp(), "error": "oom"},
            {"attempt": 1, "cause": "UserError", "exitCode": 1, "time": NOW.timestamp() + 5, "error": "a"},
        ]
        last = said(2, after=20, cause="Hang", code=77, earlier=earlier)
        up_again(the_world, "train-0-2", oom(), said(1, after=5), last)
        assert attempts(the_world) == [(3, 3)]
        assert the_world.job.status.restarts.by_cause == {"OutOfMemory": 1, "UserError": 1, "Hang": 1}

    def test_on_several_hosts(self) -> None:
        the_world = world({"maxRestarts": 9})
        for host in range(3):
            the_world.set_pod(f"train-0-{host}", **lives(said(host, after=host), ready=True))
        the_world.settle()
        assert attempts(the_world) == [(3, 3)]
        assert the_world.job.status.restarts.by_cause == {"UserError": 3}

    def test_those_of_which_nothing_is_left_are_counted_by_the_restarts_of_the_container(self) -> None:
        the_world = world({"maxRestarts": 9})
        up_again(the_world, "train-0-2", oom(), oom(1), oom(2))
        assert attempts(the_world) == [(3, 3)]
        assert the_world.job.status.restarts.by_cause == {"OutOfMemory": 3}

    def test_a_number_that_cannot_be_is_not_believed(self) -> None:
        the_world = world({"maxRestarts": 9})
        up_again(the_world, "train-0-2", said(10**9))
        assert attempts(the_world) == [(1, 1)]

    def test_in_the_middle_of_another_restart(self) -> None:
        the_world = world({"maxRestarts": 9})
        the_world.set_pod("train-0-2", **lives(said(0)))
        the_world.settle()
        the_world.set_pod("train-0-1", **lives(said(1, after=3)))
        the_world.settle()
        assert attempts(the_world) == [(2, 2)]
        up_again(the_world, "train-0-2", said(0))
        up_again(the_world, "train-0-1", said(1, after=3))
        assert the_world.job.status.phase == "Running"


class TestWithoutAWord:
    def test_it_is_an_echo_within_the_time_of_one_failure_and_another_one_after_it(self) -> None:
        the_world = world({"coalesceSeconds": 10})
        up_again(the_world, "train-0-2", said(0))
        up_again(the_world, "train-0-1", oom(9))
        assert attempts(the_world) == [(1, 1)]
        up_again(the_world, "train-0-3", oom(30))
        assert attempts(the_world) == [(2, 2)]
        assert the_world.job.status.restarts.by_cause == {"UserError": 1, "OutOfMemory": 1}

    def test_it_is_to_blame_if_it_came_first(self) -> None:
        the_world = world()
        the_world.set_pod("train-0-2", **lives(said(0, after=2)))
        the_world.settle()
        the_world.set_pod("train-0-1", **lives(oom()))
        the_world.settle()
        assert attempts(the_world) == [(1, 1)]
        assert the_world.job.status.restarts.by_cause == {"OutOfMemory": 1}

    def test_a_node_that_was_started_anew_is_not_the_jobs_doing(self) -> None:
        the_world = world()
        up_again(the_world, "train-0-2", ended(255, "", reason="Unknown"))
        restarts = the_world.job.status.restarts
        assert (restarts.by_cause, restarts.counted) == ({"NodeLost": 1}, 0)


class TestNewPods:
    def test_they_are_charged_to_what_took_a_pod_away_in_whatever_order_the_others_go(self) -> None:
        the_world = world()
        up_again(the_world, "train-0-2", said(0))
        up_again(the_world, "train-0-0", said(1, after=5))
        the_world.keep_deleted = True
        the_world.now += seconds(8)
        the_world.delete_pod("train-0-3")
        the_world.settle()
        for host in (2, 3, 1, 0):
            the_world.vanish(f"train-0-{host}").settle()
            assert the_world.job.status.restarts.by_cause == {"UserError": 2, "PodDeleted": 1}

    def recreated(self, the_world: World, attempt: int, in_place: int) -> None:
        """The pods are those of another attempt, of whose number they know."""
        the_world.settle().vanish().settle()
        assert attempts(the_world) == [(attempt, in_place)]
        labels = {
            (
                pod.metadata.labels["tpu-operator.dev/attempt"],
                pod.metadata.labels["tpu-operator.dev/first-attempt"],
            )
            for pod in the_world.pods.values()
        }
        assert labels == {(str(attempt - in_place), str(attempt))}
        the_world.all_pods(**RUNNING).settle()
        assert the_world.job.status.phase == "Running"
        the_world.set_pod("train-0-1", **lives(said(attempt, after=99), ready=True))
        the_world.settle()
        assert attempts(the_world) == [(attempt + 1, in_place + 1)]

    def test_where_a_host_has_ended_well(self) -> None:
        the_world = world()
        the_world.set_pod("train-0-1", **terminated(0))
        the_world.set_pod("train-0-2", **lives(said(0)))
        self.recreated(the_world, 1, 0)
        assert the_world.job.status.restarts.total == 2

    def test_where_not_all_pods_were_on_nodes_yet(self) -> None:
        the_world = World(job(failurePolicy=IN_PLACE)).settle()
        the_world.set_pod("train-0-2", **lives(said(0)))
        self.recreated(the_world, 1, 0)

    def test_where_the_template_has_changed(self) -> None:
        the_world = world()
        the_world.patch_spec(template={"metadata": {"labels": {"mine": "1"}}})
        the_world.settle()
        the_world.set_pod("train-0-2", **lives(said(0)))
        self.recreated(the_world, 1, 0)

    def test_where_they_are_not_ready_in_time_and_without_another_charge(self) -> None:
        the_world = world()
        the_world.set_pod("train-0-2", **lives(said(0)))
        the_world.settle()
        plan = the_world.plan()
        assert plan.requeue_after == 90
        the_world.now += seconds(90)
        the_world.step()
        assert the_world.condition("Restarting") == "True/NotReadyInPlace"
        assert the_world.job.status.restarts.total == 1
        self.recreated(the_world, 2, 1)

    def test_where_a_pod_is_deleted_during_the_restart_or_in_its_time(self) -> None:
        the_world = world()
        the_world.set_pod("train-0-2", **lives(said(0)))
        the_world.settle()
        the_world.vanish("train-0-3")
        the_world.step()
        assert the_world.condition("Restarting") == "True/LostInPlace"
        assert the_world.job.status.restarts.by_cause == {"UserError": 1}
        self.recreated(the_world, 2, 1)

    def test_where_a_pod_is_deleted_long_after_it(self) -> None:
        the_world = world()
        up_again(the_world, "train-0-2", said(0))
        the_world.now += seconds(60)
        the_world.vanish("train-0-3")
        the_world.step()
        assert the_world.job.status.restarts.by_cause == {"UserError": 1, "PodDeleted": 1}
        self.recreated(the_world, 2, 1)

    def test_where_the_loss_of_a_node_turns_out_to_be_the_root(self) -> None:
        the_world = world()
        the_world.nodes = {f"node-{host}": node(f"node-{host}", "pool") for host in range(4)}
        for host in range(4):
            the_world.set_pod(f"train-0-{host}", f"node-{host}", **RUNNING)
        the_world.settle()
        the_world.set_pod("train-0-2", "node-2", **lives(said(0, after=2)))
        the_world.settle()
        assert the_world.job.status.restarts.counted == 1
        the_world.nodes["node-3"] = node("node-3", "pool", ready="Unknown", since=NOW)
        the_world.now += seconds(61)
        the_world.step()
        restarts = the_world.job.status.restarts
        assert (restarts.by_cause, restarts.counted, restarts.total) == ({"NodeLost": 1}, 0, 1)
        assert attempts(the_world) == [(2, 1)]

    def test_where_a_pod_is_evicted_the_failure_of_its_peers_is_an_echo(self) -> None:
        the_world = world()
        the_world.keep_deleted = True
        target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        target["lastTransitionTime"] = stamp(NOW)
        the_world.set_pod("train-0-3", **(RUNNING | {"conditions": [target]}))
        the_world.delete_pod("train-0-3")
        the_world.set_pod("train-0-2", **lives(said(0, after=1)))
        the_world.step()
        restarts = the_world.job.status.restarts
        assert (restarts.by_cause, restarts.counted) == ({"Preempted": 1}, 0)
        self.recreated(the_world, 1, 0)


class TestTheRestOfIt:
    def test_suspension_makes_new_pods_and_remembers(self) -> None:
        the_world = world()
        up_again(the_world, "train-0-2", said(0))
        the_world.patch_spec(suspend=True)
        the_world.settle().vanish().settle()
        the_world.patch_spec(suspend=False)
        the_world.run()
        assert attempts(the_world) == [(2, 1)]
        assert the_world.job.status.restarts.total == 1

    def test_success_on_all_hosts(self) -> None:
        the_world = world()
        up_again(the_world, "train-0-2", said(0))
        the_world.all_pods(**terminated(0)).settle()
        assert the_world.condition("Succeeded") == "True/Completed"

    def test_a_status_that_is_lost_is_read_off_the_pods_and_nothing_restarts(self) -> None:
        the_world = world()
        up_again(the_world, "train-0-2", oom(), said(1, after=30))
        before = uids(the_world)
        the_world.set_status({})
        the_world.settle()
        assert attempts(the_world) == [(2, 2)]
        assert the_world.job.status.restarts.total == 0
        assert uids(the_world) == before
        up_again(the_world, "train-0-3", said(2, after=60))
        assert attempts(the_world) == [(3, 3)]

    @pytest.mark.parametrize("writes", [0, 1])
    def test_an_operator_that_ends_before_or_after_its_write_counts_once(self, writes: int) -> None:
        the_world = world()
        the_world.set_pod("train-0-2", **lives(said(0)))
        the_world.carry_out(the_world.plan(), 0, status=bool(writes))
        the_world.settle()
        assert attempts(the_world) == [(1, 1)]
        assert the_world.job.status.restarts.total == 1

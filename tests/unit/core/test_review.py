"""Ways in which a job could once go wrong, found by reading the code, each played through."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tests.builders import NOW, RUNNING, World, job, report, terminated
from tpu_operator.core.snapshot import Pod

SLICES = {"accelerator": "v5e", "topology": "4x4", "slices": 2}


def world(**spec: Any) -> World:
    return World(job(**spec))


def attempts(the_world: World) -> set[int]:
    return {pod.attempt for pod in the_world.pods.values()}


def evict(the_world: World, name: str) -> None:
    the_world.set_pod(name, phase="Failed", reason="Evicted", message="low on memory")


class TestLogs:
    """A kubelet calls a container terminated before it gives the pod its last phase."""

    @pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (1, "Failed")])
    def test_pods_whose_containers_have_ended_are_kept_for_their_logs(self, code: int, phase: str) -> None:
        the_world = world(failurePolicy={"maxRestarts": 0}).run()
        the_world.all_pods(**terminated(code, report() if code else "") | {"phase": "Running"}).settle()
        assert the_world.job.status.phase == phase
        assert len(the_world.pods) == 4


class TestStopped:
    def test_a_host_that_checkpoints_and_exits_0_when_preempted_has_not_succeeded(self) -> None:
        the_world = world(tpu={"accelerator": "v5e", "topology": "2x2"}).run()
        target = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "lastTransitionTime": "2026-11-30T12:00:00Z",
        }
        stopped = report(cause=None, exit_code=0, terminated=True)
        the_world.set_pod("train-0-0", **terminated(0, stopped) | {"conditions": [target]})
        the_world.settle()
        restarts = the_world.job.status.restarts
        assert (restarts.total, restarts.counted, restarts.by_cause) == (1, 0, {"Preempted": 1})
        assert attempts(the_world) == {1}


class TestBackOff:
    def test_a_gang_that_is_evicted_again_and_again_is_not_made_again_at_once(self) -> None:
        the_world = world().settle()
        for _ in range(3):
            evict(the_world, "train-0-0")
            the_world.settle()
            the_world.now += timedelta(seconds=3)
            the_world.settle()
        assert the_world.job.status.restarts.since_ready == 3
        assert not the_world.pods
        assert the_world.plan().requeue_after == pytest.approx(1)
        the_world.now += timedelta(seconds=1)
        the_world.settle()
        assert attempts(the_world) == {3}

    def test_hosts_that_were_all_ready_begin_anew(self) -> None:
        the_world = world().run()
        for _ in range(3):
            evict(the_world, "train-0-0")
            the_world.run()
        assert the_world.job.status.restarts.total == 3
        assert the_world.job.status.restarts.since_ready == 0

    @pytest.mark.parametrize(
        ("reason", "cause"), [("UnexpectedAdmissionError", "TPUFault"), ("NodeAffinity", "Evicted")]
    )
    def test_a_pod_that_a_kubelet_rejects_is_no_user_error(self, reason: str, cause: str) -> None:
        the_world = world().settle()
        the_world.set_pod("train-0-0", phase="Failed", reason=reason, message="no")
        the_world.settle()
        restarts = the_world.job.status.restarts
        assert (restarts.counted, restarts.by_cause) == (0, {cause: 1})


class TestDone:
    @pytest.mark.parametrize("scope", ["Slice", "Job"])
    def test_a_slice_that_has_succeeded_is_not_run_again_when_its_nodes_go(self, scope: str) -> None:
        the_world = world(tpu=SLICES, failurePolicy={"restartScope": scope}).run()
        for host in range(4):
            the_world.set_pod(f"train-0-{host}", **terminated(0))
        the_world.settle()
        the_world.vanish(*[f"train-0-{host}" for host in range(4)]).settle()
        assert attempts(the_world) == {0}
        assert the_world.job.status.restarts.total == 0
        assert the_world.job.status.slices[0].state == "Succeeded"
        assert the_world.job.status.ready == "8/8"
        the_world.all_pods(**terminated(0)).settle()
        assert the_world.job.status.phase == "Succeeded"

    def test_an_ignored_failure_does_not_keep_the_job_from_ending(self) -> None:
        rules = [{"onExitCodes": [3], "action": "Ignore"}]
        the_world = world(failurePolicy={"rules": rules}).run()
        the_world.set_pod("train-0-3", **terminated(3))
        assert the_world.settle().job.status.phase == "Running"
        for host in range(3):
            the_world.set_pod(f"train-0-{host}", **terminated(0))
        assert the_world.settle().job.status.phase == "Succeeded"

    def test_success_that_came_before_the_deadline_stands_though_it_is_seen_after_it(self) -> None:
        the_world = world(activeDeadlineSeconds=60).run()
        the_world.all_pods(**terminated(0))
        the_world.now += timedelta(seconds=61)
        assert the_world.settle().job.status.phase == "Succeeded"


class TestScopeChange:
    def test_slices_that_become_one_gang_catch_up_without_a_charge(self) -> None:
        the_world = world(tpu=SLICES, failurePolicy={"restartScope": "Slice"}).run()
        the_world.set_pod("train-1-0", **terminated(1, report()))
        the_world.run()
        assert [s.attempt for s in the_world.job.status.slices] == [0, 1]
        the_world.patch_spec(failurePolicy={"restartScope": "Job"})
        the_world.run()
        # Pods that meet with one slice only cannot wait for the others: all are made anew.
        assert [s.attempt for s in the_world.job.status.slices] == [2, 2]
        assert the_world.job.status.restarts.total == 1


class TestTemplates:
    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            ({"containers": None}, "spec.template.spec.containers: Expected `array`, got `null`"),
            ({"containers": "main"}, "spec.template.spec.containers: Expected `array`, got `str`"),
            ({"containers": [None]}, "spec.template.spec.containers[0]: Expected `object`, got `null`"),
            (
                {"containers": [{"name": "main", "env": [{"value": "1"}]}]},
                "spec.template.spec.containers[0].env[0]: Object missing required field `name`",
            ),
            ({"volumes": [{"emptyDir": {}}]}, "spec.template.spec.volumes[0]"),
            ({"containers": [{"name": "main", "command": ["sh"]}]}, "spec.run.command"),
            (
                {"containers": [{"name": "main", "resources": {"limits": {"google.com/tpu": 1}}}]},
                "ask for 1 google.com/tpu in all, a host has 4",
            ),
        ],
    )
    def test_a_template_that_cannot_be_used_is_told_and_nothing_is_made(
        self, spec: dict[str, Any], words: str
    ) -> None:
        the_world = world(template={"spec": spec}).settle()
        assert the_world.condition("Blocked") == "True/EnvironmentConflict"
        assert words in (the_world.job.status.message or "")
        assert not the_world.pods

    def test_a_variable_that_linux_would_not_pass_on_is_told(self) -> None:
        tpu = {"accelerator": "v5p", "topology": "16x16x16"}
        the_world = World(job("llama-pretrain-2026", tpu=tpu))
        the_world.settle()
        assert the_world.condition("Blocked") == "True/EnvironmentConflict"
        assert "Linux allows 131072: shorten the job's name" in (the_world.job.status.message or "")


class TestHostileObjects:
    def test_a_deeply_nested_termination_message_is_no_report(self) -> None:
        the_world = world().run()
        the_world.set_pod("train-0-0", **terminated(1, '{"v":1,"x":' + "[" * 3000))
        the_world.settle()
        assert the_world.job.status.restarts.by_cause == {"UserError": 1}

    @pytest.mark.parametrize("value", ["9" * 30, "-1", "x", "99999999999"])
    def test_numbers_in_labels_that_users_made_up(self, value: str) -> None:
        the_world = world().run()
        wire = msgspec.to_builtins(the_world.pods["train-0-1"])
        wire["metadata"]["labels"]["tpu-operator.dev/attempt"] = value
        the_world.pods["train-0-1"] = msgspec.convert(wire, Pod)
        the_world.settle()
        assert attempts(the_world) == {1}

    def test_an_endless_grace_period(self) -> None:
        the_world = world().run()
        wire = msgspec.to_builtins(the_world.pods["train-0-1"])
        wire["metadata"] |= {
            "deletionTimestamp": "2026-11-30T12:00:00Z",
            "deletionGracePeriodSeconds": 10**12,
        }
        the_world.pods["train-0-1"] = msgspec.convert(wire, Pod)
        assert the_world.plan().status is not None

    def test_a_host_clock_that_is_ahead_does_not_hold_the_end_up(self) -> None:
        the_world = world(failurePolicy={"maxRestarts": 0}).run()
        the_world.keep_deleted = True
        the_world.set_pod(
            "train-0-2", **terminated(1, report(at=NOW + timedelta(hours=1)), at=NOW + timedelta(hours=1))
        )
        the_world.step()
        assert the_world.step().requeue_after == pytest.approx(10)


def test_old_pods_in_the_way_are_the_reason_shown_while_restarting() -> None:
    the_world = world().run()
    the_world.keep_deleted = True
    the_world.set_pod("train-0-2", **terminated(1, report()))
    the_world.settle()
    the_world.now += timedelta(seconds=120)
    the_world.settle()
    assert the_world.job.status.phase == "Restarting"
    assert the_world.job.status.reason == "WaitingForOldPods"


def test_the_head_is_judged_by_its_first_container_not_by_the_alphabet() -> None:
    containers = [{"name": "driver", "image": "d"}, {"name": "agent", "image": "a"}]
    the_world = world(head={"spec": {"containers": containers}}, successPolicy="Leader").run()
    states = [
        {"name": "agent", "state": {"terminated": {"exitCode": 0}}},
        {"name": "driver", "state": {"running": {}}},
    ]
    the_world.set_pod("train-head", **RUNNING | {"containerStatuses": states})
    assert the_world.settle().job.status.phase == "Running"

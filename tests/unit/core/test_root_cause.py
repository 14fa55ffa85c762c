"""Which failure a restart is put down to, when hosts report one after the other."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tests.builders import NOW, World, job, report, stamp, terminated

TWO_SLICES = {"accelerator": "v5e", "topology": "4x4", "slices": 2}
IGNORE_7 = {"onExitCodes": [7], "action": "Ignore"}


def world(**spec: Any) -> World:
    """A running job whose deleted pods stay, terminating, until the test says otherwise."""
    the_world = World(job(**spec)).run()
    the_world.keep_deleted = True
    return the_world


def fail(the_world: World, name: str, after: float = 0.0, exit_code: int = 1) -> None:
    at = NOW + timedelta(seconds=after)
    the_world.set_pod(name, **terminated(exit_code, report(exit_code=exit_code, at=at), at=at))


def preempt(the_world: World, name: str, after: float = 0.0) -> None:
    """The scheduler takes the pod away; it ends five seconds later."""
    at = NOW + timedelta(seconds=after)
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    gone = at + timedelta(seconds=5)
    message = report(cause=None, exit_code=143, at=gone, terminated=True)
    status = terminated(143, message, at=gone)
    the_world.set_pod(name, **status, conditions=[condition | {"lastTransitionTime": stamp(at)}])


def root(the_world: World) -> tuple[str, str | None]:
    failure = the_world.job.status.last_failure
    assert failure is not None
    return failure.cause, failure.pod


def restarts(the_world: World) -> tuple[int, int, dict[str, int]]:
    found = the_world.job.status.restarts
    return found.total, found.counted, {str(cause): count for cause, count in found.by_cause.items()}


class TestCorrection:
    def test_an_earlier_preemption_gives_the_charge_back(self) -> None:
        the_world = world()
        fail(the_world, "train-0-0", after=1)
        the_world.settle()
        assert restarts(the_world) == (1, 1, {"UserError": 1})
        preempt(the_world, "train-0-2")
        the_world.settle()
        assert root(the_world) == ("Preempted", "train-0-2")
        assert restarts(the_world) == (1, 0, {"Preempted": 1})
        assert the_world.condition("Restarting") == "True/Preempted"

    def test_an_earlier_error_is_charged(self) -> None:
        the_world = world()
        preempt(the_world, "train-0-2", after=1)
        the_world.settle()
        fail(the_world, "train-0-0")
        the_world.settle()
        assert root(the_world) == ("UserError", "train-0-0")
        assert restarts(the_world) == (1, 1, {"UserError": 1})

    def test_an_earlier_error_beyond_the_budget_ends_the_job(self) -> None:
        the_world = world(failurePolicy={"maxRestarts": 0})
        preempt(the_world, "train-0-2", after=1)
        the_world.settle()
        assert the_world.job.status.phase == "Restarting"
        fail(the_world, "train-0-0")
        the_world.settle()
        assert the_world.condition("Failed") == "True/MaxRestartsReached"
        assert root(the_world) == ("UserError", "train-0-0")
        assert restarts(the_world) == (0, 0, {})

    def test_an_earlier_failure_that_a_rule_makes_fatal_ends_the_job(self) -> None:
        the_world = world(failurePolicy={"rules": [{"onExitCodes": [7], "action": "FailJob"}]})
        fail(the_world, "train-0-0", after=1)
        the_world.settle()
        fail(the_world, "train-0-1", exit_code=7)
        assert the_world.settle().condition("Failed") == "True/FailureRule"

    def test_a_failure_that_the_policy_ignores_is_no_root_cause_however_early(self) -> None:
        the_world = world(failurePolicy={"rules": [IGNORE_7]})
        fail(the_world, "train-0-1", exit_code=7)
        the_world.settle()
        assert restarts(the_world) == (0, 0, {})
        fail(the_world, "train-0-0", after=1)
        the_world.settle()
        assert root(the_world) == ("UserError", "train-0-0")
        assert restarts(the_world) == (1, 1, {"UserError": 1})

    def test_a_suspension_leaves_the_last_restart_alone(self) -> None:
        the_world = world(failurePolicy={"maxRestarts": 0})
        fail(the_world, "train-0-0", after=1)
        the_world.step()
        the_world.patch_spec(suspend=True)
        the_world.settle()
        the_world.patch_spec(suspend=False)
        fail(the_world, "train-0-1")
        the_world.settle()
        assert restarts(the_world) == (0, 0, {})
        assert root(the_world) == ("UserError", "train-0-0")

    def test_a_failed_head_does_not_explain_the_restart_of_another_slice(self) -> None:
        head = {"spec": {"containers": [{"name": "main", "image": "driver"}]}}
        the_world = world(tpu=TWO_SLICES, head=head, failurePolicy={"restartScope": "Slice"})
        fail(the_world, "train-1-0", after=1)
        the_world.settle()
        fail(the_world, "train-head", after=2)
        the_world.settle()
        fail(the_world, "train-1-1")
        the_world.settle()
        assert root(the_world) == ("UserError", "train-head")
        assert restarts(the_world) == (2, 2, {"UserError": 2})


class TestGone:
    """Pods that come to an end and go before anything is decided."""

    def test_a_preempted_pod_is_still_to_blame(self) -> None:
        the_world = world(failurePolicy={"maxRestarts": 0})
        preempt(the_world, "train-0-2")
        fail(the_world, "train-0-0", after=1)
        the_world.vanish("train-0-2").settle()
        assert root(the_world) == ("Preempted", "train-0-2")
        assert restarts(the_world) == (1, 0, {"Preempted": 1})

    def test_also_where_it_goes_when_the_error_is_on_record(self) -> None:
        the_world = world(failurePolicy={"maxRestarts": 0})
        fail(the_world, "train-0-0", after=1)
        the_world.step()
        preempt(the_world, "train-0-2")
        the_world.vanish("train-0-2").settle()
        assert root(the_world) == ("Preempted", "train-0-2")

    def test_an_error_of_its_own_is_charged(self) -> None:
        the_world = world()
        fail(the_world, "train-0-2")
        the_world.vanish("train-0-2").settle()
        assert root(the_world) == ("UserError", "train-0-2")
        assert restarts(the_world) == (1, 1, {"UserError": 1})

    def test_of_one_that_ran_well_there_is_only_that_it_was_deleted(self) -> None:
        the_world = world()
        the_world.vanish("train-0-2").settle()
        assert root(the_world) == ("PodDeleted", "train-0-2")

    def test_what_became_of_an_older_pod_of_the_same_name_is_forgotten(self) -> None:
        the_world = world()
        fail(the_world, "train-0-2")
        the_world.vanish("train-0-2").settle()
        the_world.vanish()
        the_world.keep_deleted = False
        the_world.run()
        the_world.vanish("train-0-2").settle()
        assert restarts(the_world) == (2, 1, {"UserError": 1, "PodDeleted": 1})

    def test_a_pod_of_another_owner_tells_nothing(self) -> None:
        the_world = world()
        fail(the_world, "train-0-2")
        the_world.vanish("train-0-2")
        pod = the_world.gone["train-0-2"]
        stranger = msgspec.structs.replace(pod.metadata, owner_references=[])
        the_world.gone["train-0-2"] = msgspec.structs.replace(pod, metadata=stranger)
        the_world.settle()
        assert root(the_world) == ("PodDeleted", "train-0-2")


class TestEnd:
    def test_an_earlier_preemption_saves_a_job_without_budget(self) -> None:
        the_world = world(failurePolicy={"maxRestarts": 0})
        fail(the_world, "train-0-0", after=1)
        the_world.step()
        preempt(the_world, "train-0-2")
        the_world.settle()
        assert root(the_world) == ("Preempted", "train-0-2")
        assert restarts(the_world) == (1, 0, {"Preempted": 1})
        assert the_world.job.status.phase == "Restarting"

    @pytest.mark.parametrize("fatal", ["train-0-1", "train-1-1"])
    def test_slices_taken_down_with_the_one_that_ended_the_job_are_no_failures(self, fatal: str) -> None:
        the_world = world(tpu=TWO_SLICES, failurePolicy={"restartScope": "Slice", "maxRestarts": 0})
        fail(the_world, fatal)
        the_world.settle()
        the_world.vanish().settle()
        assert the_world.condition("Failed") == "True/MaxRestartsReached"
        assert root(the_world) == ("UserError", fatal)
        assert restarts(the_world) == (0, 0, {})
        assert [s.attempt for s in the_world.job.status.slices] == [0, 0]
        assert the_world.events == ["AllHostsReady", "MaxRestartsReached"]

    def test_a_pod_that_never_goes_does_not_hold_the_end_up(self) -> None:
        the_world = world(failurePolicy={"maxRestarts": 0, "coalesceSeconds": 3})
        fail(the_world, "train-0-0")
        assert the_world.settle().plan().requeue_after == pytest.approx(3)
        the_world.now += timedelta(seconds=3)
        assert the_world.settle().job.status.phase == "Failed"

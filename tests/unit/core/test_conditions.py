"""Conditions, and the phase that sums them up."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.builders import NOW, RUNNING, World, job, report, terminated
from tpu_operator.api import Condition, ConditionStatus, ConditionType, Phase
from tpu_operator.core.conditions import Conditions, job_phase

LATER = NOW + timedelta(minutes=5)


def conditions(*true: ConditionType, ready: str = "") -> Conditions:
    found = Conditions([], 1, NOW)
    if ready:
        found.set(ConditionType.READY, False, ready)
    for kind in true:
        found.set(kind, True, "Because")
    return found


class TestSet:
    def test_a_new_condition(self) -> None:
        found = Conditions([], 7, NOW + timedelta(microseconds=999_999))
        found.set(ConditionType.READY, False, "Pending", "no nodes")
        assert found.all() == [
            Condition(
                type="Ready",
                status=ConditionStatus.FALSE,
                reason="Pending",
                message="no nodes",
                observed_generation=7,
                last_transition_time=NOW,
            )
        ]

    @pytest.mark.parametrize("value", [True, False])
    def test_the_time_stays_while_the_status_does_whatever_else_changes(self, value: bool) -> None:
        first = Conditions([], 1, NOW)
        first.set(ConditionType.READY, value, "A", "a")
        second = Conditions(first.all(), 2, LATER)
        second.set(ConditionType.READY, value, "B", "b")
        (found,) = second.all()
        assert (found.last_transition_time, found.observed_generation) == (NOW, 2)
        assert (found.reason, found.message) == ("B", "b")

    @pytest.mark.parametrize("value", [True, False])
    def test_the_time_moves_when_the_status_flips(self, value: bool) -> None:
        first = Conditions([], 1, NOW)
        first.set(ConditionType.READY, value, "A")
        second = Conditions(first.all(), 1, LATER)
        second.set(ConditionType.READY, not value, "A")
        assert second.all()[0].last_transition_time == LATER

    def test_flipping_to_and_fro_in_one_decision_is_no_flip(self) -> None:
        first = conditions(ConditionType.READY)
        second = Conditions(first.all(), 1, LATER)
        second.set(ConditionType.READY, False, "HostFailed")
        second.set(ConditionType.READY, True, "Because")
        assert second.all() == first.all()

    def test_unknown_counts_as_neither(self) -> None:
        old = Condition(type="Ready", status=ConditionStatus.UNKNOWN, last_transition_time=NOW)
        found = Conditions([old], 1, LATER)
        assert not found.is_true(ConditionType.READY)
        found.set(ConditionType.READY, False, "Pending")
        assert found.all()[0].last_transition_time == LATER

    def test_each_type_once_in_the_order_of_their_first_appearance(self) -> None:
        found = conditions(ConditionType.BLOCKED, ConditionType.READY, ConditionType.BLOCKED)
        assert [c.type for c in found.all()] == ["Blocked", "Ready"]

    def test_conditions_of_others_are_kept(self) -> None:
        theirs = Condition(type="team.example/Audited", status=ConditionStatus.TRUE, last_transition_time=NOW)
        found = Conditions([theirs], 1, LATER)
        found.set(ConditionType.READY, True, "AllHostsReady")
        assert found.all()[0] == theirs

    def test_what_is_not_there_is_not_true(self) -> None:
        found = Conditions([], 1, NOW)
        assert not found.is_true(ConditionType.FAILED)
        assert found.get(ConditionType.FAILED) is None


class TestPhase:
    @pytest.mark.parametrize(
        ("found", "phase"),
        [
            (conditions(), Phase.PENDING),
            (conditions(ready="Pending"), Phase.PENDING),
            (conditions(ready="Starting"), Phase.STARTING),
            (conditions(ready="HostFailed"), Phase.PENDING),
            (conditions(ConditionType.READY), Phase.RUNNING),
            (conditions(ConditionType.BLOCKED, ready="Pending"), Phase.PENDING),
            (conditions(ConditionType.RESTARTING), Phase.RESTARTING),
            (conditions(ConditionType.RESTARTING, ConditionType.READY), Phase.RESTARTING),
            (conditions(ConditionType.SUSPENDED, ConditionType.RESTARTING), Phase.SUSPENDED),
            (conditions(ConditionType.SUCCEEDED, ConditionType.SUSPENDED), Phase.SUCCEEDED),
            (conditions(ConditionType.FAILED, ConditionType.READY), Phase.FAILED),
            (conditions(ConditionType.MAINTENANCE_SCHEDULED, ConditionType.READY), Phase.RUNNING),
        ],
    )
    def test_table(self, found: Conditions, phase: Phase) -> None:
        assert job_phase(found) is phase

    @pytest.mark.parametrize("kind", list(ConditionType))
    def test_a_condition_that_is_false_is_as_good_as_none(self, kind: ConditionType) -> None:
        found = Conditions([], 1, NOW)
        found.set(kind, False, "Because")
        assert job_phase(found) is Phase.PENDING


class TestTransitions:
    def test_case_33_restarting_is_true_with_the_cause_and_false_when_the_new_pods_exist(self) -> None:
        the_world = World(job()).run()
        the_world.now = LATER
        the_world.set_pod("train-0-2", **terminated(1, report(at=NOW)))
        the_world.step()
        (restarting,) = [c for c in the_world.job.status.conditions if c.type == "Restarting"]
        assert (restarting.status, restarting.reason) == ("True", "UserError")
        assert restarting.last_transition_time == LATER
        the_world.now = LATER + timedelta(seconds=3)
        the_world.settle()
        (restarting,) = [c for c in the_world.job.status.conditions if c.type == "Restarting"]
        assert (restarting.status, restarting.reason) == ("False", "Restarted")
        assert restarting.last_transition_time == LATER + timedelta(seconds=3)

    def test_nothing_moves_while_nothing_happens(self) -> None:
        the_world = World(job()).run()
        before = the_world.job.status
        the_world.now += timedelta(days=1)
        assert the_world.settle().job.status == before

    def test_an_edit_that_changes_nothing_is_seen_and_moves_no_time(self) -> None:
        the_world = World(job()).run()
        times = {c.type: c.last_transition_time for c in the_world.job.status.conditions}
        the_world.now += timedelta(days=1)
        the_world.patch_spec(failurePolicy={"maxRestarts": 5})
        status = the_world.settle().job.status
        assert status.observed_generation == 2
        assert {c.type: c.last_transition_time for c in status.conditions} == times
        assert [c.observed_generation for c in status.conditions if c.type == "Ready"] == [2]

    def test_an_event_for_each_condition_that_becomes_true(self) -> None:
        the_world = World(job()).run()
        the_world.set_pod("train-0-2", **terminated(1, report(at=NOW)))
        the_world.settle().all_pods(**RUNNING).settle()
        the_world.all_pods(**terminated(0)).settle()
        assert the_world.events == ["AllHostsReady", "UserError", "AllHostsReady", "Completed"]

"""The rollout planner: plans that are written down in full, and one test for each rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.rollouts import World, pair, revision, roles, wanted
from tpu_operator.api import CapacityShortage, HoldGate, RolloutState, RolloutStrategy
from tpu_operator.core.inference.rollout import Goal, RoleGoal, Share, plan

DRAIN_FIRST = CapacityShortage.DRAIN_FIRST


def goal(prefill: int = 4, decode: int = 2, surge: int = 1, unavailable: int = 0, **fields: Any) -> Goal:
    """Both roles of revision b."""
    return Goal("b", roles(prefill, decode, surge, unavailable), **fields)


def rolling(asked: Goal, newest: str = "b") -> World:
    """A rollout from a, which has all that is asked for, ready."""
    prefill, decode = (role.target for role in asked.roles)
    return World.serving(replace(asked, newest=newest), pair("a", prefill, decode))


class TestWholePlans:
    def test_pc02_roles_start_at_zero_and_grow_in_proportion(self) -> None:
        assert rolling(goal(5, 2, surge=2, unavailable=1)).states("a", "b") == [
            (5, 2, 0, 0),
            (5, 2, 2, 1),
            (3, 1, 2, 1),
            (3, 1, 4, 2),
            (1, 1, 4, 2),
            (1, 1, 5, 2),
            (0, 0, 5, 2),
        ]

    def test_pc02_single_moves_follow_the_reference_plan(self) -> None:
        world = rolling(goal(5, 2, surge=2, unavailable=1))
        world.do(world.step().moves)
        assert not world.step().moves
        world.all_ready()
        first, *_ = world.step().moves
        world.do([first])
        assert world.states("a", "b")[0] == (4, 2, 2, 1)

    def test_without_surge_one_of_each_role_goes_before_its_successor_comes(self) -> None:
        assert rolling(goal(4, 4, surge=0, unavailable=1)).states("a", "b")[:5] == [
            (4, 4, 0, 0),
            (3, 3, 0, 0),
            (3, 3, 1, 1),
            (2, 2, 1, 1),
            (2, 2, 2, 2),
        ]

    def test_a_role_with_surge_beside_one_without(self) -> None:
        asked = Goal("b", (RoleGoal("prefill", 3, 0, 1), RoleGoal("decode", 2, 1, 0)))
        assert rolling(asked).states("a", "b") == [
            (3, 2, 0, 0),
            (2, 2, 0, 1),
            (2, 2, 1, 1),
            (1, 1, 1, 1),
            (1, 1, 2, 2),
            (0, 0, 2, 2),
            (0, 0, 3, 2),
        ]

    def test_the_first_revision_starts_with_all_at_once(self) -> None:
        step = plan(goal(), [])
        assert wanted(step, "b") == (4, 2)
        assert step.state is RolloutState.IDLE

    def test_the_end_is_done_and_idle(self) -> None:
        (*_, last) = rolling(goal()).finish()
        assert last.done
        assert last.hold is None
        assert last.state is RolloutState.IDLE


class TestBudgets:
    def test_pc03_what_leaves_holds_its_chips_until_it_is_gone(self) -> None:
        asked = goal(4, 2, surge=0, unavailable=1)
        world = World.serving(asked, pair("a", (3, 3, 1), (1, 1, 1)))
        step = world.step()
        assert not step.moves
        assert step.hold
        assert step.hold.gate is HoldGate.DRAIN
        world.all_gone()
        assert wanted(world.step(), "b") == (1, 1)

    def test_a_broken_image_rolls_no_further_than_its_budget(self) -> None:
        world = rolling(goal(4, 2, surge=1, unavailable=1))
        for _ in range(10):
            world.do(world.step().moves)
            world.all_gone()
        assert world.revisions["a"] == pair("a", 4, 2)
        assert world.revisions["b"].roles == pair("b", (1, 0), (1, 0)).roles

    def test_surge_goes_first_and_unavailability_is_left_for_failures(self) -> None:
        world = World.serving(goal(4, 2, surge=1, unavailable=1), pair("a", (4, 3), 2), pair("b", 1, 1))
        assert wanted(world.step(), "a") == (3, 1)
        assert world.revisions["a"].roles["prefill"].ready == 3

    def test_replicas_that_are_not_ready_go_first_and_cost_nothing(self) -> None:
        world = World.serving(goal(4, 2, surge=0, unavailable=1), pair("a", (4, 3), 2))
        assert wanted(world.step(), "a") == (3, 1)

    def test_one_failure_beyond_the_budget_stops_the_removal_of_ready_replicas(self) -> None:
        world = World.serving(goal(4, 2), pair("a", (4, 2), 2), pair("b", 1, 1))
        world.do(world.step().moves)
        assert world.revisions["a"].roles["prefill"].kept == 3
        assert world.revisions["a"].roles["prefill"].ready == 2

    def test_old_replicas_that_have_stopped_being_ready_are_not_all_given_up(self) -> None:
        # A network that is cut makes all unready at once; compiled engines are worth waiting for.
        cut = [pair("a", (4, 0), (2, 0)), pair("b", (1, 0), (1, 0))]
        assert not World.serving(goal(4, 2, current="a"), *cut).step().moves

    def test_what_was_replaced_before_anything_of_it_was_ready_gives_way_at_once(self) -> None:
        step = World.serving(goal(4, 2), pair("a", (4, 0), (2, 0))).step()
        assert wanted(step, "a") == (0, 0)
        assert wanted(step, "b") == (1, 1)
        three = [pair("a", 4, 2), pair("b", (1, 0), (1, 0))]
        scaled_up = replace(goal(6, 3, current="a"), newest="c")
        assert wanted(World.serving(scaled_up, *three).step(), "b") == (0, 0)

    def test_old_replicas_that_are_known_to_be_broken_give_way_at_once(self) -> None:
        world = World.serving(goal(4, 2), pair("a", (4, 0), (2, 0), broken=True))
        assert wanted(world.step(), "a") == (0, 0)

    def test_roles_with_budgets_of_zero_are_held_and_told_how_to_go_on(self) -> None:
        step = rolling(goal(surge=0, unavailable=0)).step()
        assert step.hold
        assert step.hold.gate is HoldGate.SURGE
        assert "maxSurge and maxUnavailable of prefill are 0" in step.hold.reason


class TestServing:
    def test_the_last_revision_that_serves_stays(self) -> None:
        world = rolling(goal(1, 1, surge=0, unavailable=1))
        step = world.step()
        assert not step.moves
        assert step.hold
        assert step.hold.gate is HoldGate.SURGE
        assert "spec.replicas to 2" in step.hold.reason

    def test_pc08_downtime_that_is_allowed_goes_through_nothing(self) -> None:
        world = rolling(goal(1, 1, surge=0, unavailable=1, allow_downtime=True))
        assert world.states("a", "b") == [(1, 1, 0, 0), (0, 0, 0, 0), (0, 0, 1, 1)]

    def test_downtime_that_is_allowed_is_leave_enough_where_both_budgets_are_zero(self) -> None:
        assert rolling(goal(1, 1, surge=0, allow_downtime=True)).finish()[-1].done

    def test_two_copies_need_no_surge(self) -> None:
        world = rolling(goal(2, 2, surge=0, unavailable=1, copies=2))
        assert world.finish()[-1].done

    def test_ready_replicas_that_serve_nobody_yet_replace_nothing(self) -> None:
        # Prefill starts in a minute, decode compiles for an hour: until then b gets no traffic.
        world = World.serving(goal(2, 1), pair("a", 2, 1), pair("b", (1, 1), (1, 0)))
        step = world.step()
        assert not step.moves
        assert step.hold
        assert step.hold.gate is HoldGate.READINESS
        assert step.hold.reason == "ready replicas of revision b: decode 0/1"

    def test_pc05_no_role_of_a_revision_goes_alone(self) -> None:
        world = World.serving(goal(3, 1), pair("a", 2, 1), pair("b", 2, 1))
        assert wanted(world.step(), "a") == (1, 1)
        world = World.serving(goal(3, 1), pair("a", 1, 1), pair("b", 3, 1))
        assert wanted(world.step(), "a") == (0, 0)

    def test_what_a_crash_has_left_of_a_revision_goes(self) -> None:
        world = World.serving(goal(3, 1), pair("a", (0, 0, 1), 1), pair("b", 3, 1))
        assert wanted(world.step(), "a") == (0, 0)

    @pytest.mark.parametrize(("surge", "unavailable"), [(1, 0), (2, 1), (0, 1), (0, 3), (4, 4)])
    def test_pc32_the_ratio_drifts_by_no_more_than_one_of_the_smallest_role(
        self, surge: int, unavailable: int
    ) -> None:
        for a_p, a_d, b_p, b_d in rolling(goal(8, 4, surge, unavailable)).states("a", "b"):
            assert abs(b_p / 8 - b_d / 4) <= 1 / 4
            assert abs(a_p / 8 - a_d / 4) <= 1 / 4


class TestManyRevisions:
    def test_a_superseded_revision_that_never_served_goes_first(self) -> None:
        there = [pair("a", 4, 2), pair("b", (1, 0), (1, 0))]
        step = World.serving(replace(goal(), newest="c"), *there).step()
        assert wanted(step, "b") == (0, 0)
        assert wanted(step, "a") == (4, 2)

    def test_then_the_oldest(self) -> None:
        there = [pair("a", 2, 2), pair("b", 2, 2), pair("c", 1, 1)]
        step = World.serving(replace(goal(4, 4), newest="c"), *there).step()
        assert wanted(step, "a") == (1, 1)
        assert wanted(step, "b") == (2, 2)

    def test_pc11_a_rollback_grows_what_is_left_of_the_old_revision(self) -> None:
        world = World.serving(replace(goal(), newest="a"), pair("a", 2, 1), pair("b", 2, 1))
        assert wanted(world.step(), "a") == (3, 2)
        assert world.finish()[-1].done
        assert world.revisions == {"a": pair("a", 4, 2)}

    def test_a_b_c_ends_though_b_is_broken(self) -> None:
        world = rolling(goal())
        for _ in range(4):
            world.do(world.step().moves)
            world.all_gone()
        world.goal = replace(world.goal, newest="c")
        assert world.finish()[-1].done
        assert world.revisions.keys() == {"c"}

    def test_two_old_revisions_that_hold_one_of_each_role_give_way(self) -> None:
        asked = Goal("c", (RoleGoal("prefill", 2, 0, 1), RoleGoal("decode", 2, 1, 0)))
        world = World.serving(asked, pair("a", 1, 1), pair("b", 1, 1))
        assert world.finish()[-1].done


class TestScaling:
    def test_pc19_growth_while_rolling_goes_to_the_newest(self) -> None:
        there = [pair("a", 4, 8), pair("b", (1, 0), (1, 0))]
        step = World.serving(goal(4, 12), *there).step()
        assert wanted(step, "a") == (4, 8)
        assert wanted(step, "b") == (1, 5)

    def test_shrinking_while_rolling_takes_the_oldest(self) -> None:
        step = World.serving(goal(4, 2), pair("a", 4, 2), pair("b", 4, 2)).step()
        assert wanted(step, "a") == (0, 0)
        assert wanted(step, "b") == (4, 2)

    def test_what_is_not_ready_and_beyond_the_surge_goes_after_a_scale_down(self) -> None:
        world = World.serving(goal(2, 2), pair("a", 2, 2), pair("b", (2, 0), (2, 0)))
        step = world.step()
        assert wanted(step, "a") == (2, 2)
        assert wanted(step, "b") == (1, 1)
        assert world.finish()[-1].done

    def test_of_old_ones_too_however_few_are_ready(self) -> None:
        world = World.serving(goal(2, 2), pair("a", 2, (2, 0)), pair("b", (1, 0), 2))
        step = world.step()
        assert wanted(step, "a") == (2, 1)
        assert wanted(step, "b") == (1, 2)
        assert world.finish()[-1].done

    def test_what_waits_for_nodes_is_no_surplus(self) -> None:
        asked = replace(
            goal(2, 2), roles=(RoleGoal("prefill", 2, shortage="no nodes"), RoleGoal("decode", 2))
        )
        there = [pair("a", 2, 2), pair("b", (1, 0), (1, 0))]
        step = World.serving(asked, *there).step()
        assert wanted(step, "b") == (1, 1)

    def test_a_single_revision_follows_its_targets_both_ways(self) -> None:
        assert wanted(World.serving(goal(6, 2), pair("b", 4, 2)).step(), "b") == (6, 2)
        assert wanted(World.serving(goal(2, 1), pair("b", 4, 2)).step(), "b") == (2, 1)

    def test_zero_is_all_or_nothing(self) -> None:
        world = World.serving(goal(0, 0), pair("a", 2, 1), pair("b", 2, 1))
        step = world.step()
        assert wanted(step, "a") == wanted(step, "b") == (0, 0)
        assert world.finish()[-1].done

    def test_a_role_that_is_scaled_to_zero_alone_keeps_one(self) -> None:
        assert wanted(World.serving(goal(0, 2), pair("b", 2, 2)).step(), "b") == (1, 2)


class TestRolesChange:
    def test_pc34_an_added_role_starts_with_the_others(self) -> None:
        asked = replace(goal(2, 2), roles=(*roles(2, 2), RoleGoal("encode", 1)))
        world = World.serving(asked, pair("a", 2, 2))
        assert wanted(world.step(), "b", "prefill", "decode", "encode") == (1, 1, 1)
        assert world.finish()[-1].done
        assert world.revisions.keys() == {"b"}

    def test_pc34_a_renamed_role_stays_until_its_revision_goes(self) -> None:
        asked = Goal("b", (RoleGoal("first", 2), RoleGoal("decode", 2)))
        world = World.serving(asked, pair("a", 2, 2))
        while "a" in world.revisions:
            counts = world.revisions["a"].roles
            assert (counts["prefill"].kept == 0) == (counts["decode"].kept == 0)
            world.do(world.step().moves)
            world.all_gone()
            world.all_ready()
        assert world.finish()[-1].done

    def test_pc34_no_replica_of_wholly_other_roles_goes_before_enough_new_ones_serve(self) -> None:
        asked = Goal("b", (RoleGoal("all", 4),))
        world = World.serving(asked, pair("a", 4, 2), revision("b", {"all": (4, 3)}))
        assert wanted(world.step(), "a") == (4, 2)
        world.all_ready()
        assert wanted(world.step(), "a") == (0, 0)

    def test_pc34_a_removed_role_without_room_for_surge(self) -> None:
        asked = Goal("b", (RoleGoal("decode", 2, 0, 1),))
        there = [pair("a", 1, 1), revision("b", {"decode": 1})]
        assert World.serving(asked, *there).finish()[-1].done


class TestCapacity:
    short = (RoleGoal("prefill", 4, shortage="0 of 8 nodes fit"), RoleGoal("decode", 2))

    def test_pc29_a_surge_without_room_is_told(self) -> None:
        world = World.serving(Goal("b", self.short), pair("a", 4, 2), pair("b", (1, 0), 1))
        step = world.step()
        assert not step.moves
        assert step.hold
        assert step.hold.gate is HoldGate.CAPACITY
        assert "prefill: 0 of 8 nodes fit" in step.hold.reason
        assert "DrainFirst" in step.hold.reason

    def test_pc29_drain_first_takes_one_old_replica_of_each_role_down_in_its_stead(self) -> None:
        asked = Goal("b", self.short, on_capacity_shortage=DRAIN_FIRST)
        world = World.serving(asked, pair("a", 4, 2), pair("b", (1, 0), 1))
        step = world.step()
        assert wanted(step, "a") == (3, 1)
        world.do(step.moves)
        world.all_gone()
        assert not world.step().moves

    def test_pc29_what_has_the_room_that_another_role_made_gives_it_back(self) -> None:
        short = (RoleGoal("prefill", 2), RoleGoal("decode", 2, shortage="0 of 4 nodes fit"))
        there = [pair("a", 1, 1), pair("b", 2, (1, 0))]
        step = World.serving(Goal("b", short, on_capacity_shortage=DRAIN_FIRST), *there).step()
        assert wanted(step, "a") == (1, 1)
        assert wanted(step, "b") == (1, 1)
        # Who waits for nodes takes nothing away from others.
        assert not World.serving(Goal("b", short), *there).step().moves

    def test_pc29_what_waits_stays_while_others_start(self) -> None:
        short = (RoleGoal("prefill", 2, shortage="full"), RoleGoal("decode", 2, shortage="full"))
        asked = Goal("b", short, on_capacity_shortage=DRAIN_FIRST)
        assert not World.serving(asked, pair("a", 1, 1), pair("b", (2, 0), (2, 0))).step().moves

    def test_pc29_no_other_role_takes_the_room_that_was_made(self) -> None:
        short = (RoleGoal("prefill", 2), RoleGoal("decode", 2, shortage="0 of 4 nodes fit"))
        there = [pair("a", 1, 1), pair("b", 1, (1, 0))]
        for policy in CapacityShortage:
            asked = Goal("b", short, on_capacity_shortage=policy)
            assert not World.serving(asked, *there).step().moves

    def test_drain_first_never_takes_the_last_that_serves(self) -> None:
        asked = Goal(
            "b", (RoleGoal("prefill", 1, shortage="full"), RoleGoal("decode", 1)), "", 1,
            on_capacity_shortage=DRAIN_FIRST,
        )  # fmt: skip
        world = World.serving(asked, pair("a", 1, 1), pair("b", (1, 0), 1))
        step = world.step()
        assert not step.moves
        assert step.hold
        assert step.hold.gate is HoldGate.CAPACITY

    def test_drain_first_is_not_used_while_there_is_room(self) -> None:
        asked = replace(goal(), on_capacity_shortage=DRAIN_FIRST)
        world = World.serving(asked, pair("a", 4, 2), pair("b", (1, 0), 1))
        assert not world.step().moves

    def test_drain_first_is_leave_enough_where_both_budgets_are_zero(self) -> None:
        assert rolling(goal(surge=0, on_capacity_shortage=DRAIN_FIRST)).finish()[-1].done


class TestPauses:
    def test_pc18_nothing_moves_while_paused(self) -> None:
        world = World.serving(replace(goal(), paused=True), pair("a", 4, 2), pair("b", 1, 1))
        step = world.step()
        assert not step.moves
        assert step.state is RolloutState.HELD
        assert step.hold
        assert step.hold.gate is HoldGate.PAUSE
        world.goal = replace(world.goal, paused=False)
        assert wanted(world.step(), "a") == (3, 1)

    def test_a_rollout_that_is_paused_before_it_starts_does_not_start(self) -> None:
        world = World.serving(replace(goal(), paused=True), pair("a", 4, 2))
        step = world.step()
        assert not step.moves
        assert not step.done
        assert step.state is RolloutState.HELD

    def test_scaling_goes_on_while_paused(self) -> None:
        world = World.serving(replace(goal(6, 3), paused=True), pair("a", 4, 2))
        assert wanted(world.step(), "a") == (6, 3)
        world = World.serving(replace(goal(6, 3), paused=True), pair("a", 3, 1), pair("b", 1, 1))
        assert wanted(world.step(), "b") == (3, 2)
        world = World.serving(replace(goal(2, 1), paused=True), pair("a", 4, 2))
        assert wanted(world.step(), "a") == (2, 1)

    def test_a_paused_revision_keeps_the_roles_that_it_has(self) -> None:
        asked = Goal("b", (RoleGoal("first", 2), RoleGoal("decode", 2)), paused=True)
        assert not World.serving(asked, pair("a", 3, 2)).step().moves

    def test_one_revision_alone_is_done_though_paused(self) -> None:
        assert World.serving(replace(goal(), paused=True), pair("b", 4, 2)).step().done

    def test_a_partition_keeps_whole_copies(self) -> None:
        world = rolling(goal(8, 4, copies=4, partition=3))
        last = world.finish()[-1]
        assert world.revisions == {"a": pair("a", 6, 3), "b": replace(pair("b", 2, 1), number=98)}
        assert last.settled
        assert last.hold
        assert last.hold.gate is HoldGate.PARTITION
        world.goal = replace(world.goal, partition=0)
        assert world.finish()[-1].done

    @pytest.mark.parametrize(
        ("share", "newest"),
        [
            (Share(percent=25), (2, 1)),
            (Share(percent=1), (1, 1)),
            (Share(percent=30), (3, 2)),
            (Share(copies=1), (2, 1)),
            (Share(percent=99), (8, 4)),
        ],
    )
    def test_a_canary_has_its_share_of_every_role(self, share: Share, newest: tuple[int, int]) -> None:
        world = rolling(goal(8, 4, copies=4, canary=share))
        last = world.finish()[-1]
        assert wanted(last, "b") == newest
        assert world.revisions["a"].roles["prefill"].kept == max(1, 8 - newest[0])
        assert last.settled
        assert last.hold == share.hold
        world.goal = replace(world.goal, canary=None)
        assert world.finish()[-1].done

    def test_a_canary_of_one_replica_stands_beside_the_old_one_in_the_room_for_surge(self) -> None:
        last = rolling(goal(1, 1, canary=Share(percent=25))).finish()[-1]
        assert wanted(last, "a") == wanted(last, "b") == (1, 1)
        assert last.settled

    def test_a_canary_makes_up_for_what_scaling_adds(self) -> None:
        asked = goal(8, 8, canary=Share(percent=10))
        world = World.serving(asked, pair("a", 3, 3), pair("b", 1, 1))
        assert wanted(world.step(), "b") == (5, 5)

    def test_a_rollback_to_the_current_revision_knows_no_canary_and_no_partition(self) -> None:
        asked = goal(4, 2, copies=2, partition=1, canary=Share(percent=10), current="a")
        world = World.serving(replace(asked, newest="a"), pair("a", 3, 1), pair("b", 1, 1))
        assert world.finish()[-1].done

    def test_the_deadline_is_told_with_what_is_waited_for_and_stops_nothing(self) -> None:
        late = goal(stalled_seconds=700.0)
        world = World.serving(late, pair("a", 4, 2), pair("b", (1, 0), 1))
        step = world.step()
        assert step.hold
        assert step.hold.gate is HoldGate.DEADLINE
        assert "more than 600 s; Readiness: ready replicas of revision b: prefill 0/1" in step.hold.reason
        world.all_ready()
        assert world.step().moves


class TestRecreate:
    def test_all_old_ones_go_before_the_first_new_one_comes(self) -> None:
        world = rolling(goal(strategy=RolloutStrategy.RECREATE))
        world.checked = False
        assert world.states("a", "b") == [(4, 2, 0, 0), (0, 0, 0, 0), (0, 0, 4, 2)]

    def test_a_step_that_was_carried_out_in_part_goes_on(self) -> None:
        asked = goal(strategy=RolloutStrategy.RECREATE)
        world = World(asked, {"a": pair("a", (0, 0, 4), 2)}, checked=False)
        assert wanted(world.step(), "b") == (0, 0)
        assert world.finish()[-1].done


def test_pc01_all_roles_get_replicas_of_the_one_new_revision() -> None:
    step = rolling(goal(2, 1)).step()
    assert wanted(step, "b") == (1, 1)
    assert {move.role for move in step.moves} == {"prefill", "decode"}


def test_pc12_a_bad_image_never_takes_ready_replicas_below_the_floor() -> None:
    world = rolling(goal(4, 4, surge=0, unavailable=1))
    for _ in range(5):
        world.do(world.step().moves)
        world.all_gone()
        assert world.revisions["a"].roles["prefill"].ready >= 3
        assert world.revisions["a"].roles["decode"].ready >= 3


def test_pc16_no_more_than_the_budget_after_a_restart_of_the_operator() -> None:
    # Nothing is remembered, so a restart is a second call.
    world = World.serving(goal(4, 4, surge=0, unavailable=1), pair("a", 3, 3), pair("b", (1, 0), (1, 0)))
    assert not world.step().moves


def test_moves_go_down_before_up_and_keep_the_ratio_one_by_one() -> None:
    asked = goal(8, 4, surge=4, unavailable=0)
    world = World.serving(asked, pair("a", 8, 4), pair("b", 2, 1))
    moves = world.step().moves
    assert [move.create for move in moves] == sorted(move.create for move in moves)
    for move in moves:
        world.do([move])
        for name in "ab":
            counts = world.revisions[name].roles
            assert abs(counts["prefill"].kept / 8 - counts["decode"].kept / 4) <= 1 / 4


def test_the_same_question_has_the_same_answer() -> None:
    there = [pair("a", 3, 2), pair("b", (2, 1), 1)]
    assert plan(goal(), there) == plan(goal(), there[::-1])

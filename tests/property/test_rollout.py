"""Histories of rollouts: failures, other specs and scaling at any time; no promise is broken, and all end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, note
from hypothesis import strategies as st

from tests.rollouts import World
from tpu_operator.api import CapacityShortage
from tpu_operator.core.inference.goal import Count
from tpu_operator.core.inference.preview import preview
from tpu_operator.core.inference.rollout import Goal, Revision, RoleGoal, Share, plan

NAMES = ("decode", "encode", "prefill")
REVISIONS = "abcd"


@st.composite
def role_goals(draw: st.DrawFn, names: tuple[str, ...] = NAMES, largest: int = 6) -> tuple[RoleGoal, ...]:
    """Goals of one to three roles; a role of one replica can surge, or nothing could replace it."""
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    goals = []
    for name in chosen:
        target = draw(st.integers(1, largest))
        surge = draw(st.integers(int(target == 1), 3))
        goals.append(RoleGoal(name, target, surge, draw(st.integers(int(not surge), 3))))
    return tuple(goals)


@st.composite
def goals(draw: st.DrawFn, newest: str = "a") -> Goal:
    return Goal(
        newest,
        draw(role_goals()),
        copies=draw(st.integers(1, 3)),
        allow_downtime=draw(st.booleans()),
        on_capacity_shortage=draw(st.sampled_from(CapacityShortage)),
    )


def scaled(goal: Goal, data: st.DataObject) -> Goal:
    """The same roles with other targets."""
    targets = {
        role.name: data.draw(st.integers(2 - min(1, role.max_surge), 6), role.name) for role in goal.roles
    }
    return replace(goal, roles=tuple(replace(role, target=targets[role.name]) for role in goal.roles))


def newest(goal: Goal, data: st.DataObject) -> Goal:
    """Another revision, new or old: the spec changes as a whole, or goes back."""
    name = data.draw(st.sampled_from(REVISIONS), "revision")
    return replace(goal, newest=name)


def paused(goal: Goal, _data: st.DataObject) -> Goal:
    return replace(goal, paused=not goal.paused)


def shared(goal: Goal, data: st.DataObject) -> Goal:
    percents = st.integers(1, 99).map(lambda percent: Share(percent=percent))
    return replace(goal, canary=data.draw(st.none() | percents, "canary"))


def short(goal: Goal, data: st.DataObject) -> Goal:
    lacking = data.draw(st.sampled_from(["", "no nodes"]), "shortage")
    first, *rest = goal.roles
    return replace(goal, roles=(replace(first, shortage=lacking), *rest))


CHANGES = (scaled, newest, paused, shared, short)


def happens(world: World, data: st.DataObject) -> None:
    """One event: a part of a step, something of the cluster's, or something of the user's."""
    what = data.draw(st.sampled_from(["part", "step", "ready", "unready", "gone", "change"]), "event")
    if what == "part":
        moves = world.step().moves
        world.do(data.draw(st.lists(st.sampled_from(moves), unique_by=id), "moves") if moves else [])
    elif what == "step":
        world.do(world.step().moves)
    elif what == "gone":
        world.all_gone()
    elif what == "change":
        world.goal = data.draw(st.sampled_from(CHANGES), "change")(world.goal, data)
        world.step()
    elif cells := [(r.name, role) for r in world.revisions.values() for role in r.roles]:
        name, role = data.draw(st.sampled_from(cells), "cell")
        kept = world.revisions[name].roles[role].kept
        world.set(name, role, ready=kept if what == "ready" else data.draw(st.integers(0, kept), "ready"))


def at_peace(goal: Goal) -> Goal:
    """The goal without anything that holds a rollout."""
    calm = tuple(replace(role, shortage="") for role in goal.roles)
    return replace(goal, roles=calm, paused=False, canary=None, partition=0)


@given(st.data())
def test_no_history_breaks_a_promise_and_all_end(data: st.DataObject) -> None:
    world = World(data.draw(goals()))
    for _ in range(data.draw(st.integers(0, 30), "length")):
        happens(world, data)
    world.goal = at_peace(world.goal)
    note(str(world))
    last = world.finish()[-1]
    assert last.done
    assert list(world.revisions) == [world.goal.newest]


@given(st.data())
def test_roles_come_and_go_with_revisions(data: st.DataObject) -> None:
    world = World(data.draw(goals()))
    for name in data.draw(st.lists(st.sampled_from("bcd"), max_size=3, unique=True), "revisions"):
        for _ in range(data.draw(st.integers(0, 8), "steps")):
            world.do(world.step().moves)
            world.all_gone()
            if data.draw(st.booleans(), "ready"):
                world.all_ready()
        world.goal = replace(world.goal, newest=name, roles=data.draw(role_goals(), name))
    assert world.finish()[-1].done
    assert list(world.revisions) == [world.goal.newest]


@given(st.data())
def test_a_hold_says_why_wherever_there_is_nothing_to_do(data: st.DataObject) -> None:
    world = World(data.draw(goals()))
    for _ in range(data.draw(st.integers(0, 30), "length")):
        happens(world, data)
    step = world.step()
    assert bool(step.moves) + step.done + (step.hold is not None) == 1
    assert step.hold is None or step.hold.reason


@given(st.data())
def test_a_preview_is_what_then_happens(data: st.DataObject) -> None:
    goal = data.draw(goals(newest="b"))
    counts = {role.name: Count(role.target, role.target) for role in goal.roles}
    there = Revision("a", 1, counts)
    frames = iter(preview(goal, [there]).frames[1:])
    world = World.serving(goal, there)
    for step in world.finish():
        if step.moves:
            assert next(frames).moves == step.moves
    assert next(frames, None) is None


@given(goals(newest="b"), st.data())
def test_a_plan_never_wants_what_was_not_asked_for(goal: Goal, data: st.DataObject) -> None:
    def numbers() -> Count:
        kept = data.draw(st.integers(0, 6))
        return Count(kept, data.draw(st.integers(0, kept)), data.draw(st.integers(0, 2)))

    kinds: Any = st.sampled_from(["a", "b", "c"])
    there = [
        Revision(name, ord(name), {role.name: numbers() for role in goal.roles})
        for name in sorted(data.draw(st.sets(kinds)))
    ]
    step = plan(goal, there)
    assert {name for name, _ in step.wanted} == {"b", *(revision.name for revision in there)}
    assert all(n >= 0 for n in step.wanted.values())

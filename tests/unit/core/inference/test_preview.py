"""The preview of a rollout, and the pages that show one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.docs import ROOT
from tests.rollouts import World, pair, roles
from tpu_operator.api import HoldGate
from tpu_operator.core.inference.forecast import Forecast, Slice, describe, render
from tpu_operator.core.inference.goal import Hold
from tpu_operator.core.inference.preview import Preview, preview
from tpu_operator.core.inference.rollout import Goal, RoleGoal, Share

PAGE = (ROOT / "docs" / "rollout.md").read_text()
KINDS = {"prefill": Slice("v6e 2x4", 8), "decode": Slice("v6e 4x4", 16), "all": Slice("v6e 2x2", 4)}
SLICES = {(revision, role): kind for role, kind in KINDS.items() for revision in "ab"}
GOAL = Goal("b", roles(4, 2))
THERE = pair("a", 4, 2)
EXAMPLES = {
    "With a spare slice of each role": (GOAL, ()),
    "Without a spare slice": (replace(GOAL, roles=roles(4, 2, 0, 1)), ()),
    "A canary of a quarter": (GOAL, (Share(percent=25, hold=Hold(HoldGate.PAUSE, "step 1 promoted")),)),
    "One replica and no surge": (Goal("b", roles(1, 1, 0, 1)), ()),
}


def shown(title: str) -> str:
    """The block of text below a heading of the page."""
    section = PAGE.split(f"\n### {title}\n")[1].split("\n##")[0]
    found = re.search(r"^```text\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found
    return found[1].rstrip("\n")


def told(found: Preview) -> Forecast:
    return describe("qwen", found, SLICES)


@pytest.mark.parametrize("title", EXAMPLES)
def test_the_page_shows_what_the_planner_does(title: str) -> None:
    goal, shares = EXAMPLES[title]
    there = pair("a", *(role.target for role in goal.roles))
    assert render(told(preview(goal, [there], shares))) == shown(title).splitlines()


def test_all_plans_of_the_page_are_checked() -> None:
    assert PAGE.partition("\n## Plans in full\n")[2].count("```text\n") == len(EXAMPLES)


def test_a_preview_starts_with_what_there_is_and_ends_with_what_is_asked_for() -> None:
    found = preview(GOAL, [THERE])
    assert found.frames[0].moves == ()
    assert told(found).steps[0].chips == 64
    assert found.hold is None
    old, new = found.frames[-1].revisions
    assert [count.kept for count in old.roles.values()] == [0, 0]
    assert [count.kept for count in new.roles.values()] == [4, 2]


def test_a_preview_takes_the_same_steps_as_the_rollout() -> None:
    frames = iter(preview(GOAL, [THERE]).frames[1:])
    for step in World.serving(GOAL, THERE).finish():
        assert not step.moves or next(frames).moves == step.moves
    assert next(frames, None) is None


@pytest.mark.parametrize(("surge", "unavailable", "spare"), [(1, 0, 1), (2, 0, 2), (0, 1, 0)])
def test_spare_slices_that_are_needed(surge: int, unavailable: int, spare: int) -> None:
    found = preview(Goal("b", roles(4, 4, surge, unavailable)), [pair("a", 4, 4)])
    decode = next(need for need in told(found).slices if need.slice == "v6e 4x4")
    assert (decode.now, decode.end, decode.spare) == (4, 4, spare)


def test_what_a_rollout_cannot_do_is_seen_before_it_starts() -> None:
    found = preview(Goal("b", roles(1, 1, 0, 1)), [pair("a", 1, 1)])
    assert found.hold
    assert found.hold.gate is HoldGate.SURGE
    assert len(found.frames) == 1


def test_a_partition_ends_the_preview() -> None:
    found = preview(replace(GOAL, copies=2, partition=1), [THERE])
    assert found.hold
    assert found.hold.gate is HoldGate.PARTITION
    assert found.frames[-1].revisions[0].roles["prefill"].kept == 2


def test_a_rollout_under_way_is_previewed_from_where_it_is() -> None:
    found = preview(GOAL, [pair("a", 3, 1), pair("b", (2, 1), (2, 1))])
    assert found.frames[1].waits == "prefill b, decode b ready"
    assert found.hold is None


def test_a_preview_shows_roles_that_go() -> None:
    found = preview(Goal("b", (RoleGoal("all", 2),)), [THERE])
    assert found.roles == ("all", "prefill", "decode")
    assert any("-4 prefill a" in line for line in render(told(found)))

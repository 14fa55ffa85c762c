"""What a forecast says is what the operator's decisions then do, step by step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.builders import RUNNING
from tests.inference import InferenceWorld, image, inference, role
from tpu_operator.api import GroupState
from tpu_operator.core.inference.forecast import Forecast, Need, of_snapshot, of_specs, render
from tpu_operator.core.inference.snapshot import InferenceSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

Counts = dict[tuple[str, str], tuple[int, int]]
"""Replicas by role and revision: those kept, and those that leave."""

SMALLER = {"accelerator": "v5e", "topology": "2x2"}
"""One host of four chips."""
small = partial(role, tpu=SMALLER)
TWO_AND_ONE = [small("prefill", 2), small("decode", 1)]
FOUR_AND_TWO = [small("prefill", 4), small("decode", 2)]
NO_SURGE = {"maxSurge": 0, "maxUnavailable": 1}
CANARY = {"canary": {"steps": [{"percent": 25}, {"percent": 50}]}}


@dataclass
class Case:
    """A change of a spec.

    Attributes:
        old: fields of the spec before.
        new: fields that are set by the change.
        more: a further change, made once the first step of the first has been carried out.
    """

    old: dict[str, Any]
    new: dict[str, Any]
    more: dict[str, Any] | None = None


CASES = {
    "defaults": Case({"roles": FOUR_AND_TWO}, {"engine": image("2")}),
    "without surge": Case({"roles": FOUR_AND_TWO, "rollout": NO_SURGE}, {"engine": image("2")}),
    "drain first": Case(
        {"roles": FOUR_AND_TWO, "rollout": {"maxSurge": 0, "onCapacityShortage": "DrainFirst"}},
        {"engine": image("2")},
    ),
    "recreate": Case({"rollout": {"strategy": "Recreate"}}, {"engine": image("2")}),
    "a canary of two steps": Case({"roles": FOUR_AND_TWO, "rollout": CANARY}, {"engine": image("2")}),
    "a partition": Case(
        {"replicas": 2, "roles": TWO_AND_ONE, "rollout": {"partition": 1}},
        {"engine": image("2")},
    ),
    "paused": Case({"rollout": {"paused": True}}, {"engine": image("2")}),
    "budgets of their own": Case(
        {"roles": [small("prefill", 3, rollout={"maxSurge": 2}), small("decode", 1)]}, {"engine": image("2")}
    ),
    "more replicas": Case({}, {"roles": [small("prefill", 5), small("decode", 2)]}),
    "fewer replicas": Case({"roles": FOUR_AND_TWO}, {"roles": [small("prefill", 1), small("decode", 1)]}),
    "replicas and revision": Case({}, {"roles": FOUR_AND_TWO, "engine": image("2")}),
    "zero": Case({}, {"replicas": 0}),
    "a role that goes and one that comes": Case(
        {}, {"roles": [small("decode", 1), small("all", 2, "prefill-decode")]}
    ),
    "other slices": Case({}, {"roles": [role("prefill", 2), role("decode", 1, tpu=SMALLER)]}),
    "an external role": Case(
        {"roles": [small("prefill", 2, scaling="External"), small("decode", 1)]}, {"engine": image("2")}
    ),
    "back in the midst of it": Case(
        {"roles": FOUR_AND_TWO, "engine": image("1")}, {"engine": image("2")}, {"engine": image("1")}
    ),
    "a third in the midst of it": Case(
        {"roles": FOUR_AND_TWO, "engine": image("1")}, {"engine": image("2")}, {"engine": image("3")}
    ),
    "nothing": Case({}, {}),
}


def forecast(world: InferenceWorld) -> Forecast:
    """What is said of a world to somebody who cannot look at nodes."""
    there = InferenceSnapshot(
        world.inference, pods=world.pods, revisions=world.revisions, scalers=world.scalers
    )
    return of_snapshot(there, world.now)


def counts(world: InferenceWorld) -> Counts:
    """What the operator has on record."""
    found: Counts = {}
    for group in world.status.groups:
        kept, leaving = found.get((group.role, group.revision), (0, 0))
        gone = group.state is GroupState.DRAINING
        found[group.role, group.revision] = (kept + (not gone), leaving + gone)
    return found


def kept(state: Counts) -> dict[tuple[str, str], int]:
    return {key: there for key, (there, _) in state.items() if there}


def foreseen(found: Forecast) -> list[Counts]:
    return [
        {(h.role, h.revision): (h.kept, h.leaving) for h in step.replicas if h.kept or h.leaving}
        for step in found.steps
    ]


def pass_by_pass(world: InferenceWorld, limit: int = 60) -> Iterator[Counts]:
    """States that the operator brings about by itself, until it has nothing more to do."""
    for _ in range(limit):
        before = (world.inference, dict(world.pods), dict(world.revisions), dict(world.scalers))
        world.step()
        yield counts(world)
        if before == (world.inference, dict(world.pods), dict(world.revisions), dict(world.scalers)):
            return
    raise AssertionError("no fixpoint")


def play(world: InferenceWorld, limit: int = 200) -> list[Counts]:
    """Let a rollout happen; returns every state in which the operator has decided on other numbers.

    As in a forecast what leaves is gone before what starts is ready, and each step of a canary is promoted
    once its replicas are ready.
    """
    world.keep_deleted = True
    states = [counts(world)]
    for _ in range(limit):
        for state in pass_by_pass(world):
            if kept(state) != kept(states[-1]):
                states.append(state)
        leaving = {group.name for group in world.status.groups if group.state is GroupState.DRAINING}
        gone = [name for name in world.pods if any(f"-{group}-" in name for group in leaving)]
        if gone:
            world.vanish(*gone)
        elif not all(pod.ready for pod in world.pods.values()):
            world.all_pods(**RUNNING)
        elif not promote(world):
            return states
    raise AssertionError("no end")


def promote(world: InferenceWorld) -> bool:
    """Have a step of the canary done that is waited for; whether there was one."""
    rollout, canary = world.status.rollout, world.inference.spec.rollout.canary
    if canary is None or rollout.hold is None or rollout.canary_step >= len(canary.steps):
        return False
    later = rollout.model_copy(update={"canary_step": rollout.canary_step + 1, "step_ready_since": None})
    status = world.status.model_copy(update={"rollout": later})
    world.inference = world.inference.model_copy(update={"status": status})
    return True


def begun(case: Case) -> InferenceWorld:
    """A world in which the change has been made, and nothing was done about it."""
    world = InferenceWorld(inference(**{"roles": TWO_AND_ONE} | case.old)).run().patch_spec(**case.new)
    if case.more is not None:
        before = counts(world)
        while counts(world) == before:
            world.step()
        world.patch_spec(**case.more)
    return world


@pytest.mark.parametrize("name", CASES)
def test_a_forecast_is_what_then_happens(name: str) -> None:
    world = begun(CASES[name])
    found = forecast(world)
    assert play(world) == foreseen(found)
    hold = world.status.rollout.hold
    assert (found.end.gate if found.end else None) == (hold.gate if hold else None)
    assert found.newest == world.status.updated_revision


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.more is None])
def test_two_specs_are_enough_where_all_replicas_are_ready(name: str) -> None:
    world = begun(CASES[name])
    with_cluster = forecast(world)
    old = inference(**{"roles": TWO_AND_ONE} | CASES[name].old)
    assert of_specs(old, world.inference) == with_cluster


def test_the_first_replicas_come_from_nothing() -> None:
    found = of_specs(None, inference(roles=TWO_AND_ONE))
    assert [change.replicas for change in found.steps[1].changes] == [2, 1]
    assert found.slices == (Need("v5e 2x2", now=0, most=3, end=3, spare=0),)
    assert "more slices in the end: 3 of v5e 2x2" in render(found)


def test_chips_are_those_of_the_slices_that_each_revision_has() -> None:
    larger = [role("prefill", 2), role("decode", 1, tpu=SMALLER)]
    found = of_specs(inference(roles=TWO_AND_ONE), inference(roles=larger))
    assert (found.steps[0].chips, found.steps[-1].chips) == (3 * 4, 3 * 4 + 2 * 16)
    assert found.slices == (
        Need("v5e 2x2", now=3, most=4, end=1, spare=1),
        Need("v5e 4x4", now=0, most=2, end=2, spare=0),
    )


def test_a_lack_of_room_is_not_foreseen() -> None:
    """What is waiting for nodes now counts as there in the next moment, as everything else."""
    world = begun(Case({"roles": FOUR_AND_TWO}, {"engine": image("2")}))
    world.step()
    world.refusal = "exceeded quota"
    assert forecast(world).end is None


def test_a_status_in_a_file_means_nothing() -> None:
    world = begun(CASES["defaults"])
    old, new = inference(roles=FOUR_AND_TWO), inference(roles=FOUR_AND_TWO, engine=image("2"))
    assert of_specs(world.inference, new) == of_specs(new, new)
    assert of_specs(old, world.inference) == of_specs(old, new)


def test_it_can_be_written() -> None:
    wire = json.loads(msgspec.json.encode(of_specs(None, inference(roles=TWO_AND_ONE))))
    assert wire["steps"][1]["changes"][0] == {"role": "prefill", "revision": wire["newest"], "replicas": 2}
    assert wire["end"] is None

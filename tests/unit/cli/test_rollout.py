"""`kubectl tpu rollout`: what it shows, and what it changes."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.builders import NOW
from tests.inference import InferenceWorld, image, role
from tests.unit.cli.rolescenes import ROLES, held, rolling, seen, serving
from tests.unit.cli.scenes import LATER, PLAIN
from tpu_operator.api import Rejection, TPUInference
from tpu_operator.cli import rolloutview
from tpu_operator.cli.command import CommandError, Exit
from tpu_operator.cli.history import (
    RESTARTED,
    asked,
    chosen,
    differences,
    history,
    restarted,
    returned,
)
from tpu_operator.cli.roletree import role_tree
from tpu_operator.cli.rollout import ended, promoted
from tpu_operator.cli.wait import verdict
from tpu_operator.core import names

if TYPE_CHECKING:
    from tpu_operator.cli.history import Entry


def wire(world: InferenceWorld) -> dict[str, Any]:
    """As the API server has it."""
    found: dict[str, Any] = world.inference.wire()
    found["spec"] = world.inference.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return found


def entries(world: InferenceWorld) -> list[Entry]:
    return history(world.inference, world.revisions.values())


def three() -> InferenceWorld:
    """A TPUInference in its third revision."""
    world = serving(engine=image("1"))
    world.patch_spec(engine=image("2")).run()
    return world.patch_spec(roles=[ROLES[0], role("decode", 1, args=["--seed=1"])]).run()


class TestStatus:
    def test_ready_replicas_by_revision_and_role(self) -> None:
        world = rolling()
        old, new = world.status.current_revision, world.status.updated_revision
        shown = rolloutview.draw(role_tree(seen(world), LATER), LATER, PLAIN)
        assert shown[-4:] == [
            "REVISION  STATE    PREFILL  DECODE  SERVES",
            f"{new}  new      1/1      0/1     no",
            f"{old}  current  2/2      1/1     yes",
            "wanted             2        1",
        ]

    def test_the_end_of_a_watch(self) -> None:
        assert ended(role_tree(seen(serving()), LATER)) is Exit.DONE
        assert ended(role_tree(seen(rolling()), LATER)) is None
        assert ended(role_tree(seen(held()), LATER)) is None
        assert ended(role_tree(seen(serving().patch_spec(engine=image("2"))), LATER)) is None
        late = rolling(rollout={"progressDeadlineSeconds": 60})
        late.now = NOW + timedelta(seconds=61)
        assert ended(role_tree(seen(late.settle()), LATER)) is Exit.BAD


def annotated(world: InferenceWorld, promoted: str) -> InferenceWorld:
    """The same once the operator has seen what somebody has promoted."""
    metadata = world.inference.metadata
    annotations = {**metadata.annotations, names.ANNOTATION_PROMOTED: promoted}
    metadata = metadata.model_copy(update={"annotations": annotations})
    world.inference = world.inference.model_copy(update={"metadata": metadata})
    return world.run()


class TestPromote:
    def test_one_step_or_all(self) -> None:
        assert promoted(held().inference, full=False) == 1
        assert promoted(held().inference, full=True) == 2

    def test_it_goes_on(self) -> None:
        world = held()
        assert world.status.rollout.step == "prefill 1/2, decode 1/1"
        assert annotated(world, f"{world.inference.metadata.generation}/2").status.rollout.canary_step == 2
        assert world.status.rollout.step == "prefill 2/2, decode 1/1"

    def test_one_step_after_the_other(self) -> None:
        world = held()
        assert annotated(world, f"{world.inference.metadata.generation}/1").status.rollout.canary_step == 1
        assert promoted(world.inference, full=False) == 2

    @pytest.mark.parametrize("promoted", ["{}", "{}/", "{}/-1", "{}/x", "{}/\u0661", "1{}/2", "/2", ""])
    def test_what_is_not_about_this_spec_promotes_nothing(self, promoted: str) -> None:
        world = held()
        annotated(world, promoted.format(world.inference.metadata.generation))
        assert world.status.rollout.canary_step == 0

    def test_more_steps_than_there_are_is_all_of_them(self) -> None:
        world = held()
        annotated(world, f"{world.inference.metadata.generation}/{'9' * 5000}")
        assert world.status.rollout.canary_step == 2

    @pytest.mark.parametrize(
        ("world", "message"),
        [
            (serving(), "no rollout under way"),
            (rolling(), "its rollout has no canary"),
            (serving().patch_spec(engine=image("2")), "not seen the last change"),
            (
                serving(replicas=2, rollout={"partition": 1}).patch_spec(engine=image("2")).run(),
                "spec.rollout.partition is 1",
            ),
        ],
    )
    def test_where_there_is_nothing_to_promote(self, world: InferenceWorld, message: str) -> None:
        with pytest.raises(CommandError, match=message):
            promoted(world.inference, full=False)


def test_a_revision_that_an_analysis_has_rejected() -> None:
    world = held()
    rejected = Rejection(revision="xx6fzc24", reason="errors: 0.2 is more than 0.1")
    rollout = world.status.rollout.model_copy(update={"rejected": rejected})
    status = world.status.model_copy(update={"rollout": rollout})
    world.inference = world.inference.model_copy(update={"status": status})
    with pytest.raises(CommandError, match="has rejected revision xx6fzc24: errors"):
        promoted(world.inference, full=False)
    model = role_tree(seen(world), LATER)
    assert ended(model) is Exit.BAD
    assert "Rejected:  xx6fzc24: errors: 0.2 is more than 0.1" in rolloutview.draw(model, LATER, PLAIN)
    assert verdict(world.inference, "complete").code is Exit.BAD


class TestHistory:
    def test_from_old_to_new_with_what_has_changed(self) -> None:
        world = three()
        found = entries(world)
        assert [one.number for one in found] == [1, 2, 3]
        assert [one.state for one in found] == ["", "", "current"]
        assert found[1].changes == ("engine.image: example/vllm:1 -> example/vllm:2",)
        assert found[2].changes == ('roles[decode].args: ["--seed=1"] added',)
        lines = rolloutview.draw_history(found, LATER, PLAIN)
        assert lines[0] == "NUMBER  REVISION  AGE  STATE    CHANGES"
        assert lines[2].endswith("engine.image: example/vllm:1 -> example/vllm:2")

    def test_one_revision_as_a_whole(self) -> None:
        found = entries(three())[0]
        shown = rolloutview.draw_entry(found, LATER)
        assert shown[0] == f"revision {found.name}, number 1"
        assert "  image: example/vllm:1" in shown

    def test_a_rollout_under_way(self) -> None:
        assert [one.state for one in entries(rolling())] == ["current", "asked"]

    def test_none_is_remembered(self) -> None:
        assert rolloutview.draw_history([], LATER, PLAIN) == ["no revision is remembered yet"]

    def test_differences_of_long_values_and_lists(self) -> None:
        old = {"engine": {"args": ["a"], "env": [{"name": "A", "value": "1"}]}, "drain": {"x": 1}}
        new = {"engine": {"args": ["x" * 100], "env": [{"name": "A", "value": "2"}]}}
        found = list(differences(old, new))
        assert found[0].startswith('engine.args: ["a"] -> ["xxx')
        assert found[0].endswith("...")
        assert found[1:] == ["engine.env[A].value: 1 -> 2", "drain.x: 1 taken away"]


class TestRollback:
    def back(self, world: InferenceWorld, to: str = "") -> TPUInference:
        entry = chosen(entries(world), world.inference, to)
        found = TPUInference.parse(returned(wire(world), entry))
        assert asked(found) == entry.name
        return found

    def test_in_the_midst_of_a_rollout_to_what_all_replicas_were_of(self) -> None:
        world = rolling()
        assert asked(self.back(world)) == world.status.current_revision

    def test_after_a_rollout_to_the_one_before(self) -> None:
        assert self.back(three()).spec.roles[1].args == []
        assert self.back(three()).spec.engine.image == "example/vllm:2"

    def test_to_a_revision_by_number_or_name(self) -> None:
        world = three()
        assert self.back(world, "1").spec.engine.image == "example/vllm:1"
        assert self.back(world, entries(world)[0].name).spec.engine.image == "example/vllm:1"

    def test_what_no_pod_is_made_from_stays(self) -> None:
        world = three()
        world.patch_spec(
            replicas=2,
            rollout={"maxSurge": 3},
            roles=[role("prefill", 5, rollout={"maxSurge": 2}), role("decode", 1, args=["--seed=1"])],
            routing={"inferencePool": {}, "sidecar": {"image": "x"}},
        ).run()
        found = self.back(world, "1").spec
        assert (found.replicas, found.rollout.max_surge) == (2, 3)
        prefill = next(one for one in found.roles if one.name == "prefill")
        assert (prefill.replicas, prefill.rollout.max_surge) == (5, 2)
        assert found.routing.inference_pool is not None
        assert found.routing.sidecar is None

    def test_roles_that_are_gone_come_back(self) -> None:
        world = serving()
        world.patch_spec(roles=[role("all", 1, "prefill-decode")]).run()
        assert {one.name for one in self.back(world).spec.roles} == {"prefill", "decode"}

    def test_the_operator_finds_the_old_replicas(self) -> None:
        world = rolling()
        old = world.status.current_revision
        before = {name for name in world.pods if f"-{old}-" in name}
        back = self.back(world)
        world.inference = world.inference.model_copy(update={"spec": back.spec})
        assert set(world.run().pods) == before

    @pytest.mark.parametrize(
        ("world", "to", "message"),
        [
            (three(), "9", "there is no revision 9"),
            (three(), "3", "asks for revision .* already"),
            (serving(), "", "no revision before the present one"),
        ],
    )
    def test_where_there_is_no_way_back(self, world: InferenceWorld, to: str, message: str) -> None:
        with pytest.raises(CommandError, match=message) as error:
            chosen(entries(world), world.inference, to)
        assert error.value.advice.startswith("revisions that are remembered: 1 (")


def test_a_restart_is_another_revision_of_the_same() -> None:
    world = serving(
        roles=[role("prefill", 2), role("decode", 1, template={"metadata": {"labels": {"a": "b"}}})]
    )
    found = restarted(wire(world), NOW)
    templates = [one["template"]["metadata"] for one in found["spec"]["roles"]]
    assert templates == [
        {"annotations": {RESTARTED: "2026-11-30T12:00:00Z"}},
        {"labels": {"a": "b"}, "annotations": {RESTARTED: "2026-11-30T12:00:00Z"}},
    ]
    before = world.status.revisions[0]
    world.inference = world.inference.model_copy(update={"spec": TPUInference.parse(found).spec})
    after = world.run().status.revisions[0]
    assert after.name != before.name
    assert after.kv_compat == before.kv_compat


def test_nothing_is_changed_in_place() -> None:
    world = three()
    before = json.dumps(wire(world))
    there = wire(world)
    returned(there, entries(world)[0])
    restarted(there, NOW)
    assert json.dumps(there) == before

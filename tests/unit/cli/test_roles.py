"""`kubectl tpu status`, `why`, `events`, `logs` and `wait` of a TPUInference."""

from __future__ import annotations

import argparse
import json
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.builders import NOW, job
from tests.inference import InferenceWorld, image, inference
from tests.unit.cli.rolescenes import broken_down, failing, held, rolling, seen, serving
from tests.unit.cli.scenes import LATER, PLAIN, Screen, event
from tpu_operator.api import HoldGate
from tpu_operator.cli import choose
from tpu_operator.cli.advice import GATES
from tpu_operator.cli.command import CommandError, Exit, Target, inference_name, target
from tpu_operator.cli.follow import Served
from tpu_operator.cli.happenings import of_inference
from tpu_operator.cli.rolediagnosis import diagnose_inference
from tpu_operator.cli.rolestatus import draw
from tpu_operator.cli.roletree import role_tree
from tpu_operator.cli.wait import check, verdict

if TYPE_CHECKING:
    from tpu_operator.cli.diagnosis import Answer


def text(world: InferenceWorld, **options: bool) -> str:
    return "\n".join(draw(role_tree(seen(world), LATER), LATER, PLAIN, **options))


def answer(world: InferenceWorld) -> Answer:
    return diagnose_inference(seen(world), [], LATER)


class TestStatus:
    def test_one_that_serves(self) -> None:
        world = serving()
        name = world.status.current_revision
        assert text(world) == (
            "Name:      default/qwen\n"
            "Phase:     Serving, ready prefill 2/2, decode 1/1\n"
            "Model:     Qwen/Qwen3-32B, by vllm\n"
            f"Rollout:   Idle, revision {name}\n"
            "Restarts:  0\n"
            "\n"
            "NAME                 STATE     READY  RESTARTS  AGE    NODE    INFO\n"
            "qwen                 Serving          0         5m20s\n"
            f"└─revision {name}  Servable\n"
            "  ├─prefill                    2/2\n"
            "  │ ├─replica 0      Ready     4/4    0                pool-b\n"
            "  │ └─replica 1      Ready     4/4    0                pool-c\n"
            "  └─decode                     1/1\n"
            "    └─replica 0      Ready     4/4    0                pool-a"
        )

    def test_all_hosts(self) -> None:
        world = serving()
        name = world.status.current_revision
        shown = text(world, everything=True)
        assert f"  │   └─qwen-prefill-{name}-1-3" in shown
        assert shown.endswith("pool-a-3")

    def test_a_rollout_shows_both_revisions_and_hosts_that_are_not_up(self) -> None:
        world = rolling()
        old, new = world.status.current_revision, world.status.updated_revision
        shown = text(world)
        assert f"Rollout:   Held, {old} -> {new}, of which are ready prefill 1/2, decode 0/1\n" in shown
        assert "Held by:   Readiness for 5m: ready replicas of revision" in shown
        assert f"├─revision {new}" in shown
        assert f"└─revision {old}" in shown
        assert f"│     └─qwen-decode-{new}-0-3  Starting" in shown
        assert f"qwen-decode-{new}-0-2" not in shown
        assert f"qwen-decode-{old}-0-3" not in shown
        assert "1 of 2" in shown

    def test_a_canary(self) -> None:
        shown = text(held())
        assert "Canary:    step 1 of 2\n" in shown
        assert "Held by:   Pause for 5m: step 1 of 2 of the canary has no pauseSeconds" in shown

    def test_a_failure(self) -> None:
        shown = text(broken_down())
        assert "Last failure:  host 2 of slice 0" in shown
        assert "Restarting" in shown

    def test_one_that_no_operator_has_seen(self) -> None:
        shown = "\n".join(draw(role_tree(Served(inference()), NOW), NOW, PLAIN))
        assert "Phase:     Unknown\n           no operator has looked at it yet" in shown

    def test_the_model_is_the_json(self) -> None:
        world = rolling()
        screen = Screen()
        screen.show("json", role_tree(seen(world), LATER), list)
        found = json.loads(screen.text)
        assert found["rollout"]["hold"]["gate"] == "Readiness"
        assert [one["newest"] for one in found["revisions"]] == [True, False]
        assert len(found["revisions"][0]["parts"][0]["replicas"][0]["hosts"]) == 4

    def test_nothing_changes_with_time_alone(self) -> None:
        there = seen(rolling())
        assert role_tree(there, LATER) == role_tree(there, LATER + timedelta(hours=1))

    def test_many_replicas_share_a_line(self) -> None:
        small = {"accelerator": "v5e", "topology": "2x2"}
        world = serving(roles=[{"name": "all", "type": "prefill-decode", "replicas": 20, "tpu": small}])
        assert "replicas 0-19  Ready" in text(world)
        assert "replica 19" in text(world, everything=True)


class TestWhy:
    def test_every_gate_has_advice(self) -> None:
        assert set(GATES) == set(HoldGate)
        for advice in GATES.values():
            assert advice.meaning.endswith(".")
            assert advice.remedies

    def test_one_that_serves(self) -> None:
        found = answer(serving())
        assert found.well
        assert found.verdict.startswith("nothing is wrong: it serves by revision ")

    def test_a_rollout_that_waits_for_replicas(self) -> None:
        found = answer(rolling())
        assert not found.well
        assert found.verdict == "the rollout waits: Readiness"
        assert found.evidence[0].startswith("rolling out ")
        assert "-0-3: Starting: the kubelet of node pool-d-3 has not started" in found.evidence[1]

    def test_a_canary_that_waits_for_a_person(self) -> None:
        found = answer(held())
        assert found.verdict == "the rollout waits: Pause"
        assert "`kubectl tpu rollout promote tpui/qwen` ends a step of a canary" in found.remedies

    def test_a_new_revision_that_fails(self) -> None:
        found = answer(failing())
        assert found.verdict.endswith("failed: UserError")
        assert found.cause.startswith("UserError, exit code 1: no such weights - first on host 2")
        assert found.remedies[-1] == (
            "`kubectl tpu rollout rollback tpui/qwen` goes back to the revision before"
        )

    def test_a_replica_that_has_failed(self) -> None:
        found = answer(broken_down())
        assert "decode-" in found.verdict
        assert "rollback" not in " ".join(found.remedies)

    def test_one_that_starts(self) -> None:
        found = answer(InferenceWorld(inference()).settle().start().settle())
        assert found.verdict == "it does not serve: ready are prefill 0/2, decode 0/1"

    def test_one_that_is_scaled_to_zero(self) -> None:
        found = answer(serving().patch_spec(replicas=0).run())
        assert found.verdict == "it serves nothing: all roles are scaled to zero"
        assert "kubectl scale tpui qwen" in found.remedies[0]

    def test_what_the_server_refuses(self) -> None:
        world = InferenceWorld(inference(), refusal="pods is forbidden: exceeded quota: none")
        world.step()
        found = answer(world)
        assert found.verdict == "it does not serve: QuotaExceeded"
        assert "exceeded quota" in found.cause

    def test_specs_that_nobody_has_seen(self) -> None:
        assert "no operator has looked" in diagnose_inference(Served(inference()), [], NOW).verdict
        world = serving().patch_spec(engine=image("2"))
        assert "not seen the last change" in answer(world).verdict


def test_events_are_of_its_own_revisions() -> None:
    world = serving()
    name = world.status.current_revision
    pods = [
        event("Started", "mine", about=f"Pod/qwen-decode-{name}-0-1"),
        event("Started", "of qwen-big", about="Pod/qwen-big-decode-zzzzzzzz-0-1"),
        event("Started", "of a job", about="Pod/qwen-0-1"),
    ]
    about = [event("Serving", "it serves", about="TPUInference/qwen")]
    found = of_inference(world.inference, [name], about, pods)
    assert {one.message for one in found} == {"mine", "it serves"}


class TestWait:
    @pytest.mark.parametrize(
        ("world", "wanted", "code"),
        [
            (serving(), "serving", Exit.DONE),
            (serving(), "complete", Exit.DONE),
            (serving(), "stopped", None),
            (serving(), "deleted", None),
            (serving(), "condition=Available", Exit.DONE),
            (serving(), "condition=Degraded", None),
            (rolling(), "serving", Exit.DONE),
            (rolling(), "complete", None),
            (held(), "complete", None),
            (serving().patch_spec(engine=image("2")), "complete", None),
            (serving().patch_spec(replicas=0).run(), "stopped", Exit.DONE),
        ],
    )
    def test_goals(self, world: InferenceWorld, wanted: str, code: Exit | None) -> None:
        assert verdict(world.inference, wanted).code is code

    def test_a_rollout_that_does_not_progress_is_not_waited_for(self) -> None:
        world = rolling(rollout={"progressDeadlineSeconds": 60})
        world.now = NOW + timedelta(seconds=61)
        found = verdict(world.settle().inference, "complete")
        assert found.code is Exit.BAD
        assert found.message.startswith("does not progress: no replica has become ready for")

    def test_goals_of_the_other_kind_are_refused(self) -> None:
        with pytest.raises(CommandError, match="--for=running is nothing that a TPUInference can be"):
            check(inference(), "running")
        with pytest.raises(CommandError, match="--for=serving is nothing that a TPUJob can be"):
            check(job(), "serving")
        with pytest.raises(CommandError, match="--for=condition=Restarting"):
            check(inference(), "condition=Restarting")
        check(inference(), "deleted")
        check(job(), "condition=Blocked")


class TestChoice:
    def options(self, **given: list[str] | list[int]) -> argparse.Namespace:
        none: dict[str, list[str] | list[int]] = {"role": [], "revision": [], "slice": [], "rank": []}
        return argparse.Namespace(**none | given)

    def test_hosts_of_a_role(self) -> None:
        world = serving()
        chosen = choose.chosen_roles(self.options(role=["prefill"], slice=[1], rank=[0, 3]))
        name = world.status.current_revision
        assert sorted(pod.name for pod in world.pods.values() if chosen.wants(pod)) == [
            f"qwen-prefill-{name}-1-0",
            f"qwen-prefill-{name}-1-3",
        ]

    def test_all_of_them(self) -> None:
        assert all(map(choose.chosen_roles(self.options()).wants, serving().pods.values()))

    def test_a_job_has_no_roles(self) -> None:
        with pytest.raises(CommandError, match="a TPUJob has no roles"):
            choose.chosen(self.options(role=["prefill"]))


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("qwen", Target("qwen")),
        ("tpui/qwen", Target("qwen", "TPUInference")),
        ("tpuinference.tpu-operator.dev/qwen", Target("qwen", "TPUInference")),
        ("tpujobs/train", Target("train", "TPUJob")),
    ],
)
def test_names_with_and_without_a_kind(typed: str, found: Target) -> None:
    assert target(typed) == found


def test_names_of_another_kind() -> None:
    assert inference_name("tpui/qwen") == "qwen"
    with pytest.raises(argparse.ArgumentTypeError, match="write the name of a TPUInference"):
        inference_name("tpujob/train")
    with pytest.raises(argparse.ArgumentTypeError, match="write a name, tpujob/NAME or tpuinference/NAME"):
        target("pod/x")

"""The analysis of a canary: what is asked when, what answers mean, and what becomes of the revision."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.inference import INSTALLATION, InferenceWorld, image, inference, role
from tpu_operator.api import AnalysisQuery, GroupState, Verdict
from tpu_operator.cli.planning import draw
from tpu_operator.core.inference.analysis import judge
from tpu_operator.core.inference.forecast import of_snapshot, render
from tpu_operator.core.inquiry import Answer, Answers

PROMETHEUS = "http://prometheus.test:9090"
OTHER = "http://other.test:9090/team/"
ONE_HOST = {"accelerator": "v5e", "topology": "2x2"}
FOUR = [role("prefill", 4, tpu=ONE_HOST), role("decode", 4, tpu=ONE_HOST)]
ERRORS = {"name": "errors", "query": 'err{revision="$(revision)",stable="$(stable)"}', "atMost": 0.01}
SPEED = {"name": "speed", "query": "tokens{of='$(namespace)/$(name)'}", "atLeast": 100}


def analysed(*queries: dict[str, Any], percent: int = 25, **analysis: Any) -> dict[str, Any]:
    """A step that queries decide on."""
    return {"percent": percent, "analysis": {"queries": list(queries or [ERRORS]), **analysis}}


def rollout(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"canary": {"steps": list(steps or [analysed()])}, **more}


def at_the_step(
    *steps: dict[str, Any], prometheus: tuple[str, ...] = (PROMETHEUS, OTHER), **spec: Any
) -> InferenceWorld:
    """One whose canary has its share, all of it ready."""
    world = InferenceWorld(inference(roles=FOUR, rollout=rollout(*steps)))
    world.installation = replace(INSTALLATION, prometheus=prometheus)
    world.run()
    return world.patch_spec(**(spec or {"engine": image("2")})).run()


def answered(world: InferenceWorld, **values: float | None) -> InferenceWorld:
    """Let the next round come, and answer it."""
    world.now += timedelta(seconds=60)
    inquiry = world.plan().inquiry
    assert inquiry is not None
    assert inquiry.queries.keys() == values.keys()
    by_query = {name: Answer(value, "" if value else "no data") for name, value in values.items()}
    world.answers = Answers(inquiry.name, by_query)
    return world.run()


def gate(world: InferenceWorld) -> tuple[str, str]:
    hold = world.status.rollout.hold
    return (hold.gate, hold.reason) if hold else ("", "")


# What is asked, and when.


def test_a_round_is_asked_for_once_its_time_has_come() -> None:
    world = at_the_step(analysed(ERRORS, SPEED))
    old, new = world.status.current_revision, world.status.updated_revision
    assert world.counts()[new] == {"prefill": 1, "decode": 1}
    assert (world.plan().inquiry, world.plan().requeue_after) == (None, 60)
    world.now += timedelta(seconds=60)
    inquiry = world.plan().inquiry
    assert inquiry is not None
    assert inquiry.address == PROMETHEUS
    assert inquiry.queries == {
        "errors": f'err{{revision="{new}",stable="{old}"}}',
        "speed": "tokens{of='default/qwen'}",
    }
    # An operator that starts anew knows of no answer, and asks the same again.
    assert world.plan().inquiry == inquiry
    assert gate(world) == ("Analysis", "step 1 of 1 of the canary: no query has been answered yet")


def test_each_round_is_another_inquiry() -> None:
    world = at_the_step()
    seen = []
    for _ in range(2):
        answered(world, errors=0.0)
        assert world.answers is not None
        seen.append(world.answers.name)
        assert world.plan().inquiry is None
    assert len(set(seen)) == 2


def test_answers_to_something_else_are_none() -> None:
    world = at_the_step()
    world.answers = Answers("of before", {"errors": Answer(7.0)})
    world.now += timedelta(seconds=60)
    world.run()
    assert world.status.rollout.analysis is None
    assert world.plan().inquiry is not None


def test_a_paused_rollout_asks_nothing() -> None:
    world = at_the_step()
    world.patch_spec(rollout=rollout(paused=True)).run()
    world.now += timedelta(seconds=60)
    assert world.plan().inquiry is None


def test_nothing_is_asked_while_the_canary_is_not_ready() -> None:
    world = at_the_step()
    world.now += timedelta(seconds=60)
    world.set_pod(world.of("decode", world.status.updated_revision, host=0)[0], phase="Running")
    world.settle()
    assert world.plan().inquiry is None
    world.run()
    # Its time begins anew.
    assert world.plan().inquiry is None
    world.now += timedelta(seconds=60)
    assert world.plan().inquiry is not None


# Who may be asked.


def test_without_a_prometheus_nothing_is_asked_and_the_chart_is_named() -> None:
    world = at_the_step(prometheus=())
    world.now += timedelta(seconds=600)
    assert world.plan().inquiry is None
    assert gate(world)[0] == "Analysis"
    assert "prometheus.addresses" in gate(world)[1]


def test_an_address_has_to_be_one_that_the_installation_allows() -> None:
    world = at_the_step(analysed(address="http://169.254.169.254/"))
    world.now += timedelta(seconds=600)
    assert world.plan().inquiry is None
    assert "address http://169.254.169.254/ is none that the operator may ask" in gate(world)[1]
    assert PROMETHEUS in gate(world)[1]


def test_an_address_that_is_allowed_is_asked_as_the_installation_writes_it() -> None:
    world = at_the_step(analysed(address=OTHER.rstrip("/")))
    world.now += timedelta(seconds=60)
    inquiry = world.plan().inquiry
    assert inquiry is not None
    assert inquiry.address == OTHER


# What answers mean.


@pytest.mark.parametrize(
    ("limits", "value", "verdict", "message"),
    [
        ({"at_most": 0.01}, 0.01, Verdict.PASSED, ""),
        ({"at_most": 0.01}, 0.02, Verdict.FAILED, "0.02 is above atMost 0.01"),
        ({"at_least": 10}, 10.0, Verdict.PASSED, ""),
        ({"at_least": 10}, 9.5, Verdict.FAILED, "9.5 is below atLeast 10"),
        ({"at_least": 1, "at_most": 2}, 3.0, Verdict.FAILED, "3 is above atMost 2"),
        ({"at_most": 5}, math.inf, Verdict.FAILED, "inf is above atMost 5"),
        ({"at_most": 5}, math.nan, Verdict.INCONCLUSIVE, "the value is not a number"),
        ({"at_most": 5}, None, Verdict.INCONCLUSIVE, "no data"),
    ],
)
def test_a_value_is_right_or_wrong_or_there_is_none(
    limits: dict[str, float], value: float | None, verdict: Verdict, message: str
) -> None:
    answer = Answer(value) if value is not None else Answer(problem="no data")
    found = judge(AnalysisQuery(name="q", query="q", **limits), answer)
    assert (found.verdict, found.message) == (verdict, message)


def test_rounds_that_pass_lead_to_the_next_step_and_to_the_end() -> None:
    world = at_the_step(analysed(passes=2), analysed(SPEED, percent=50, passes=1))
    new = world.status.updated_revision
    answered(world, errors=0.0)
    assert world.status.rollout.analysis is not None
    assert (world.status.rollout.analysis.passed, world.status.rollout.canary_step) == (1, 0)
    assert gate(world) == ("Analysis", "step 1 of 2 of the canary: 1 of 2 rounds have passed")
    answered(world, errors=0.0)
    assert world.status.rollout.canary_step == 1
    assert world.counts()[new] == {"prefill": 2, "decode": 2}
    answered(world, speed=500.0)
    assert world.counts() == {new: {"prefill": 4, "decode": 4}}
    assert (world.status.phase, world.condition("Progressing")) == ("Serving", "False/Complete")
    assert world.status.rollout.analysis.rounds == 1


def test_a_step_lasts_its_pause_though_its_analysis_has_passed() -> None:
    world = at_the_step(analysed(passes=1) | {"pauseSeconds": 90})
    answered(world, errors=0.0)
    assert gate(world)[0] == "Pause"
    world.now += timedelta(seconds=30)
    world.run()
    assert len(world.counts()) == 1


@pytest.mark.parametrize("lost", [None, math.nan])
def test_without_an_answer_the_step_holds_however_long(lost: float | None) -> None:
    world = at_the_step(analysed(passes=1, failures=1))
    counts = world.counts()
    for _ in range(30):
        answered(world, errors=lost)
    assert world.counts() == counts
    assert gate(world)[0] == "Analysis"
    assert world.status.rollout.analysis is not None
    assert world.status.rollout.analysis.verdict is Verdict.INCONCLUSIVE
    assert "0 of 1 rounds have passed; the last one: errors: " in gate(world)[1]
    answered(world, errors=0.0)
    assert len(world.counts()) == 1


def test_one_wrong_value_of_several_fails_a_round() -> None:
    world = at_the_step(analysed(ERRORS, SPEED, failures=2))
    answered(world, errors=None, speed=1.0)
    assert world.status.rollout.analysis is not None
    assert world.status.rollout.analysis.verdict is Verdict.FAILED
    assert [query.value for query in world.status.rollout.analysis.queries] == ["", "1"]


def test_rounds_may_fail_where_the_spec_allows_for_it() -> None:
    world = at_the_step(analysed(passes=2, failures=2))
    for value in (0.0, 0.5, 0.0):
        answered(world, errors=value)
    assert world.status.rollout.analysis is not None
    found = world.status.rollout.analysis
    assert (found.rounds, found.passed, found.failed) == (3, 1, 1)
    answered(world, errors=0.0)
    assert len(world.counts()) == 1


# Rollback.


def rolled_back(*steps: dict[str, Any], **spec: Any) -> tuple[InferenceWorld, str, str]:
    """One whose canary has failed, with the revisions before and on trial."""
    world = at_the_step(*steps, **spec)
    old, new = world.status.current_revision, world.status.updated_revision
    return answered(world, errors=0.5), old, new


def test_a_wrong_value_rolls_back_and_says_why() -> None:
    world, old, new = rolled_back()
    assert world.counts() == {old: {"prefill": 4, "decode": 4}}
    assert (world.status.current_revision, world.status.updated_revision) == (old, old)
    rejected = world.status.rollout.rejected
    assert rejected is not None
    assert (rejected.revision, rejected.reason) == (new, "errors: 0.5 is above atMost 0.01")
    assert "RevisionRejected" in world.events
    assert (world.status.phase, world.status.reason) == ("Serving", "RolledBack")
    assert world.condition("Progressing") == "False/RolledBack"
    assert world.status.message is not None
    assert f"revision {new} was rejected: errors: 0.5 is above atMost 0.01" in world.status.message
    assert world.condition("Available") == "True/Serving"


def test_a_refusal_that_is_over_does_not_hide_the_rollback() -> None:
    world, *_ = rolled_back()
    world.refusal = 'pods "qwen" is forbidden: no service account'
    world.settle()
    assert (world.status.reason, world.status.pending) == ("RolledBack", None)
    world.patch_spec(engine=image("3")).step()
    assert (world.status.reason, world.condition("Blocked")) == ("CreateRefused", "True/CreateRefused")


def test_on_the_way_back_there_are_always_enough_ready_replicas() -> None:
    world = at_the_step()
    world.keep_deleted = True
    world.now += timedelta(seconds=60)
    inquiry = world.plan().inquiry
    assert inquiry is not None
    world.answers = Answers(inquiry.name, {"errors": Answer(1.0)})
    for _ in range(20):
        world.settle()
        ready = [g for g in world.status.groups if g.state is GroupState.READY]
        assert sum(group.role == "prefill" for group in ready) >= 4
        assert len({name.rsplit("-", 1)[0] for name in world.of("prefill")}) <= 5
        world.vanish().all_pods(phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    assert len(world.counts()) == 1


def test_a_rejected_revision_is_not_tried_again_by_itself() -> None:
    world, old, _ = rolled_back()
    world.now += timedelta(days=3)
    world.run()
    world.patch_spec(roles=[role("prefill", 5, tpu=ONE_HOST), FOUR[1]]).run()
    assert world.counts() == {old: {"prefill": 5, "decode": 4}}
    assert world.condition("Progressing") == "False/RolledBack"


def test_a_forecast_of_a_rejected_revision_says_that_nothing_moves_towards_it() -> None:
    world, old, new = rolled_back()
    found = of_snapshot(world.snapshot(), world.now)
    assert (found.newest, len(found.steps)) == (old, 1)
    assert found.rejected.startswith(
        f"revision {new} was rejected: errors: 0.5 is above atMost 0.01; another"
    )
    assert found.rejected in render(found)
    assert draw(found) == render(found)
    world.patch_spec(engine=image("3"))
    assert not of_snapshot(world.snapshot(), world.now).rejected


def test_another_revision_is_another_try_and_the_rejected_one_is_forgotten() -> None:
    world, old, new = rolled_back()
    world.patch_spec(engine=image("3")).run()
    third = world.status.updated_revision
    assert world.counts().keys() == {old, third}
    assert world.status.rollout.rejected is None
    assert world.status.rollout.analysis is None
    world.patch_spec(engine=image("2")).run()
    assert world.status.updated_revision == new


def test_another_canary_is_another_try_of_the_same_revision() -> None:
    world, old, new = rolled_back()
    world.patch_spec(rollout=rollout(analysed(ERRORS | {"atMost": 1}, passes=1))).run()
    assert world.counts().keys() == {old, new}
    assert world.status.rollout.rejected is None
    answered(world, errors=0.5)
    assert world.counts() == {new: {"prefill": 4, "decode": 4}}


def test_the_old_spec_applied_again_ends_the_matter() -> None:
    world, old, _ = rolled_back()
    world.patch_spec(engine={"type": "vllm"}).run()
    assert world.status.rollout.rejected is None
    assert world.condition("Progressing") == "False/Complete"
    assert world.status.current_revision == old


def test_a_rollback_knows_the_roles_of_the_revision_before() -> None:
    renamed = [role("fill", 4, "prefill", tpu=ONE_HOST), FOUR[1]]
    world, old, _ = rolled_back(roles=renamed)
    assert world.counts() == {old: {"prefill": 4, "decode": 4}}
    assert {each.name: each.desired for each in world.status.roles} == {"prefill": 4, "decode": 4}
    assert (world.status.phase, world.condition("Progressing")) == ("Serving", "False/RolledBack")


def test_a_rollback_goes_on_with_another_operator() -> None:
    world = at_the_step()
    old = world.status.current_revision
    world.now += timedelta(seconds=60)
    inquiry = world.plan().inquiry
    assert inquiry is not None
    world.answers = Answers(inquiry.name, {"errors": Answer(1.0)})
    world.step()
    assert world.status.rollout.rejected is not None
    world.answers = None
    world.run()
    assert world.counts() == {old: {"prefill": 4, "decode": 4}}


def test_without_a_revision_to_go_back_to_the_step_holds() -> None:
    world = at_the_step()
    world.revisions = {
        name: item for name, item in world.revisions.items() if world.status.current_revision not in name
    }
    counts = world.counts()
    answered(world, errors=0.5)
    assert world.counts() == counts
    assert world.status.rollout.rejected is None
    assert gate(world) == (
        "Analysis",
        "step 1 of 1 of the canary: the analysis has failed: errors: 0.5 is above atMost 0.01",
    )

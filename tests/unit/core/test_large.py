"""Jobs that are large, or that their users have made large: no decision grows with them without a limit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.builders import NOW, World, job, node_pool
from tests.unit.core.test_quota import CHIPS, amounts, quota
from tpu_operator.api import Cause, Failure
from tpu_operator.core import missing
from tpu_operator.core.jobstatus import Draft
from tpu_operator.core.jobview import observe
from tpu_operator.core.objects.template import size
from tpu_operator.core.quota import Quotas
from tpu_operator.core.sizes import clipped

THREE = {"accelerator": "v5e", "topology": "4x4", "slices": 3}


@pytest.fixture(autouse=True)
def five_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing, "AT_ONCE", 5)


def made(the_world: World) -> list[str]:
    """Names of the pods that the next pass makes."""
    return [m["metadata"]["name"] for m in the_world.step().creates if m["kind"] == "Pod"]


def test_the_pods_of_a_large_job_are_made_one_part_after_the_other() -> None:
    the_world = World(job(tpu=THREE, head={"spec": {"containers": [{"name": "driver", "image": "d"}]}}))
    passes = [made(the_world) for _ in range(4)]
    assert [len(names) for names in passes] == [5, 5, 3, 0]
    assert passes[0] == ["train-0-0", "train-0-1", "train-0-2", "train-0-3", "train-1-0"]
    the_world.run()
    assert the_world.job.status.phase == "Running"
    assert the_world.job.status.restarts.total == 0
    assert len(the_world.pods) == 13


def test_pods_that_come_later_have_their_share_of_the_quota() -> None:
    the_world = World(job(tpu=THREE), quotas=Quotas([quota({CHIPS: "47"})]))
    plan = the_world.step()
    assert not [m for m in plan.creates if m["kind"] == "Pod"]
    assert the_world.condition("Blocked") == "True/QuotaExceeded"
    assert "has 47 of 47" in (the_world.job.status.message or "")
    assert "48 are needed at once" in (the_world.job.status.message or "")
    the_world.quotas = Quotas([quota({CHIPS: "48", "pods": "12"})])
    assert amounts(the_world.plan().claimed) == {"pods": 12, "count/pods": 12, CHIPS: 48}


def test_slices_that_come_later_keep_their_node_pools() -> None:
    nodes = node_pool("a") | node_pool("b") | node_pool("c")
    the_world = World(job(tpu=THREE), nodes=nodes)
    plan = the_world.step()
    pools = {m["spec"]["nodeSelector"]["cloud.google.com/gke-nodepool"] for m in plan.creates[1:]}
    assert pools == {"a", "b"}
    assert set(plan.reserved) == {"b", "c"}
    assert made(the_world) == ["train-1-1", "train-1-2", "train-1-3", "train-2-0", "train-2-1"]
    the_world.settle()
    chosen = {name: pod.spec.node_selector.pool for name, pod in the_world.pods.items()}
    assert sorted(set(chosen.values())) == ["a", "b", "c"]
    assert len({(name[:7], pool) for name, pool in chosen.items()}) == 3


@pytest.mark.parametrize(
    "spec",
    [
        {"template": {"spec": {"tolerations": [{"key": str(index)} for index in range(10)]}}},
        {"template": {"metadata": {"annotations": {str(index): "" for index in range(20)}}}},
        {"run": {"command": ["x"], "env": [{"name": f"E{index}", "value": ""} for index in range(7)]}},
    ],
)
def test_what_every_pod_gets_a_copy_of_makes_them_fewer(
    monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any]
) -> None:
    monkeypatch.setattr(missing, "COPIED", 50)
    the_world = World(job(**spec))
    assert [len(made(the_world)) for _ in range(3)] == [2, 2, 0]


def test_one_pod_is_always_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing, "COPIED", 1)
    the_world = World(job(template={"metadata": {"labels": {"a": "b", "c": "d"}}}))
    assert len(made(the_world)) == 1
    assert len(the_world.settle().pods) == 4


@pytest.mark.parametrize(
    ("template", "values"),
    [(None, 0), ({}, 0), ({"a": 1}, 1), ({"a": [1, 2]}, 3), ({"a": [{"b": 1}, {"c": {"d": 1}}]}, 6)],
)
def test_size(template: object, values: int) -> None:
    assert size(template) == values


@pytest.mark.parametrize("letter", ["e", "é", "\U0001f525", "<", '"', "\x01", "\u2028"])
def test_a_thousand_slices_that_have_failed_fit_into_one_status(letter: str) -> None:
    """The server escapes in its own way, and keeps the names of all fields beside them: a third more."""
    tpu = {"accelerator": "v5e", "topology": "2x2", "slices": 1024}
    the_world = World(job(name="t" * 40, tpu=tpu, failurePolicy={"restartScope": "Slice"}))
    draft = Draft(observe(the_world.snapshot(), NOW))
    for index in range(1024):
        failure = Failure(cause=Cause.PLACEMENT_MISMATCH, attempt=1, pod=f"{'t' * 40}-{index}-0", slice=index)
        draft.record(failure.model_copy(update={"reason": "R" * 999, "message": letter * 999, "time": NOW}))
    status = draft.plan().status
    assert status
    wire = json.dumps(dict(status), ensure_ascii=False)
    assert len(wire.replace("<", r"\u003c").replace("\u2028", r"\u2028").encode()) < 700_000
    assert all(s["lastFailure"]["message"].startswith(letter) for s in status["slices"])


@pytest.mark.parametrize(
    ("text", "room", "left"),
    [("abc", 3, "abc"), ("abc", 2, "ab"), ("a<b", 6, "a"), ("éa", 1, ""), ("a\nb", 3, "a\n")],
)
def test_clipped(text: str, room: int, left: str) -> None:
    assert clipped(text, room) == left

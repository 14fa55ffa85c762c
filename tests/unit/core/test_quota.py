"""Room in a namespace's ResourceQuotas: for all pods of a gang or for none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.builders import World, job
from tpu_operator.core.quota import Quotas, demand
from tpu_operator.core.snapshot import Quota

CHIPS = "requests.google.com/tpu"


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> Quota:
    status = {"hard": hard, "used": used or {}}
    return msgspec.convert({"metadata": {"name": "team"}, "spec": spec, "status": status}, Quota)


def world(*quotas: Quota, claimed: dict[str, int] | None = None, **spec: Any) -> World:
    """A job of four hosts with four chips each, and quotas."""
    return World(job(**spec), quotas=Quotas(quotas, claimed or {}))


def test_what_pods_use() -> None:
    pods = [each for each in world().plan().creates if each["kind"] == "Pod"]
    assert demand(pods) == {"pods": 4, "count/pods": 4, CHIPS: 16}


@pytest.mark.parametrize(
    ("hard", "used"),
    [
        ({CHIPS: "16"}, {}),
        ({CHIPS: "32", "pods": "5"}, {CHIPS: "16", "pods": "1"}),
        ({"requests.cpu": "1", "services": "0"}, {}),
        ({"pods": "4k"}, {}),
    ],
)
def test_room(hard: dict[str, str], used: dict[str, str]) -> None:
    the_world = world(quota(hard, used)).run()
    assert the_world.job.status.phase == "Running"


@pytest.mark.parametrize(
    ("hard", "used", "message"),
    [
        (
            {CHIPS: "16"},
            {CHIPS: "8"},
            f"ResourceQuota team has 8 of 16 {CHIPS} left, 16 are needed at once",
        ),
        (
            {CHIPS: "2k"},
            {CHIPS: "1990"},
            f"ResourceQuota team has 10 of 2000 {CHIPS} left, 16 are needed at once",
        ),
        (
            {CHIPS: "8"},
            {},
            f"ResourceQuota team has 8 of 8 {CHIPS} left, 16 are needed at once; it has to be raised",
        ),
        (
            {"pods": "3"},
            {},
            "ResourceQuota team has 3 of 3 pods left, 4 are needed at once; it has to be raised",
        ),
        (
            {"count/pods": "10"},
            {"count/pods": "12"},
            "ResourceQuota team has 0 of 10 count/pods left, 4 are needed at once",
        ),
    ],
)
def test_no_pod_is_made_where_there_is_no_room_for_all(
    hard: dict[str, str], used: dict[str, str], message: str
) -> None:
    the_world = world(quota(hard, used)).settle()
    assert not the_world.pods
    assert the_world.condition("Blocked") == "True/QuotaExceeded"
    assert the_world.job.status.message == message
    assert the_world.services, "a Service is no pod"
    the_world.quotas = Quotas([quota({CHIPS: "16"})])
    assert the_world.run().job.status.phase == "Running"


def test_what_others_are_about_to_use_is_gone() -> None:
    the_world = world(quota({CHIPS: "16"}), claimed={CHIPS: 4}).settle()
    assert (
        the_world.job.status.message == f"ResourceQuota team has 12 of 16 {CHIPS} left, 16 are needed at once"
    )


def test_of_a_gang_that_is_there_in_part_only_the_rest_needs_room() -> None:
    the_world = world().settle().vanish("train-0-3")
    the_world.quotas = Quotas([quota({CHIPS: "16"}, {CHIPS: "12"})])
    assert len(the_world.settle().pods) == 4


@pytest.mark.parametrize(
    "spec",
    [
        {"scopes": ["BestEffort"]},
        {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]}},
    ],
)
def test_quotas_for_some_pods_only_are_left_to_the_server(spec: dict[str, Any]) -> None:
    assert len(world(quota({"pods": "0"}, **spec)).settle().pods) == 4


def test_a_running_job_needs_nothing() -> None:
    the_world = world().run()
    the_world.quotas = Quotas([quota({"pods": "1"}, {"pods": "4"})])
    assert the_world.settle().condition("Blocked") == ""

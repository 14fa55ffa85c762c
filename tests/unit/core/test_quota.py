"""Room in a namespace's ResourceQuotas: for all pods of a gang or for none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.builders import World, job
from tpu_operator.core.quota import Quotas, Use, demand
from tpu_operator.core.snapshot import Quota

if TYPE_CHECKING:
    from collections.abc import Mapping

CHIPS, LIMITS = "requests.google.com/tpu", "limits.google.com/tpu"


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> Quota:
    status = {"hard": hard, "used": used or {}}
    return msgspec.convert({"metadata": {"name": "team"}, "spec": spec, "status": status}, Quota)


def world(*quotas: Quota, claimed: dict[Use, int] | None = None, **spec: Any) -> World:
    """A job of four hosts with four chips each, and quotas."""
    return World(job(**spec), quotas=Quotas(quotas, claimed or {}))


def amounts(uses: Mapping[Use, int]) -> dict[str, float]:
    """What is used, in whole units, but for limits of what has requests."""
    return {use.resource: each / 1000 for use, each in uses.items() if use.resource != LIMITS}


def test_what_pods_use() -> None:
    pods = [each for each in world().plan().creates if each["kind"] == "Pod"]
    assert amounts(demand(pods)) == {"pods": 4, "count/pods": 4, CHIPS: 16}


def container(name: str = "main", **resources: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "resources": resources}


@pytest.mark.parametrize(
    ("spec", "uses"),
    [
        pytest.param(
            {"containers": [container(requests={"cpu": "500m"}), container(requests={"cpu": 1.5})]},
            {"cpu": 2, "requests.cpu": 2},
            id="the sum of containers",
        ),
        pytest.param(
            {"containers": [container(limits={"memory": "1Gi"})]},
            {"memory": 2**30, "requests.memory": 2**30, "limits.memory": 2**30},
            id="a limit is a request",
        ),
        pytest.param(
            {
                "initContainers": [container(requests={"cpu": 8})],
                "containers": [container(requests={"cpu": 2, "ephemeral-storage": "1k"})],
            },
            {"cpu": 8, "requests.cpu": 8, "ephemeral-storage": 1000, "requests.ephemeral-storage": 1000},
            id="one before them that takes more",
        ),
        pytest.param(
            {
                "initContainers": [
                    container("proxy", requests={"cpu": 1}) | {"restartPolicy": "Always"},
                    container("fetch", requests={"cpu": 2}),
                ],
                "containers": [container(requests={"cpu": 1})],
            },
            {"cpu": 3, "requests.cpu": 3},
            id="one before them beside a sidecar",
        ),
        pytest.param(
            {
                "initContainers": [container(requests={"cpu": 1}) | {"restartPolicy": "Always"}],
                "containers": [container(requests={"cpu": 1, "example.com/nic": 2})],
                "overhead": {"cpu": "250m"},
            },
            {"cpu": 2.25, "requests.cpu": 2.25, "requests.example.com/nic": 2},
            id="sidecars and overhead",
        ),
        pytest.param(
            {"resources": {"requests": {"cpu": 4}}, "containers": [container(requests={"cpu": 1})]},
            {"cpu": 4, "requests.cpu": 4},
            id="what a pod says as a whole",
        ),
        pytest.param({"containers": [container(requests={"cpu": None})]}, {}, id="a null"),
    ],
)
def test_what_a_pod_takes_as_the_server_counts(spec: dict[str, Any], uses: dict[str, float]) -> None:
    assert amounts(demand([{"spec": spec}])) == {"pods": 1, "count/pods": 1} | uses


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
    the_world = world(quota({CHIPS: "16"}), claimed={Use(CHIPS): 4000}).settle()
    assert (
        the_world.job.status.message == f"ResourceQuota team has 12 of 16 {CHIPS} left, 16 are needed at once"
    )


def test_of_a_gang_that_is_there_in_part_only_the_rest_needs_room() -> None:
    the_world = world().settle().vanish("train-0-3")
    the_world.quotas = Quotas([quota({CHIPS: "16"}, {CHIPS: "12"})])
    assert len(the_world.settle().pods) == 4


BATCH: dict[str, Any] = {"scopeName": "PriorityClass", "operator": "In", "values": ["batch"]}
NOT_BATCH = BATCH | {"operator": "NotIn"}
ANY = {"scopeName": "PriorityClass", "operator": "Exists"}


@pytest.mark.parametrize(
    ("scope", "priority", "counts"),
    [
        ({"scopes": ["BestEffort"]}, "", True),
        ({"scopes": ["NotBestEffort"]}, "", False),
        ({"scopes": ["NotTerminating"]}, "", True),
        ({"scopes": ["Terminating"]}, "", False),
        ({"scopes": ["NotTerminating", "NotBestEffort"]}, "", False),
        ({"scopeSelector": {"matchExpressions": [BATCH]}}, "batch", True),
        ({"scopeSelector": {"matchExpressions": [BATCH]}}, "urgent", False),
        ({"scopeSelector": {"matchExpressions": [NOT_BATCH]}}, "batch", False),
        ({"scopeSelector": {"matchExpressions": [NOT_BATCH]}}, "urgent", True),
        ({"scopeSelector": {"matchExpressions": [ANY]}}, "batch", True),
        pytest.param(
            {"scopeSelector": {"matchExpressions": [ANY]}}, "", False, id="of a default only the server knows"
        ),
        pytest.param({"scopes": ["CrossNamespacePodAffinity"]}, "", False, id="left to the server"),
    ],
)
def test_a_quota_counts_the_pods_in_its_scope(scope: dict[str, Any], priority: str, *, counts: bool) -> None:
    template = {"spec": {"priorityClassName": priority} if priority else {}}
    the_world = world(quota({"pods": "3"}, **scope), template=template).settle()
    assert len(the_world.pods) == (0 if counts else 4)


def test_what_others_are_about_to_use_counts_in_its_own_scope() -> None:
    batch: dict[str, Any] = {"scopeSelector": {"matchExpressions": [BATCH]}}
    claimed = {Use("pods", "batch"): 2000, Use("pods", "urgent"): 9000}
    template = {"spec": {"priorityClassName": "batch"}}
    assert len(world(quota({"pods": "6"}, **batch), claimed=claimed, template=template).settle().pods) == 4
    assert not world(quota({"pods": "5"}, **batch), claimed=claimed, template=template).settle().pods


def test_no_pod_is_made_where_there_are_no_cpus_for_all() -> None:
    cpus = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}]}
    the_world = world(quota({"requests.cpu": "5"}), template={"spec": cpus}).settle()
    assert not the_world.pods
    message = "ResourceQuota team has 5 of 5 requests.cpu left, 6 are needed at once; it has to be raised"
    assert the_world.job.status.message == message
    the_world.quotas = Quotas([quota({"requests.cpu": "6", "memory": "3Gi"})])
    assert "has 3Gi of 3Gi memory left, 4Gi are needed at once" in str(the_world.settle().job.status.message)
    the_world.quotas = Quotas([quota({"requests.cpu": "6", "memory": "4Gi"})])
    assert the_world.run().job.status.phase == "Running"


def test_a_running_job_needs_nothing() -> None:
    the_world = world().run()
    the_world.quotas = Quotas([quota({"pods": "1"}, {"pods": "4"})])
    assert the_world.settle().condition("Blocked") == ""

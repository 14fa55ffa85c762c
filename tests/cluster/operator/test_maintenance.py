"""Notices of maintenance on real nodes' labels, as GKE writes them."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from tests.cluster.operator.jobs import restarts
from tests.docs import examples
from tests.kube import NODE, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.operator.jobs import Jobs
    from tests.kube import Kube, Object

pytestmark = pytest.mark.usefixtures("operator")
POOL = "cloud.google.com/gke-nodepool"
SCHEDULED = "cloud.google.com/scheduled-maintenance-time"
ACTIVE = "cloud.google.com/active-node-maintenance"
TOLD = "tpu-operator.dev/maintenance"


class Notices:
    """The labels by which maintenance is announced."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    def pools(self) -> set[str]:
        return {node["metadata"]["labels"][POOL] for node in self._kube.list(NODE, "", POOL)}

    def put(self, pool: str, **labels: str | None) -> None:
        """Change the labels of a pool's nodes."""
        for node in self._kube.list(NODE, "", f"{POOL}={pool}"):
            self._kube.patch(NODE, node["metadata"]["name"], "", {"metadata": {"labels": labels}})

    def announce(self, pool: str, seconds: float) -> None:
        self.put(pool, **{SCHEDULED: str(int(time.time() + seconds))})


@pytest.fixture
def notices(kube: Kube) -> Iterator[Notices]:
    made = Notices(kube)
    yield made
    for pool in made.pools():
        made.put(pool, **{SCHEDULED: None, ACTIVE: None})


def pool_of(jobs: Jobs) -> str:
    return str(jobs.status()["slices"][0]["nodePool"])


def told(jobs: Jobs) -> list[Object]:
    """What each pod was told."""
    annotations = [pod["metadata"].get("annotations", {}) for pod in jobs.pods().values()]
    return [json.loads(each[TOLD]) for each in annotations if each.get(TOLD)]


def announced(jobs: Jobs) -> tuple[str, str]:
    condition = jobs.condition("MaintenanceScheduled")
    return condition.get("status", ""), condition.get("reason", "")


def test_a_job_moves_ahead_of_announced_maintenance(jobs: Jobs, notices: Notices) -> None:
    example = examples()["Maintenance with room elsewhere"]
    jobs.create(**example.spec)
    jobs.reaches("Running")
    pool = pool_of(jobs)
    notices.announce(pool, 25)
    wait_for(lambda: announced(jobs) == ("True", "Announced"), "the condition")
    assert (
        f"slice 0 in node pool {pool}: maintenance at 20" in jobs.condition("MaintenanceScheduled")["message"]
    )
    wait_for(lambda: len(told(jobs)) == 4, "all pods to be told")
    assert jobs.status()["restarts"]["total"] == 0
    status = jobs.reaches("Running", restarts=1)
    assert example.shown(status) == example.status
    assert pool_of(jobs) != pool
    wait_for(lambda: announced(jobs) == ("False", "Over"), "the condition to be over")


def test_without_room_it_goes_down_with_its_nodes(jobs: Jobs, notices: Notices) -> None:
    example = examples()["Maintenance without room elsewhere"]
    jobs.create(**example.spec)
    jobs.reaches("Running")
    pool = pool_of(jobs)
    for other in notices.pools() - {pool}:
        notices.announce(other, 3600)
    notices.announce(pool, 1)
    wait_for(lambda: len(told(jobs)) == 4, "all pods to be told")
    notices.put(pool, **{ACTIVE: "ONGOING"})
    wait_for(lambda: announced(jobs) == ("True", "Ongoing"), "the condition")
    assert restarts(jobs.status()) == (0, 0, {})
    jobs.end_pod("train-0-2", 1)
    assert example.shown(jobs.reaches("Running", restarts=1)) == example.status


def test_maintenance_that_is_called_off(jobs: Jobs, notices: Notices) -> None:
    jobs.create()
    jobs.reaches("Running")
    notices.announce(pool_of(jobs), 7200)
    wait_for(lambda: len(told(jobs)) == 4, "all pods to be told")
    notices.put(pool_of(jobs), **{SCHEDULED: None})
    wait_for(lambda: announced(jobs) == ("False", "Over"), "the condition to be over")
    wait_for(lambda: not told(jobs), "all pods to be told")
    assert restarts(jobs.status()) == (0, 0, {})


def test_nodes_with_notices_are_chosen_last(jobs: Jobs, notices: Notices) -> None:
    *announced_ones, free = sorted(notices.pools(), reverse=True)
    for pool in announced_ones:
        notices.announce(pool, 7200)
    jobs.create()
    jobs.reaches("Running")
    assert pool_of(jobs) == free

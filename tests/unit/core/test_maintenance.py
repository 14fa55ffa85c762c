"""Announced maintenance of a job of four hosts, played through pass by pass."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.builders import NOW, RUNNING, World, job, node, node_pool, report, terminated
from tests.unit.core.test_placement import tenant

SCHEDULED = "cloud.google.com/scheduled-maintenance-time"
ONGOING = {"cloud.google.com/active-node-maintenance": "ONGOING"}
END = "node.gke.io/machine-termination-datetime"
LEAD = 300
HOUR = NOW + timedelta(hours=1)


def world(*pools: str, hosts: int = 4, **spec: Any) -> World:
    """A job that runs in the first of some node pools."""
    the_world = World(job(**spec), nodes_version=10**6)
    for pool in pools:
        the_world.nodes |= node_pool(pool, hosts)
    the_world.settle()
    bind(the_world, pools[0])
    return the_world.settle()


def bind(the_world: World, pool: str) -> None:
    for index, name in enumerate(the_world.pods):
        the_world.set_pod(name, f"{pool}-{index}", **RUNNING)


def label(the_world: World, *names: str, **more: Any) -> None:
    for name in names:
        the_world.nodes[name] = node(name, name.rpartition("-")[0], **more)


def announce(the_world: World, start: datetime = HOUR, pool: str = "a") -> None:
    names = [name for name in the_world.nodes if name.startswith(f"{pool}-")]
    label(the_world, *names, labels={SCHEDULED: str(int(start.timestamp()))})


def at(the_world: World, time: datetime) -> World:
    the_world.now = time
    return the_world.settle()


def message(the_world: World) -> str:
    conditions = the_world.job.status.conditions
    return next((c.message for c in conditions if c.type == "MaintenanceScheduled"), "")


def told(the_world: World) -> list[dict[str, str]]:
    texts = [pod.metadata.annotations.maintenance for pod in the_world.pods.values()]
    return [json.loads(text) for text in texts if text]


def restarts(the_world: World) -> tuple[int, dict[str, int]]:
    found = the_world.job.status.restarts
    return found.counted, {str(cause): count for cause, count in found.by_cause.items()}


def pools(the_world: World) -> set[str]:
    return {pod.spec.node_selector.pool for pod in the_world.pods.values()}


class TestAhead:
    def test_the_job_says_who_and_when_in_one_sentence(self) -> None:
        the_world = world("a", "b")
        announce(the_world)
        the_world.settle()
        assert the_world.condition("MaintenanceScheduled") == "True/Announced"
        assert message(the_world) == (
            "slice 0 in node pool a: maintenance at 2026-11-30T13:00:00Z; "
            "it moves to other nodes from 2026-11-30T12:55:00Z on, if there is room"
        )
        assert "Announced" in the_world.events

    def test_each_pod_is_told_once(self) -> None:
        the_world = world("a", "b")
        label(the_world, "a-2", labels={SCHEDULED: str(int(HOUR.timestamp()))})
        plan = the_world.step()
        assert [m["metadata"]["name"] for m in plan.applies] == [f"train-0-{host}" for host in range(4)]
        expected = {"start": "2026-11-30T13:00:00Z", "checkpoint": "2026-11-30T12:50:00Z"}
        assert told(the_world) == [expected] * 4
        assert the_world.settle().plan().applies == ()
        assert the_world.plan().status is None

    def test_what_is_called_off_is_over(self) -> None:
        the_world = world("a", "b")
        announce(the_world)
        the_world.settle()
        the_world.nodes |= node_pool("a")
        the_world.settle()
        assert the_world.condition("MaintenanceScheduled") == "False/Over"
        assert told(the_world) == []

    def test_what_is_put_off_is_told_again(self) -> None:
        the_world = world("a", "b")
        announce(the_world)
        the_world.settle()
        announce(the_world, HOUR + timedelta(hours=1))
        the_world.settle()
        assert {one["start"] for one in told(the_world)} == {"2026-11-30T14:00:00Z"}

    def test_a_job_without_notices_writes_nothing_more(self) -> None:
        the_world = world("a", "b")
        plan = the_world.plan()
        assert (plan.applies, plan.status) == ((), None)

    def test_machines_of_limited_life_are_announced_an_hour_ahead(self) -> None:
        the_world = world("a", "b")
        label(the_world, *node_pool("a"), annotations={END: "2026-11-30T15:00:00Z"})
        plan = the_world.settle().plan()
        assert (the_world.condition("MaintenanceScheduled"), plan.requeue_after) == ("", 2 * 3600)
        at(the_world, NOW + timedelta(hours=2))
        assert the_world.condition("MaintenanceScheduled") == "True/Announced"


class TestMove:
    def test_one_planned_restart_elsewhere_at_the_lead_time(self) -> None:
        the_world = world("a", "b")
        announce(the_world)
        assert the_world.settle().plan().requeue_after == 3600 - LEAD
        at(the_world, HOUR - timedelta(seconds=LEAD + 1))
        assert restarts(the_world) == (0, {})
        at(the_world, HOUR - timedelta(seconds=LEAD))
        assert restarts(the_world) == (0, {"Maintenance": 1})
        assert pools(the_world) == {"b"}
        bind(the_world, "b")
        the_world.settle()
        assert the_world.condition("MaintenanceScheduled") == "False/Over"
        last = the_world.job.status.last_failure
        assert last is not None
        assert last.message == "maintenance of node a-0 begins at 2026-11-30T13:00:00Z: moved ahead of it"
        assert restarts(at(the_world, HOUR)) == (0, {"Maintenance": 1})

    def test_a_notice_that_comes_late_leaves_half_of_the_time(self) -> None:
        the_world = world("a", "b")
        announce(the_world, NOW + timedelta(seconds=60))
        the_world.settle()
        assert {one["checkpoint"] for one in told(the_world)} == {"2026-11-30T12:00:00Z"}
        at(the_world, NOW + timedelta(seconds=29))
        assert restarts(the_world) == (0, {})
        assert restarts(at(the_world, NOW + timedelta(seconds=30))) == (0, {"Maintenance": 1})

    @pytest.mark.parametrize("others", ["held", "announced", "none"])
    def test_where_there_is_no_room_it_stays(self, others: str) -> None:
        the_world = world("a", *(() if others == "none" else ("b",)))
        if others == "held":
            the_world.others = [tenant(at="b-1")]
        announce(the_world)
        if others == "announced":
            announce(the_world, HOUR + timedelta(days=1), "b")
        the_world.settle()
        at(the_world, HOUR - timedelta(seconds=LEAD))
        assert restarts(the_world) == (0, {})
        assert the_world.plan().requeue_after == 10.0
        assert the_world.condition("MaintenanceScheduled") == "True/Announced"

    def test_room_that_comes_later_is_taken(self) -> None:
        the_world = world("a")
        announce(the_world)
        at(the_world, HOUR - timedelta(seconds=LEAD))
        the_world.nodes |= node_pool("b")
        assert restarts(at(the_world, HOUR - timedelta(seconds=60))) == (0, {"Maintenance": 1})
        assert pools(the_world) == {"b"}

    def test_restart_moves_at_once(self) -> None:
        the_world = world("a", "b", maintenance={"onNotice": "Restart"})
        announce(the_world, NOW + timedelta(days=2))
        assert restarts(the_world.settle()) == (0, {"Maintenance": 1})

    def test_ignore_does_nothing(self) -> None:
        the_world = world("a", "b", maintenance={"onNotice": "Ignore"})
        announce(the_world)
        at(the_world, HOUR)
        assert (restarts(the_world), told(the_world)) == ((0, {}), [])
        assert the_world.condition("MaintenanceScheduled") == ""

    def test_only_the_slice_that_is_affected_moves_where_slices_restart_alone(self) -> None:
        tpu = {"accelerator": "v5e", "topology": "4x4", "slices": 2}
        the_world = World(job(tpu=tpu, failurePolicy={"restartScope": "Slice"}))
        for pool in ("a", "b", "c"):
            the_world.nodes |= node_pool(pool)
        the_world.settle()
        for name in the_world.pods:
            host = name[-1]
            the_world.set_pod(name, f"{'ab'[int(name[6])]}-{host}", **RUNNING)
        the_world.settle()
        announce(the_world, pool="b")
        the_world.settle()
        at(the_world, HOUR - timedelta(seconds=LEAD))
        assert [s.attempt for s in the_world.job.status.slices] == [0, 1]
        assert {the_world.pods[f"train-1-{host}"].spec.node_selector.pool for host in range(4)} == {"c"}

    def test_a_rule_that_ends_jobs_for_maintenance_does_not_hasten_their_end(self) -> None:
        rules = [{"onCauses": ["Maintenance"], "action": "FailJob"}]
        the_world = world("a", "b", failurePolicy={"rules": rules})
        announce(the_world)
        at(the_world, HOUR)
        assert (restarts(the_world), the_world.job.status.phase) == ((0, {}), "Running")

    def test_slices_of_one_host_move_where_a_node_is_free(self) -> None:
        tpu = {"accelerator": "v5e", "topology": "2x2"}
        the_world = World(job(tpu=tpu))
        labels = {"cloud.google.com/gke-tpu-topology": "2x2"}
        for name in ("a-0", "b-0"):
            label(the_world, name, labels=labels)
        the_world.settle()
        the_world.set_pod("train-0-0", "a-0", **RUNNING)
        the_world.settle()
        label(the_world, "a-0", labels=labels | {SCHEDULED: str(int(HOUR.timestamp()))})
        the_world.settle()
        at(the_world, HOUR - timedelta(seconds=LEAD))
        assert restarts(the_world) == (0, {"Maintenance": 1})
        # The scheduler puts it back all the same: that was the one planned restart for this notice.
        the_world.set_pod("train-0-0", "a-0", **RUNNING)
        assert restarts(at(the_world, HOUR)) == (0, {"Maintenance": 1})


class TestAttribution:
    def test_what_fails_under_maintenance_is_not_charged(self) -> None:
        the_world = world("a")
        label(the_world, *node_pool("a"), labels=ONGOING)
        the_world.settle()
        assert the_world.condition("MaintenanceScheduled") == "True/Ongoing"
        the_world.set_pod("train-0-2", "a-2", **terminated(1, report()))
        the_world.step()
        assert restarts(the_world) == (0, {"Maintenance": 1})

    def test_the_pods_that_are_taken_down_after_it_are_not_the_root(self) -> None:
        the_world = world("a")
        label(the_world, *node_pool("a"), labels=ONGOING)
        the_world.keep_deleted = True
        late = NOW + timedelta(seconds=0.5)
        the_world.now = late
        the_world.set_pod("train-0-2", "a-2", **terminated(1, report(at=late)))
        the_world.settle()
        found = the_world.job.status.last_failure
        assert found is not None
        assert (found.pod, found.exit_code) == ("train-0-2", 1)

    def test_a_node_that_goes_down_at_the_announced_time(self) -> None:
        the_world = world("a")
        announce(the_world)
        the_world.settle()
        the_world.nodes["a-1"] = node(
            "a-1", "a", ready="Unknown", since=HOUR, labels={SCHEDULED: str(int(HOUR.timestamp()))}
        )
        the_world.now = HOUR + timedelta(seconds=61)
        the_world.step()
        assert restarts(the_world) == (0, {"Maintenance": 1})

    def test_a_node_that_is_gone_after_the_announced_time(self) -> None:
        the_world = world("a")
        announce(the_world)
        the_world.settle()
        del the_world.nodes["a-1"]
        the_world.now = HOUR + timedelta(seconds=1)
        the_world.step()
        assert restarts(the_world) == (0, {"Maintenance": 1})
        assert "was announced" in str(the_world.job.status.last_failure)

    def test_a_node_that_is_lost_before_it_is_only_lost(self) -> None:
        the_world = world("a")
        announce(the_world)
        the_world.settle()
        del the_world.nodes["a-1"]
        the_world.step()
        assert restarts(the_world) == (0, {"NodeLost": 1})

    def test_ignored_maintenance_is_still_the_cause(self) -> None:
        the_world = world("a", maintenance={"onNotice": "Ignore"})
        label(the_world, *node_pool("a"), labels=ONGOING)
        the_world.set_pod("train-0-2", "a-2", **terminated(1, report()))
        the_world.step()
        assert restarts(the_world) == (0, {"Maintenance": 1})


class TestPlacement:
    def test_pools_with_notices_come_last(self) -> None:
        the_world = World(job())
        the_world.nodes |= node_pool("a") | node_pool("b")
        announce(the_world)
        assert pools(the_world.settle()) == {"b"}

    def test_but_before_none(self) -> None:
        the_world = World(job())
        the_world.nodes |= node_pool("a")
        announce(the_world)
        assert pools(the_world.settle()) == {"a"}

    def test_a_slice_that_restarts_does_not_go_back_to_one(self) -> None:
        the_world = world("a", "b", maintenance={"onNotice": "Ignore"})
        announce(the_world)
        the_world.set_pod("train-0-2", "a-2", **terminated(1, report()))
        assert pools(the_world.settle()) == {"b"}


def test_suspension_ends_the_condition() -> None:
    the_world = world("a")
    announce(the_world)
    the_world.settle()
    the_world.patch_spec(suspend=True)
    the_world.settle()
    assert the_world.condition("MaintenanceScheduled") == "False/Suspended"


def test_between_two_attempts_the_condition_stays() -> None:
    the_world = world("a")
    announce(the_world)
    the_world.settle()
    the_world.set_pod("train-0-2", "a-2", **terminated(1, report()))
    the_world.settle()
    assert the_world.condition("MaintenanceScheduled") == "True/Announced"

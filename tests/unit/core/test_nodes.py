"""Nodes that are lost, and the gangs on them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.builders import NOW, RUNNING, World, decode_pod, job, node, node_pool, report, terminated
from tpu_operator.core.nodes import SETTLED, Nodes

SINCE = NOW - timedelta(seconds=60)
OUT_OF_SERVICE = [{"key": "node.kubernetes.io/out-of-service", "value": "x", "effect": "NoExecute"}]


def running(**nodes: Any) -> World:
    """A job of four hosts, each on its node of pool `a`."""
    the_world = World(job(), nodes=node_pool("a"), nodes_version=10).settle()
    for index in range(4):
        the_world.set_pod(f"train-0-{index}", node=f"a-{index}", **RUNNING)
    the_world.settle()
    the_world.keep_deleted = True
    return the_world


class TestLoss:
    def test_out_of_touch_for_a_minute(self) -> None:
        the_world = running()
        the_world.nodes["a-1"] = node("a-1", "a", ready="Unknown", since=SINCE + timedelta(seconds=1))
        plan = the_world.step()
        assert plan.status is None
        assert plan.requeue_after == pytest.approx(1)
        the_world.now += timedelta(seconds=1)
        the_world.step()
        failure = the_world.job.status.last_failure
        assert failure is not None
        assert (failure.cause, failure.pod, failure.host) == ("NodeLost", "train-0-1", 1)
        assert failure.message == "node a-1 is not ready for over 60 s"
        assert the_world.job.status.restarts.counted == 0

    def test_a_node_that_is_gone(self) -> None:
        the_world = running()
        del the_world.nodes["a-1"]
        the_world.step()
        failure = the_world.job.status.last_failure
        assert failure is not None
        assert (failure.cause, failure.message) == ("NodeLost", "node a-1 is gone")

    def test_what_a_lost_node_leads_to_depends_on_the_node_as_it_was_seen(self) -> None:
        the_world = running()
        assert the_world.plan().sightings == ()
        the_world.nodes["a-1"] = node("a-1", "a", ready="Unknown", since=SINCE)
        assert [seen.name for seen in the_world.step().sightings] == ["a-1"]
        plan = the_world.step()
        assert 0 in {delete.grace_seconds for delete in plan.deletes}
        assert [seen.name for seen in plan.sightings] == ["a-1"]

    def test_a_node_that_the_copy_is_too_old_to_know(self) -> None:
        metadata = {"name": "p", "labels": {}, "resourceVersion": "11"}
        pod = decode_pod({"metadata": metadata, "spec": {"nodeName": "new"}}, **RUNNING)
        assert Nodes({}, version=10, heard=NOW).loss(pod, NOW) is None
        assert Nodes({}, version=10, heard=NOW).until_lost(pod, NOW) == pytest.approx(5)
        assert Nodes({}, version=11, heard=NOW).loss(pod, NOW) is not None
        assert Nodes({}, version=11, heard=NOW).until_lost(pod, NOW) is None

    @pytest.mark.parametrize("told_by", ["scheduler", "creation"])
    def test_versions_of_nodes_may_say_nothing_about_those_of_pods(self, told_by: str) -> None:
        """Where each have an etcd of their own, a copy that lags may bear the greater number."""
        metadata: dict[str, Any] = {"name": "p", "labels": {}, "resourceVersion": "11"}
        status: dict[str, Any] = {"phase": "Running"}
        if told_by == "scheduler":
            metadata["creationTimestamp"] = (NOW - timedelta(hours=1)).isoformat()
            times = {"lastTransitionTime": NOW.isoformat()}
            status["conditions"] = [{"type": "PodScheduled", "status": "True", **times}]
        else:
            metadata["creationTimestamp"] = NOW.isoformat()
        pod = decode_pod({"metadata": metadata, "spec": {"nodeName": "new"}}, **status)
        later = NOW + timedelta(hours=1)
        for heard in (None, NOW + SETTLED - timedelta(seconds=1)):
            nodes = Nodes({}, version=1_000_000, heard=heard)
            assert nodes.loss(pod, later) is None
            assert nodes.until_lost(pod, later) == pytest.approx(5)
        assert Nodes({}, version=1_000_000, heard=NOW + SETTLED).loss(pod, later) is not None

    def test_a_node_that_people_have_given_up(self) -> None:
        the_world = running()
        the_world.nodes["a-1"] = node("a-1", "a", taints=OUT_OF_SERVICE)
        the_world.step()
        failure = the_world.job.status.last_failure
        assert failure is not None
        assert (failure.cause, failure.message) == ("NodeLost", "node a-1 is out of service")

    @pytest.mark.parametrize(
        "change", [{"unschedulable": True}, {"taints": [{"key": "k", "effect": "NoSchedule"}]}]
    )
    def test_a_cordon_is_no_loss(self, change: dict[str, Any]) -> None:
        the_world = running()
        the_world.nodes["a-1"] = node("a-1", "a", **change)
        assert the_world.plan().status is None

    def test_what_has_succeeded_is_not_lost(self) -> None:
        the_world = running()
        for index in range(4):
            the_world.set_pod(f"train-0-{index}", node=f"a-{index}", **terminated(0))
        the_world.nodes = {}
        assert the_world.settle().job.status.phase == "Succeeded"


class TestRestart:
    def test_pods_on_it_are_deleted_by_force_and_others_are_not(self) -> None:
        the_world = running()
        the_world.nodes["a-1"] = node("a-1", "a", ready="Unknown", since=SINCE)
        the_world.step()
        deletes = {delete.name: delete.grace_seconds for delete in the_world.plan().deletes}
        assert deletes == {"train-0-0": None, "train-0-1": 0, "train-0-2": None, "train-0-3": None}

    def test_a_pod_that_was_asked_to_go_before_its_node_was_lost(self) -> None:
        the_world = running()
        the_world.set_pod("train-0-0", node="a-0", **terminated(1, report()))
        the_world.step()
        the_world.step()
        assert the_world.plan().deletes == ()
        the_world.nodes["a-1"] = node("a-1", "a", ready="Unknown", since=NOW)
        the_world.now += timedelta(seconds=60)
        assert [(d.name, d.grace_seconds) for d in the_world.plan().deletes] == [("train-0-1", 0)]

    def test_the_slice_moves_to_another_pool(self) -> None:
        the_world = running()
        the_world.keep_deleted = False
        the_world.nodes |= node_pool("b") | {"a-1": node("a-1", "a", ready="Unknown", since=SINCE)}
        the_world.settle()
        assert {pod.spec.node_selector.pool for pod in the_world.pods.values()} == {"b"}

    def test_failures_that_the_loss_led_to_are_not_charged(self) -> None:
        the_world = running()
        lost_at = NOW - timedelta(seconds=55)
        the_world.set_pod(
            "train-0-0", node="a-0", **terminated(1, report(at=lost_at + timedelta(seconds=10)))
        )
        the_world.step()
        assert the_world.job.status.restarts.by_cause == {"UserError": 1}
        the_world.nodes["a-1"] = node("a-1", "a", ready="Unknown", since=NOW)
        the_world.now += timedelta(seconds=60)
        the_world.step()
        assert the_world.job.status.restarts.by_cause == {"NodeLost": 1}
        assert the_world.job.status.restarts.counted == 0

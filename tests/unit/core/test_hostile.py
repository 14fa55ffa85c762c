"""What people, programs and nodes may write into what decisions read: none of it stops the decisions."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pydantic import ValidationError

from tests.builders import (
    NOW,
    RUNNING,
    World,
    ended,
    job,
    lives,
    node,
    node_pool,
    report,
    terminated,
)
from tpu_operator.core.kueue import Queues
from tpu_operator.core.snapshot import Pod

if TYPE_CHECKING:
    from collections.abc import Callable

SPARE = {"accelerator": "v5e", "topology": "4x4", "spareSlices": 1}
IGNORE_3 = {"rules": [{"onExitCodes": [3], "action": "Ignore"}]}


def edited(the_world: World, name: str, edit: Callable[[dict[str, Any]], None]) -> None:
    """A pod as somebody has left it."""
    wire = msgspec.to_builtins(the_world.pods[name])
    edit(wire)
    the_world.pods[name] = msgspec.convert(wire, Pod)


def without_attempt(wire: dict[str, Any]) -> None:
    del wire["metadata"]["labels"]["tpu-operator.dev/attempt"]


def status_of(the_world: World) -> dict[str, Any]:
    wire: dict[str, Any] = json.loads(json.dumps(the_world.job.status.wire()))
    return wire


class TestLabels:
    def test_a_failed_pod_without_its_attempt_that_a_rule_ignores_is_left_over(self) -> None:
        the_world = World(job(failurePolicy=IGNORE_3)).run()
        the_world.set_pod("train-0-1", **terminated(3))
        edited(the_world, "train-0-1", without_attempt)
        the_world.settle()
        assert the_world.job.status.restarts.by_cause == {"PodDeleted": 1}
        assert {pod.attempt for pod in the_world.pods.values()} == {1}

    def test_a_pod_without_its_attempt_on_a_lost_node_goes_at_once(self) -> None:
        the_world = World(job()).run()
        the_world.keep_deleted = True
        the_world.nodes = {"node": node("node", "a", ready="Unknown", since=NOW - timedelta(seconds=100))}
        edited(the_world, "train-0-1", without_attempt)
        the_world.settle()
        assert the_world.job.status.restarts.by_cause == {"NodeLost": 1}
        assert {pod.attempt for pod in the_world.pods.values()} == {1}


class TestStatus:
    @pytest.mark.parametrize("kind", ["Succeeded", "Failed"])
    def test_the_end_is_final_without_its_time(self, kind: str) -> None:
        the_world = World(job(ttlSecondsAfterFinished=0)).run()
        status = status_of(the_world)
        status["conditions"].append({"type": kind, "status": "True", "reason": "Test"})
        the_world.set_status(status)
        the_world.vanish(*the_world.pods).settle()
        assert not the_world.pods
        assert the_world.alive

    @pytest.mark.parametrize("value", [10**9, 2**63 - 1])
    def test_an_attempt_that_no_label_can_hold_is_refused(self, value: int) -> None:
        the_world = World(job()).run()
        status = status_of(the_world)
        status["slices"][0]["attempt"] = value
        with pytest.raises(ValidationError, match="less than or equal to 999999999"):
            the_world.set_status(status)

    def test_more_restarts_in_place_than_restarts(self) -> None:
        the_world = World(job()).run()
        status = status_of(the_world)
        status["slices"][0]["restartsInPlace"] = 5
        the_world.set_status(status)
        the_world.vanish("train-0-1").settle()
        assert [pod.attempt for pod in the_world.pods.values()] == [0] * 4

    @pytest.mark.parametrize("field", ["startTime", "completionTime"])
    @pytest.mark.parametrize(
        "value", ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"]
    )
    def test_a_time_that_cannot_be_reckoned_with_is_refused(self, field: str, value: str) -> None:
        the_world = World(job(activeDeadlineSeconds=60)).run()
        with pytest.raises(ValidationError, match="is none of 1000 to 8999"):
            the_world.set_status(status_of(the_world) | {field: value})


class TestWords:
    def test_a_reason_may_be_longer_than_ours_are(self) -> None:
        the_world = World(job()).run()
        the_world.set_pod("train-0-1", phase="Failed", reason="x" * 5000)
        the_world.settle()
        assert the_world.job.status.restarts.by_cause == {"Evicted": 1}

    @pytest.mark.parametrize("field", ["exitCode", "signal"])
    def test_numbers_in_a_report_that_are_none_of_the_launchers(self, field: str) -> None:
        the_world = World(job(failurePolicy={"restartStrategy": "InPlace"})).run()
        earlier = {"attempt": 0, "time": NOW.timestamp(), field: 10**30}
        the_world.set_pod("train-0-1", **lives(ended(), ended(1, report(attempt=1, earlier=[earlier]))))
        the_world.step()
        failure = the_world.job.status.last_failure
        assert failure is not None
        assert failure.exit_code == 1
        assert failure.signal is None

    def test_an_announcement_of_maintenance_without_a_time_zone_was_not_ours(self) -> None:
        the_world = World(job(), nodes_version=10**9).run()
        told = {"start": "2026-01-01T00:00:00", "checkpoint": "2026-01-01T00:00:00"}
        annotations = {"tpu-operator.dev/maintenance": json.dumps(told)}
        edited(the_world, "train-0-1", lambda wire: wire["metadata"].update(annotations=annotations))
        the_world.now += timedelta(hours=1)
        the_world.settle()
        assert the_world.job.status.restarts.by_cause == {"NodeLost": 1}

    @pytest.mark.parametrize("end", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59-12:00"])
    def test_a_machine_that_ends_at_the_end_of_time(self, end: str) -> None:
        the_world = World(job()).run()
        annotations = {"node.gke.io/machine-termination-datetime": end}
        the_world.nodes = {"node": node("node", "a", annotations=annotations)}
        assert the_world.settle().job.status.restarts.total == 0


class TestTemplates:
    def test_an_affinity_for_nodes_that_is_none_is_told_before_the_queue_is_asked(self) -> None:
        template = {"spec": {"affinity": {"nodeAffinity": "x"}}}
        the_world = World(job(scheduling={"queueName": "team"}, template=template), queues=Queues())
        the_world.settle()
        assert the_world.condition("Blocked") == "True/EnvironmentConflict"
        assert "spec.template.spec.affinity.nodeAffinity: Expected `object | null`" in (
            the_world.job.status.message or ""
        )

    def test_spares_of_a_running_job_whose_next_template_asks_for_nothing(self) -> None:
        the_world = World(job(tpu=SPARE), nodes=node_pool("a") | node_pool("b")).settle()
        for index, name in enumerate(sorted(the_world.pods)):
            the_world.set_pod(name, node=f"a-{index}", **RUNNING)
        the_world.patch_spec(template={"spec": {"containers": [{"name": "main", "resources": None}]}})
        the_world.settle()
        assert the_world.job.status.phase == "Running"
        assert len(the_world.pods) == 8


class TestNodes:
    def test_a_slice_that_runs_is_where_it_belongs_whatever_becomes_of_labels(self) -> None:
        the_world = World(job(), nodes=node_pool("a")).settle()
        for index, name in enumerate(sorted(the_world.pods)):
            the_world.set_pod(name, node=f"a-{index}", **RUNNING)
        the_world.settle()
        the_world.nodes["a-1"] = node("a-1", "renamed")
        the_world.settle()
        assert the_world.job.status.restarts.total == 0
        assert the_world.job.status.phase == "Running"


@pytest.mark.parametrize("head", [{"metadata": {"labels": {"a": "b"}}}, {"spec": {}}])
def test_a_head_without_containers_is_for_the_server_to_refuse(head: dict[str, Any]) -> None:
    created = World(job(head=head)).plan().creates
    assert [pod["metadata"]["name"] for pod in created if pod["kind"] == "Pod"][-1] == "train-head"

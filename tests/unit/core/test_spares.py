"""Spare slices, played through pass by pass."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tests.builders import (
    NOW,
    RUNNING,
    SETTINGS,
    World,
    job,
    node,
    node_pool,
    report,
    stamp,
    terminated,
)
from tpu_operator.core import job as job_module
from tpu_operator.core.jobview import gang_spec
from tpu_operator.core.objects.pods import PodFactory
from tpu_operator.core.snapshot import Pod

TPU = {"accelerator": "v5e", "topology": "4x4", "slices": 2, "spareSlices": 1}
POOLS = ("a", "b", "c", "d")
SCHEDULED = "cloud.google.com/scheduled-maintenance-time"


class Kube(World):
    """A world with a scheduler and kubelets: what is pinned to a pool gets its nodes, and runs."""

    def live(self, rounds: int = 12) -> Kube:
        for _ in range(rounds):
            before = self._state()
            self.settle()
            for name, pod in self.pods.items():
                pool = pod.spec.node_selector.pool
                if pool and not pod.spec.node_name and f"{pool}-{name[-1]}" in self.nodes:
                    self.bind(name, pool)
            if self._state() == before:
                return self
        raise AssertionError("it does not settle")

    def bind(self, name: str, pool: str) -> None:
        self.set_pod(name, f"{pool}-{name[-1]}", **RUNNING)

    def set_pod(self, name: str, node: str | None = "node", **status: Any) -> None:
        selector = msgspec.to_builtins(self.pods[name].spec.node_selector)
        super().set_pod(name, node, **status)
        wire = msgspec.to_builtins(self.pods[name])
        wire["spec"]["nodeSelector"] = selector
        self.pods[name] = msgspec.convert(wire, Pod)

    def pools(self) -> dict[int, str]:
        return {s.index: s.node_pool or "" for s in self.job.status.slices}

    def states(self) -> list[str]:
        return [str(s.state) for s in self.job.status.slices]

    def of(self, index: int) -> list[str]:
        return [name for name in self.pods if name.startswith(f"train-{index}-")]

    def lose(self, pool: str) -> Kube:
        """The nodes of a pool are gone, with nobody to say what has become of the pods."""
        for name in node_pool(pool):
            del self.nodes[name]
        self.nodes_version = 10**6
        return self

    def causes(self) -> tuple[int, int, dict[str, int]]:
        found = self.job.status.restarts
        return found.total, found.counted, {str(cause): n for cause, n in found.by_cause.items()}


def world(*pools: str, tpu: dict[str, Any] | None = None, **spec: Any) -> Kube:
    the_world = Kube(job(tpu=TPU | (tpu or {}), **spec))
    for pool in pools:
        the_world.nodes |= node_pool(pool)
    return the_world.live()


class TestWarm:
    def test_a_spare_waits_in_a_pool_of_its_own_and_counts_for_nothing(self) -> None:
        the_world = world(*POOLS)
        status = the_world.job.status
        assert the_world.states() == ["Running", "Running", "Spare"]
        assert len(set(the_world.pools().values())) == 3
        assert (status.ready, status.hosts.desired, status.hosts.ready) == ("8/8", 8, 8)
        assert status.phase == "Running"

    def test_it_is_made_once_all_slices_have_nodes(self) -> None:
        the_world = Kube(job(tpu=TPU))
        the_world.nodes |= node_pool("a") | node_pool("b") | node_pool("c")
        the_world.settle()
        assert the_world.of(2) == []
        assert len(the_world.live().of(2)) == 4

    def test_its_pods_wait_with_the_image_and_the_chips_and_nothing_else_of_the_users(self) -> None:
        sidecar = {"name": "proxy", "image": "proxy"}
        claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
        init = {"name": "load", "image": "loader"}
        template = {"spec": {"containers": [sidecar], "volumes": [claim], "initContainers": [init]}}
        the_job = job(tpu=TPU, template=template, run={"command": ["x"], "image": "mine"})
        spare = PodFactory(the_job, gang_spec(the_job), SETTINGS).spare(2, 0, 0, "c")
        assert spare["metadata"]["labels"]["tpu-operator.dev/component"] == "spare"
        (container,) = spare["spec"]["containers"]
        assert container["command"] == ["python3", "/tpu-operator/tpu-launch.pyz", "--spare"]
        assert container["image"] == "mine"
        own = job(tpu=TPU)
        bundled = PodFactory(own, gang_spec(own), SETTINGS).spare(2, 0, 0, "c")["spec"]["containers"][0]
        assert bundled["command"] == ["tpu-launch", "--spare"]
        assert container["resources"]["limits"] == {"google.com/tpu": "4"}
        assert container["env"] == [{"name": "TPU_LAUNCH_PORT", "value": "8090"}]
        assert [c["name"] for c in spare["spec"]["initContainers"]] == ["tpu-launch"]
        assert [v["name"] for v in spare["spec"]["volumes"]] == ["tpu-operator"]

    def test_without_room_it_waits_and_the_job_runs(self) -> None:
        the_world = world("a", "b")
        assert the_world.states() == ["Running", "Running", "Pending"]
        assert (the_world.job.status.phase, the_world.of(2)) == ("Running", [])
        assert the_world.plan().requeue_after == 10.0
        the_world.nodes |= node_pool("c")
        assert the_world.live().states() == ["Running", "Running", "Spare"]

    def test_a_refusal_of_its_pods_does_not_block_the_job(self) -> None:
        the_world = world("a", "b")
        the_world.nodes |= node_pool("c")
        the_world.refusal = "exceeded quota"
        the_world.settle()
        assert the_world.condition("Blocked") == ""

    def test_its_success_is_not_waited_for(self) -> None:
        the_world = world(*POOLS)
        for index in (0, 1):
            for name in the_world.of(index):
                the_world.set_pod(name, **terminated(0))
        the_world.settle()
        assert the_world.job.status.phase == "Succeeded"
        assert the_world.of(2) == []

    def test_suspension_takes_it_down(self) -> None:
        the_world = world(*POOLS)
        the_world.patch_spec(suspend=True)
        the_world.settle()
        assert (the_world.pods, the_world.states()) == ({}, ["Suspended"] * 3)
        the_world.patch_spec(suspend=False)
        assert the_world.live().states() == ["Running", "Running", "Spare"]


class TestTakeOver:
    @pytest.mark.parametrize("scope", ["Job", "Slice"])
    def test_a_slice_that_has_lost_its_pool_gets_the_spares(self, scope: str) -> None:
        the_world = world(*POOLS[:3], failurePolicy={"restartScope": scope})
        lost, spare = the_world.pools()[1], the_world.pools()[2]
        the_world.lose(lost)
        the_world.live()
        assert the_world.pools()[1] == spare
        assert the_world.pools()[0] == "a"
        assert the_world.states() == ["Running", "Running", "Pending"]
        assert the_world.causes() == (1, 0, {"NodeLost": 1})
        assert [s.attempt for s in the_world.job.status.slices] == [int(scope == "Job"), 1, 1]
        assert "SpareUsed" in the_world.events
        the_world.nodes |= node_pool("e")
        assert the_world.live().pools()[2] == "e"
        assert the_world.states() == ["Running", "Running", "Spare"]

    def test_no_pod_goes_there_before_the_spares_are_gone(self) -> None:
        the_world = world(*POOLS[:3])
        the_world.keep_deleted = True
        spare = the_world.pools()[2]
        the_world.lose(the_world.pools()[1])
        the_world.settle()
        the_world.vanish(*(name for name in the_world.pods if name[6] != "2"))
        the_world.settle()
        assert the_world.of(1) == []
        uid = the_world.job.metadata.uid
        assert the_world.plan().reserved == {"a": f"{uid}-0", spare: f"{uid}-1"}
        the_world.vanish()
        the_world.settle()
        assert {the_world.pods[name].spec.node_selector.pool for name in the_world.of(1)} == {spare}

    def test_spares_of_no_use_are_not_taken(self) -> None:
        the_world = world(*POOLS)
        free = (set(POOLS) - set(the_world.pools().values())).pop()
        the_world.nodes[f"{the_world.pools()[2]}-3"] = node("x", the_world.pools()[2], unschedulable=True)
        the_world.lose(the_world.pools()[1])
        assert the_world.live().pools()[1] == free

    def test_a_slice_whose_pool_is_well_stays_there(self) -> None:
        the_world = world(*POOLS[:3])
        before = the_world.pools()
        the_world.set_pod("train-1-2", f"{before[1]}-2", **terminated(1, report()))
        assert the_world.live().pools() == before
        assert the_world.causes() == (1, 1, {"UserError": 1})

    @pytest.mark.parametrize(
        ("message", "spent"),
        [
            (
                "0/12 nodes are available: 8 node(s) didn't match Pod's node affinity, 4 Insufficient cpu.",
                True,
            ),
            ("pod has unbound immediate PersistentVolumeClaims", False),
            ('0/12 nodes are available: persistentvolumeclaim "data" not found.', False),
            ("0/12 nodes are available: 4 node(s) had volume node affinity conflict.", False),
        ],
    )
    def test_only_want_of_room_costs_a_spare(self, message: str, spent: bool) -> None:
        """And that only when the scheduler has had its time, where the pool looks well from here."""
        the_world = world(*POOLS[:3])
        before = the_world.pools()
        the_world.vanish("train-1-2").settle()
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        condition["lastTransitionTime"] = stamp(the_world.now)
        for name in the_world.of(1):
            the_world.set_pod(name, None, phase="Pending", conditions=[condition])
        the_world.settle()
        assert len(the_world.of(1)) == len(the_world.of(2)) == 4
        assert {the_world.pods[name].spec.node_selector.pool for name in the_world.of(1)} == {before[1]}
        the_world.now += timedelta(seconds=16)
        the_world.settle()
        assert (the_world.of(2) == []) == spent
        assert the_world.pools()[1] == before[2 if spent else 1]

    def test_a_slice_moves_ahead_of_maintenance_into_the_spares_pool(self) -> None:
        the_world = world(*POOLS[:3], maintenance={"onNotice": "Restart"})
        leaving, spare = the_world.pools()[1], the_world.pools()[2]
        start = str(int((NOW + timedelta(days=1)).timestamp()))
        for name in node_pool(leaving):
            the_world.nodes[name] = node(name, leaving, labels={SCHEDULED: start})
        the_world.live()
        assert the_world.pools()[1] == spare
        assert the_world.causes() == (1, 0, {"Maintenance": 1})

    def test_single_hosts_get_the_spares_node(self) -> None:
        tpu = {"accelerator": "v5e", "topology": "2x2", "slices": 1, "spareSlices": 1}
        the_world = Kube(job(tpu=tpu))
        for name in ("a-0", "b-0"):
            the_world.nodes[name] = node(name, "p", labels={"cloud.google.com/gke-tpu-topology": "2x2"})
        the_world.settle()
        the_world.set_pod("train-0-0", "a-0", **RUNNING)
        the_world.settle()
        the_world.set_pod("train-1-0", "b-0", **RUNNING)
        the_world.settle()
        assert the_world.states() == ["Running", "Spare"]
        del the_world.nodes["a-0"]
        the_world.nodes_version = 10**6
        the_world.settle()
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        the_world.set_pod("train-0-0", None, phase="Pending", conditions=[condition])
        the_world.settle()
        assert (the_world.of(1), the_world.states()[1]) == ([], "Pending")


class TestReplaced:
    def test_a_spare_that_fails_is_made_again_after_a_pause(self) -> None:
        the_world = world(*POOLS)
        the_world.set_pod("train-2-1", "c-1", **terminated(70))
        the_world.settle()
        assert (the_world.of(2), the_world.causes()) == ([], (0, 0, {}))
        assert the_world.job.status.phase == "Running"
        the_world.now = NOW + timedelta(seconds=2)
        assert the_world.live().states() == ["Running", "Running", "Spare"]

    def test_the_pause_grows(self) -> None:
        the_world = world(*POOLS)
        for attempt in range(1, 6):
            the_world.set_pod("train-2-1", "c-1", **terminated(70, at=the_world.now))
            the_world.settle()
            plan = the_world.plan()
            assert plan.requeue_after == 2.0**attempt
            the_world.now += timedelta(seconds=2.0**attempt)
            the_world.live()
        assert the_world.causes() == (0, 0, {})

    def test_a_spare_that_has_lost_its_pool_goes_to_another(self) -> None:
        the_world = world(*POOLS)
        the_world.lose(the_world.pools()[2]).settle()
        the_world.now = NOW + timedelta(seconds=2)
        the_world.live()
        assert the_world.pools()[2] == "d"
        assert the_world.causes() == (0, 0, {})

    def test_a_spare_that_is_gone_is_made_again(self) -> None:
        the_world = world(*POOLS)
        the_world.vanish("train-2-3").settle()
        the_world.now = NOW + timedelta(seconds=2)
        assert the_world.live().states() == ["Running", "Running", "Spare"]
        assert [s.attempt for s in the_world.job.status.slices] == [0, 0, 1]

    def test_a_change_of_the_template_waits_until_it_is_used(self) -> None:
        the_world = world(*POOLS[:3])
        before = the_world.pools()
        the_world.patch_spec(template={"metadata": {"labels": {"a": "b"}}})
        the_world.live()
        assert [s.attempt for s in the_world.job.status.slices] == [0, 0, 0]
        assert the_world.states() == ["Running", "Running", "Spare"]
        the_world.lose(before[1])
        assert the_world.live().pools()[1] == before[2]

    def test_another_version_of_the_operator_leaves_it_alone(self) -> None:
        the_world = world(*POOLS)
        newer = replace(SETTINGS, runtime_image="example/runtime:2", launcher_image="example/operator:2")
        plan = job_module.plan(the_world.snapshot(), the_world.now, newer)
        assert (plan.status, plan.deletes, plan.creates) == (None, (), ())


def test_a_job_without_spares_looks_for_nothing() -> None:
    the_world = world("a", "b", tpu={"spareSlices": 0})
    plan = the_world.plan()
    assert (plan.requeue_after, plan.creates, plan.reserved, len(the_world.states())) == (None, (), {}, 2)

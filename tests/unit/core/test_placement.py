"""Which node pool each slice goes to."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tests.builders import NOW, RUNNING, UID, World, decode_pod, job, node, node_pool, pools_of
from tpu_operator.core.placement import Demand, Pools, Tenant, choose
from tpu_operator.core.snapshot import Node, Pod, Taint

POOL = "cloud.google.com/gke-nodepool"
SELECTOR = {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
    "cloud.google.com/gke-tpu-topology": "4x4",
    "cloud.google.com/gke-accelerator-count": "4",
}
TPU_TAINT = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}
TOLERATION = {"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}
DEMAND = Demand(SELECTOR, [TOLERATION], hosts=4, chips=4)
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


def tenant(
    name: str = "other-0-0",
    at: str = "",
    pinned: str = "",
    slice_id: str = "x-0",
    chips: str = "4",
    **status: Any,
) -> Pod:
    """A pod of another job."""
    labels = {"tpu-operator.dev/job": "other"} | ({"tpu-operator.dev/slice-id": slice_id} if slice_id else {})
    main = {"name": "main", "resources": {"limits": {"google.com/tpu": chips}} if chips else {}}
    pool = {POOL: pinned} if pinned else {}
    spec = {"nodeName": at, "nodeSelector": pool, "containers": [{"name": "side"}, main]}
    return decode_pod(
        {"metadata": {"name": name, "namespace": "default", "labels": labels}, "spec": spec}, **status
    )


def choice(pools: Pools, demand: Demand = DEMAND, **homes: str | None) -> dict[str, str]:
    return choose(pools, demand, homes or {"mine": None})


class TestWhatFits:
    def test_the_first_pool_with_room(self) -> None:
        nodes = node_pool("a", hosts=3) | node_pool("b") | node_pool("c")
        assert choice(pools_of(nodes.values(), [])) == {"mine": "b"}

    @pytest.mark.parametrize(
        "change",
        [
            {"ready": "Unknown"},
            {"ready": "False"},
            {"unschedulable": True},
            {"chips": "0"},
            {"chips": "two"},
            {"taints": [{"key": "broken", "effect": "NoSchedule"}]},
            {"taints": [{"key": "broken", "effect": "NoExecute"}]},
            {"labels": {"cloud.google.com/gke-tpu-topology": "2x4"}},
            {"labels": {"cloud.google.com/gke-nodepool": ""}},
        ],
        ids=str,
    )
    def test_every_host_of_it_has_to_be_of_use(self, change: dict[str, Any]) -> None:
        nodes = node_pool("a") | {"a-3": node("a-3", **({"pool": "a"} | change))}
        assert choice(pools_of(nodes.values(), [])) == {}

    @pytest.mark.parametrize("taint", [TPU_TAINT, {"key": "slow", "effect": "PreferNoSchedule"}])
    def test_taints_that_do_not_matter(self, taint: dict[str, str]) -> None:
        assert choice(pools_of(node_pool("a", taints=[taint]).values(), [])) == {"mine": "a"}

    def test_labels_that_only_this_job_asks_for(self) -> None:
        nodes = node_pool("a") | node_pool("b", labels={"team": "blue"})
        demand = Demand(SELECTOR | {"team": "blue"}, [TOLERATION], hosts=4, chips=4)
        assert choice(pools_of(nodes.values(), []), demand) == {"mine": "b"}

    @pytest.mark.parametrize(
        ("toleration", "tolerated"),
        [
            ({"operator": "Exists"}, True),
            ({"key": "k", "operator": "Exists"}, True),
            ({"key": "k", "value": "v"}, True),
            ({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}, True),
            ({"key": "k", "value": "v", "effect": None}, True),
            ({"key": "k", "value": "v", "effect": "NoExecute"}, False),
            ({"key": "k", "value": "w"}, False),
            ({"key": "l", "operator": "Exists"}, False),
            ({"value": "v"}, False),
            ({"key": "k", "operator": "Gt", "value": "v"}, False),
        ],
        ids=str,
    )
    def test_tolerations_are_those_of_kubernetes(self, toleration: dict[str, Any], tolerated: bool) -> None:
        demand = Demand(SELECTOR, [toleration], hosts=4, chips=4)
        tainted = node("a", "a", taints=[msgspec.to_builtins(Taint("k", "v", "NoSchedule"))])
        assert (demand.fault(tainted) == "") is tolerated


def stranger(at: str, *chips: str, name: str = "notebook", **status: Any) -> Pod:
    """A pod that has nothing to do with us, with containers that take chips."""
    containers = [
        {"name": f"c{i}", "resources": {"limits": {"google.com/tpu": n}}} for i, n in enumerate(chips)
    ]
    metadata = {"name": name, "namespace": "lab", "labels": {}}
    return decode_pod({"metadata": metadata, "spec": {"nodeName": at, "containers": containers}}, **status)


class TestStrangers:
    def test_a_pod_of_others_holds_the_chips_of_its_node(self) -> None:
        pools = pools_of((node_pool("a") | node_pool("b")).values(), [])
        pools.put_stranger(stranger("a-2", "1"))
        assert choice(pools) == {"mine": "b"}
        assert pools.fault(node("a-2", "a"), DEMAND) == "is used by pod lab/notebook"
        pools.drop_stranger(("lab", "notebook"))
        assert choice(pools) == {"mine": "a"}

    @pytest.mark.parametrize(
        "pod",
        [
            stranger("", "4"),
            stranger("elsewhere", "4"),
            stranger("a-2"),
            stranger("a-2", "0"),
            stranger("a-2", "4", phase="Succeeded"),
        ],
        ids=["unbound", "elsewhere", "no chips", "zero chips", "finished"],
    )
    def test_others_hold_nothing(self, pod: Pod) -> None:
        pools = pools_of(node_pool("a").values(), [])
        pools.put_stranger(stranger("a-2", "4"))
        pools.put_stranger(pod)
        assert choice(pools) == {"mine": "a"}

    def test_what_is_left_of_a_node_may_do(self) -> None:
        pools = pools_of(node_pool("a", chips="8").values(), [])
        pools.put_stranger(stranger("a-0", "2", "2"))
        assert choice(pools) == {"mine": "a"}
        pools.put_stranger(stranger("a-0", "1", name="another"))
        assert choice(pools) == {}

    def test_it_is_named_where_it_is_in_the_way(self) -> None:
        the_world = World(job(), nodes=node_pool("a"), strangers=[stranger("a-2", "4")]).settle()
        for name in the_world.pods:
            assert the_world.pods[name].spec.node_selector.pool == ""
            the_world.set_pod(name, None, phase="Pending", conditions=[UNSCHEDULABLE])
        the_world.settle()
        assert (the_world.job.status.message or "").endswith(
            "has 3 that pods may use: a-2 is used by pod lab/notebook"
        )


class TestTenants:
    @pytest.mark.parametrize("pod", [tenant(at="a-2"), tenant(pinned="a")], ids=["bound", "pinned"])
    def test_a_pool_is_for_one_slice(self, pod: Pod) -> None:
        nodes = node_pool("a") | node_pool("b")
        assert choice(pools_of(nodes.values(), [pod])) == {"mine": "b"}

    @pytest.mark.parametrize(
        "pod",
        [
            tenant(at="a-2", phase="Succeeded"),
            tenant(at="a-2", slice_id=""),
            tenant(at="a-2", slice_id="mine"),
            tenant(at="a-2", chips=""),
            tenant(pinned="a", chips="0"),
        ],
        ids=["finished", "head", "own", "poses as a slice", "poses with no chips"],
    )
    def test_pods_that_hold_nothing_against_it(self, pod: Pod) -> None:
        assert choice(pools_of(node_pool("a").values(), [pod])) == {"mine": "a"}

    def test_slices_of_one_job_get_a_pool_each(self) -> None:
        nodes = node_pool("a") | node_pool("b")
        assert choice(pools_of(nodes.values(), []), s0=None, s1=None, s2=None) == {"s0": "a", "s1": "b"}

    def test_each_pool_is_looked_at_once_however_many_slices_there_are(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Others wait meanwhile, and the lease is renewed by the same loop."""
        asked: Counter[str] = Counter()
        usable = Pools.usable

        def counted(pools: Pools, pool: str, demand: Demand) -> list[Node]:
            asked[pool] += 1
            return usable(pools, pool, demand)

        monkeypatch.setattr(Pools, "usable", counted)
        nodes = {k: v for index in range(60) for k, v in node_pool(f"p{index}").items()}
        shunned = Counter[str]()
        found = choose(
            pools_of(nodes.values(), []),
            DEMAND,
            {f"x-{index}": None for index in range(80)},
            lambda pool: bool(shunned.update([pool])) or pool == "p7",
        )
        assert sorted(found.values()) == sorted(f"p{index}" for index in range(60))
        assert list(found)[-1] == "x-59", "first come, first served"
        assert found["x-59"] == "p7"
        assert set(asked.values()) == set(shunned.values()) == {1}

    def test_a_slice_takes_the_pool_that_it_holds(self) -> None:
        nodes = node_pool("a") | node_pool("b")
        pools = pools_of(nodes.values(), [tenant(at="a-0", slice_id="x-1")])
        assert choose(pools, DEMAND, {"x-0": None, "x-1": None}) == {"x-1": "a", "x-0": "b"}

    def test_each_stays_where_it_was(self) -> None:
        nodes = node_pool("a") | node_pool("b") | node_pool("c")
        assert choice(pools_of(nodes.values(), []), s0=None, s1="a", s2="gone") == {
            "s0": "b",
            "s1": "a",
            "s2": "c",
        }

    def test_a_claim_holds_until_the_next(self) -> None:
        pools = pools_of((node_pool("a") | node_pool("b")).values(), [])
        pools.claim(("TPUJob", "default", "other"), {"a": Tenant("x-0", "default/other")})
        assert choice(pools) == {"mine": "b"}
        assert choose(pools, DEMAND, {"x-0": None}) == {"x-0": "a"}
        pools.claim(("TPUJob", "default", "other"), {})
        assert choice(pools) == {"mine": "a"}


class TestHomes:
    def test_two_slices_that_have_been_in_one_pool_do_not_meet_there(self) -> None:
        """One has been there before the other; in between, the scheduler has moved it."""
        pools = pools_of((node_pool("a") | node_pool("b")).values(), [])
        assert choice(pools, one="b", other="b") == {"one": "b", "other": "a"}

    def test_nor_does_one_move_in_where_there_is_no_other_pool(self) -> None:
        assert choice(pools_of(node_pool("b").values(), []), one="b", other="b") == {"one": "b"}


class TestKeptUpToDate:
    def test_whatever_comes_first(self) -> None:
        nodes, pods = list(node_pool("a").values()), [tenant(at="a-1"), tenant("head", at="a-2", slice_id="")]
        later = Pools()
        for pod in pods:
            later.put_pod(pod)
        for item in nodes:
            later.put_node(item)
        for pools in (later, pools_of(nodes, pods)):
            assert pools.tenants("a") == {Tenant("x-0", "default/other")}
            assert {t.slice_id for t in pools.tenants_on("a-2")} == {""}

    def test_pods_go_and_move(self) -> None:
        pools = pools_of((node_pool("a") | node_pool("b")).values(), [tenant(pinned="a")])
        pools.put_pod(tenant(at="b-0", pinned="a"))
        assert (pools.tenants("a"), len(pools.tenants("b"))) == (set(), 1)
        pools.put_pod(tenant(at="b-0", phase="Failed"))
        assert pools.tenants("b") == set()
        pools.drop_pod(("default", "other-0-0"))
        assert pools.tenants("b") == set()

    def test_nodes_go_and_change_their_pool(self) -> None:
        pools = pools_of(node_pool("a", hosts=1).values(), [tenant(at="a-0")])
        pools.put_node(node("a-0", "b"))
        assert (pools.tenants("a"), len(pools.tenants("b"))) == (set(), 1)
        assert list(pools.of(SELECTOR)) == ["b"]
        pools.drop_node("a-0")
        assert (list(pools.of(SELECTOR)), pools.tenants("b")) == ([], set())
        pools.put_node(node("a-0", "a"))
        assert len(pools.tenants("a")) == 1
        pools.drop_node("never-seen")


class TestJobs:
    def test_a_slice_is_pinned_to_its_pool_without_affinity(self) -> None:
        plan = World(job(), nodes=node_pool("a")).plan()
        pods = [manifest for manifest in plan.creates if manifest["kind"] == "Pod"]
        assert [pod["spec"]["nodeSelector"] for pod in pods] == [SELECTOR | {POOL: "a"}] * 4
        assert not any("affinity" in pod["spec"] for pod in pods)

    def test_what_fits_nowhere_is_left_to_the_scheduler_and_the_autoscaler(self) -> None:
        slices = {"accelerator": "v5e", "topology": "4x4", "slices": 2}
        the_world = World(job(tpu=slices), nodes=node_pool("a")).settle()
        pinned = {name: pod.spec.node_selector.pool for name, pod in the_world.pods.items()}
        assert set(pinned.values()) == {"a", ""}
        assert {pinned[f"train-0-{i}"] for i in range(4)} == {"a"}

    def test_the_pods_that_a_crash_left_out_follow_the_others(self) -> None:
        the_world = World(job(), nodes=node_pool("b"))
        plan = the_world.plan()
        the_world.carry_out(plan, writes=3, status=False)
        the_world.nodes = node_pool("a") | node_pool("b")
        the_world.settle()
        assert {pod.spec.node_selector.pool for pod in the_world.pods.values()} == {"b"}

    def test_a_users_choice_of_a_pool_stands(self) -> None:
        template = {"spec": {"nodeSelector": {POOL: "b"}}}
        plan = World(job(template=template), nodes=node_pool("a") | node_pool("b")).plan()
        pods = [manifest for manifest in plan.creates if manifest["kind"] == "Pod"]
        assert {pod["spec"]["nodeSelector"][POOL] for pod in pods} == {"b"}
        assert all("affinity" in pod["spec"] for pod in pods)

    def test_a_pool_with_no_room_after_all_is_left(self) -> None:
        the_world = World(job(), nodes=node_pool("a")).settle()
        refused = UNSCHEDULABLE | {"lastTransitionTime": NOW.strftime("%Y-%m-%dT%H:%M:%SZ")}
        wire = [
            msgspec.to_builtins(pod) | {"status": {"conditions": [refused]}}
            for pod in the_world.pods.values()
        ]
        the_world.pods = {pod["metadata"]["name"]: msgspec.convert(pod, Pod) for pod in wire}
        plan = the_world.step()
        assert the_world.job.status.slices[0].attempt == 0
        assert plan.requeue_after == pytest.approx(15)
        the_world.now += timedelta(seconds=15)
        the_world.step()
        assert the_world.condition("Restarting") == "True/NodePoolUnavailable"
        assert the_world.job.status.restarts.total == 0
        the_world.settle()
        assert {(pod.attempt, pod.spec.node_selector.pool) for pod in the_world.pods.values()} == {(1, "")}

    def test_a_slice_comes_back_to_its_pool(self) -> None:
        the_world = World(job(), nodes=node_pool("b")).settle()
        for index in range(4):
            the_world.set_pod(f"train-0-{index}", node=f"b-{index}", **RUNNING)
        the_world.settle()
        the_world.nodes = node_pool("a") | node_pool("b")
        del the_world.pods["train-0-2"]
        the_world.settle()
        assert {(pod.attempt, pod.spec.node_selector.pool) for pod in the_world.pods.values()} == {(1, "b")}

    def test_a_mixed_slice_is_restarted(self) -> None:
        nodes = node_pool("a", hosts=2) | node_pool("b", hosts=2)
        the_world = World(job(), nodes=nodes).settle()
        for index, where in enumerate(["a-0", "a-1", "b-0", "b-1"]):
            the_world.set_pod(f"train-0-{index}", node=where, **RUNNING)
        the_world.step()
        failure = the_world.job.status.last_failure
        assert failure is not None
        assert (failure.cause, failure.pod) == ("PlacementMismatch", "train-0-2")
        assert failure.message == "slice 0 is spread over the node pools a, b"
        assert the_world.job.status.restarts.counted == 0

    def test_shared_slices_may_be_anywhere(self) -> None:
        nodes = node_pool("a", hosts=2) | node_pool("b", hosts=2)
        the_world = World(job(scheduling={"placement": "Shared"}), nodes=nodes).settle()
        for index, where in enumerate(["a-0", "a-1", "b-0", "b-1"]):
            the_world.set_pod(f"train-0-{index}", node=where, **RUNNING)
        assert the_world.settle().job.status.phase == "Running"

    def test_own_slice_ids(self) -> None:
        the_world = World(job(), nodes=node_pool("a")).settle()
        (held,) = the_world.snapshot().pools.tenants("a")
        assert held == Tenant(f"{UID}-0", "default/train")

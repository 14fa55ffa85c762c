"""Node pools are kept for slices until their pods exist: two jobs in one cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.builders import NOW, RUNNING, World, job, node, node_pool, terminated
from tests.unit.core.test_placement import tenant
from tests.unit.core.test_spares import Kube
from tpu_operator.core.jobview import observe
from tpu_operator.core.placement import Tenant, claims

if TYPE_CHECKING:
    from tpu_operator.core.plan import Plan
    from tpu_operator.core.snapshot import JobSnapshot

TWO = {"accelerator": "v5e", "topology": "4x4", "slices": 2}
SCHEDULED = "cloud.google.com/scheduled-maintenance-time"
END = "node.gke.io/machine-termination-datetime"
SINGLE = {"cloud.google.com/gke-tpu-topology": "2x2"}


@dataclass
class Shared(Kube):
    """A job of a cluster in which there is another one: each sees the other's pods and claims."""

    neighbor: Shared | None = None
    claims: dict[str, Tenant] = field(default_factory=dict)

    def snapshot(self) -> JobSnapshot:
        if self.neighbor:
            self.others = list(self.neighbor.pods.values())
        found = super().snapshot()
        for world in filter(None, (self, self.neighbor)):
            found.pools.claim(("TPUJob", "default", world.job.metadata.name), world.claims)
        return found

    def plan(self) -> Plan:
        found = super().plan()
        self.claims = claims(f"default/{self.job.metadata.name}", _pods(found), found.reserved)
        return found


def _pods(plan: Plan) -> list[dict[str, Any]]:
    return [manifest for manifest in plan.creates if manifest["kind"] == "Pod"]


def pinned(plan: Plan) -> set[str]:
    """Node pools that a plan's pods are to go to."""
    selectors = [manifest["spec"]["nodeSelector"] for manifest in _pods(plan)]
    return {s["cloud.google.com/gke-nodepool"] for s in selectors if "cloud.google.com/gke-nodepool" in s}


def shared(name: str, *pools: str, **spec: Any) -> Shared:
    the_world = Shared(job(name, **({"tpu": TWO} | spec)), nodes_version=10**6)
    meta = the_world.job.metadata.model_copy(update={"uid": f"uid-of-{name}"})
    the_world.job = the_world.job.model_copy(update={"metadata": meta})
    for pool in pools:
        the_world.nodes |= node_pool(pool)
    return the_world


def pair(*pools: str, **spec: Any) -> tuple[Shared, Shared]:
    """A job that runs, and one that is to come."""
    one, other = shared("train", *pools, **spec), shared("other", *pools, **spec)
    one.live()
    one.neighbor, other.neighbor = other, one
    return one, other


class TestKept:
    def test_while_an_old_pod_is_slow_to_go(self) -> None:
        one, other = pair("a", "b")
        one.keep_deleted = True
        one.set_pod("train-0-1", "a-1", **terminated(1))
        one.settle()
        one.vanish(*(name for name in one.pods if name != "train-1-3"))
        one.settle()
        assert one.plan().reserved == {"a": "uid-of-train-0", "b": "uid-of-train-1"}
        assert pinned(other.plan()) == set()
        one.vanish()
        assert pinned(one.step()) == {"a", "b"}
        assert one.live().states() == ["Running", "Running"]
        assert one.plan().reserved == {}

    def test_during_a_pause(self) -> None:
        one, other = pair("a", "b", failurePolicy={"maxRestarts": 9})
        for _ in range(2):
            one.set_pod("train-0-1", "a-1", **terminated(1))
            one.settle()
        assert (one.pods, one.plan().requeue_after) == ({}, 2.0)
        assert pinned(other.plan()) == set()
        one.now = NOW + timedelta(seconds=2)
        assert pinned(one.plan()) == {"a", "b"}

    def test_when_all_pods_have_ended_at_once(self) -> None:
        one, other = pair("a", "b")
        for name in one.pods:
            one.set_pod(name, f"{'ab'[int(name[6])]}-{name[-1]}", **terminated(1))
        one.step()
        assert pinned(other.plan()) == set()

    def test_in_the_pool_of_a_spare_that_goes_before_the_slices_old_pods(self) -> None:
        one, other = pair("a", "b", "c", tpu=TWO | {"spareSlices": 1})
        one.keep_deleted = True
        one.nodes["b-2"] = other.nodes["b-2"] = node("b-2", "b", unschedulable=True)
        one.set_pod("train-1-3", "b-3", **terminated(1))
        one.settle()
        assert one.pools()[1] == "c"
        one.vanish(*one.of(2))
        one.settle()
        assert one.plan().reserved == {"a": "uid-of-train-0", "c": "uid-of-train-1"}
        assert pinned(other.plan()) == set()
        one.vanish()
        assert one.live().pools() == {0: "a", 1: "c", 2: ""}

    def test_by_a_job_that_names_its_pool_itself(self) -> None:
        one, other = shared("train", "a"), shared("other", "a", tpu=TWO | {"slices": 1})
        one.job = job(
            tpu=TWO | {"slices": 1, "capacity": {"nodePool": "a"}}, failurePolicy={"maxRestarts": 9}
        )
        one.neighbor, other.neighbor = other, one
        one.live()
        for _ in range(2):
            one.set_pod("train-0-1", "a-1", **terminated(1))
            one.settle()
        assert one.pods == {}
        assert pinned(other.plan()) == set()

    def test_from_the_jobs_own_other_slices(self) -> None:
        one = shared("train", "a", "b", failurePolicy={"restartScope": "Slice"})
        one.live().keep_deleted = True
        for name in one.of(0):
            one.set_pod(name, f"a-{name[-1]}", **terminated(1))
        one.step()
        one.lose("b")
        one.step()
        one.claims = {}  # another operator
        one.settle()
        assert "a" not in {one.pods[name].spec.node_selector.pool for name in one.of(1)}


class TestGivenUp:
    @pytest.mark.parametrize("why", ["suspended", "finished", "unfit", "taken"])
    def test_where_it_is_not_needed_or_of_no_use(self, why: str) -> None:
        one, other = pair("a", "b", failurePolicy={"maxRestarts": 0 if why == "finished" else 9})
        for _ in range(2):
            if one.job.status.phase != "Failed":
                one.set_pod("train-0-1", "a-1", **terminated(1))
                one.settle()
        if why == "suspended":
            one.patch_spec(suspend=True)
        if why == "unfit":
            one.nodes["a-1"] = node("a-1", "a", unschedulable=True)
        if why == "taken":
            one.neighbor, one.others = None, [tenant(at="a-0")]
        reserved = set(one.settle().plan().reserved)
        assert reserved == ({"b"} if why in {"unfit", "taken"} else set())
        if why in {"suspended", "finished"}:
            assert pinned(other.plan()) == {"a", "b"}

    def test_by_a_slice_that_has_succeeded(self) -> None:
        one, _ = pair("a", "b")
        for name in one.of(0):
            one.set_pod(name, f"a-{name[-1]}", **terminated(0))
        assert one.step().reserved == {}
        assert one.settle().plan().reserved == {}

    def test_by_a_slice_that_is_made_elsewhere(self) -> None:
        one, _ = pair("a", "b", "c")
        one.set_pod("train-0-1", "a-1", **terminated(1))
        one.step()
        one.step()
        start = str(int((NOW + timedelta(days=1)).timestamp()))
        one.nodes |= node_pool("a", labels={SCHEDULED: start})
        assert pinned(one.step()) == {"b", "c"}
        assert set(one.claims) == {"b", "c"}


class TestMaintenance:
    def test_two_jobs_do_not_move_for_one_pool(self) -> None:
        spec: dict[str, Any] = {"tpu": TWO | {"slices": 1}, "maintenance": {"onNotice": "Restart"}}
        one, other = pair("a", "b", "c", **spec)
        other.live()
        start = str(int((NOW + timedelta(days=1)).timestamp()))
        for each in (one, other):
            each.nodes |= {n: node(n, n[0], labels={SCHEDULED: start}) for n in each.nodes if n[0] != "c"}
        moved = one.step()
        assert moved.reserved == {"c": "uid-of-train-0"}
        assert one.pools() == {0: "c"}
        assert (other.live().causes(), other.plan().requeue_after) == ((0, 0, {}), 10.0)
        assert one.live().causes() == (1, 0, {"Maintenance": 1})
        for each in (one, other):
            each.nodes |= node_pool("d")
        other.live()
        assert (other.pools(), other.causes()) == ({0: "d"}, (1, 0, {"Maintenance": 1}))

    def test_a_job_whose_new_pool_was_lost_on_the_way_moves_later(self) -> None:
        spec: dict[str, Any] = {"tpu": TWO | {"slices": 1}, "maintenance": {"onNotice": "Restart"}}
        one = shared("train", "a", "b", **spec)
        one.live()
        one.nodes |= node_pool("a", labels={SCHEDULED: str(int((NOW + timedelta(days=1)).timestamp()))})
        one.step()
        one.nodes["b-1"] = node("b-1", "b", unschedulable=True)
        assert one.live().pools() == {0: "a"}
        one.nodes |= node_pool("b")
        assert one.live().pools() == {0: "b"}
        assert one.causes() == (2, 0, {"Maintenance": 2})

    def test_a_slice_whose_notice_is_far_off_does_not_keep_another_from_moving(self) -> None:
        one = shared("train", "a", "b", "c")
        one.live()
        for pool, left in (("a", timedelta(minutes=15)), ("b", timedelta(days=7))):
            one.nodes |= node_pool(pool, labels={SCHEDULED: str(int((NOW + left).timestamp()))})
        one.settle()
        one.now = NOW + timedelta(minutes=10)
        assert one.live().pools() == {0: "c", 1: "b"}
        last = one.job.status.last_failure
        assert last is not None
        assert (last.pod, one.causes()) == ("train-0-0", (1, 0, {"Maintenance": 1}))
        assert "a-0" in str(last.message)

    def test_a_spare_is_for_the_slice_that_has_to_go(self) -> None:
        one = shared("train", "a", "b", "c", tpu=TWO | {"spareSlices": 1})
        one.live()
        for pool, left in (("a", timedelta(days=7)), ("b", timedelta(minutes=15))):
            one.nodes |= node_pool(pool, labels={SCHEDULED: str(int((NOW + left).timestamp()))})
        one.settle()
        one.now = NOW + timedelta(minutes=10)
        one.step()
        assert one.pools() == {0: "a", 1: "c", 2: ""}
        assert one.live().pools() == {0: "a", 1: "c", 2: ""}
        assert (one.causes(), one.events.count("SpareUsed")) == ((1, 0, {"Maintenance": 1}), 1)

    def test_every_decision_looks_as_far_ahead_as_the_job_does(self) -> None:
        spec: dict[str, Any] = {"maintenance": {"leadSeconds": 7200}, "tpu": TWO | {"slices": 1}}
        one = shared("train", "a", "b", **spec)
        end = (NOW + timedelta(hours=3)).isoformat()
        for pool in ("a", "b"):
            one.nodes |= node_pool(pool, annotations={END: end})
        one.live()
        one.now = NOW + timedelta(hours=2)
        assert (one.live().causes(), one.plan().requeue_after) == ((0, 0, {}), 10.0)
        assert observe(one.snapshot(), one.now).ahead == 14400.0
        fresh = shared("train", **spec)
        fresh.nodes = one.nodes | node_pool("c")
        assert fresh.live().pools() == {0: "c"}


class TestSingleHosts:
    def test_they_are_kept_off_nodes_that_end_soon(self) -> None:
        the_world = World(job(tpu={"accelerator": "v5e", "topology": "2x2"}))
        soon = {END: (NOW + timedelta(minutes=30)).isoformat()}
        late = {END: (NOW + timedelta(days=5)).isoformat()}
        for name, ends in (("a-0", soon), ("b-0", late), ("c-0", {})):
            the_world.nodes[name] = node(name, name[0], labels=SINGLE, annotations=ends)
        the_world.nodes["d-0"] = node("d-0", "d", labels=SINGLE | {SCHEDULED: "1900000000"})
        (pod,) = _pods(the_world.plan())
        (term,) = pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        field = {"key": "metadata.name", "operator": "NotIn", "values": ["a-0"]}
        assert term["preference"]["matchFields"] == [field]
        assert term["preference"]["matchExpressions"] == [{"key": SCHEDULED, "operator": "DoesNotExist"}]

    def test_their_spares_too(self) -> None:
        tpu = {"accelerator": "v5e", "topology": "2x2", "spareSlices": 1}
        the_world = World(job(tpu=tpu))
        for name in ("a-0", "b-0", "c-0"):
            ends = {END: (NOW + timedelta(minutes=30)).isoformat()} if name == "b-0" else {}
            the_world.nodes[name] = node(name, "p", labels=SINGLE, annotations=ends)
        the_world.settle()
        the_world.set_pod("train-0-0", "a-0", **RUNNING)
        spare = next(m for plan in (the_world.step(), the_world.step()) for m in _pods(plan))
        (term,) = spare["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert term["preference"]["matchFields"][0]["values"] == ["b-0"]


def test_nothing_is_kept_where_the_scheduler_shares_pools_out() -> None:
    the_world = World(job(scheduling={"placement": "Shared"}), nodes=node_pool("a"))
    the_world.settle()
    for index, name in enumerate(the_world.pods):
        the_world.set_pod(name, f"a-{index}", **RUNNING)
    the_world.settle()
    the_world.set_pod("train-0-0", "a-0", **terminated(1))
    assert [the_world.step().reserved for _ in range(3)] == [{}, {}, {}]

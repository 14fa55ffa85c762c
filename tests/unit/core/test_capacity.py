"""Why the scheduler finds no nodes for a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.builders import RUNNING, STARTING, World, decode_pod, job, node, node_pool
from tpu_operator.api import BlockedReason
from tpu_operator.core import capacity
from tpu_operator.core.pending import Hold
from tpu_operator.core.placement import Demand
from tpu_operator.core.snapshot import Node, Pod

if TYPE_CHECKING:
    from collections.abc import Iterable

ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
OTHERS = "gke-tpu-accelerator=tpu-v5-lite-podslice"
SELECTOR = {ACCELERATOR: "tpu-v5-lite-podslice", "cloud.google.com/gke-tpu-topology": "4x4"}
SAYS = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/9 nodes fit"}

CONTAINERS = [{"name": "main", "resources": {"limits": {"google.com/tpu": "4"}}}]


def pod(name: str = "train-0-0", slice_id: str = "a", **status: Any) -> Pod:
    metadata = {"name": name, "labels": {"tpu-operator.dev/slice-id": slice_id}}
    return decode_pod({"metadata": metadata, "spec": {"containers": CONTAINERS}}, **status)


def waiting(name: str = "train-0-0", slice_id: str = "a") -> Pod:
    """A pod that the scheduler has no node for."""
    return pod(name, slice_id, conditions=[SAYS])


def tenant(slice_id: str, node_name: str, job_name: str) -> Pod:
    """A pod of another job."""
    labels = {"tpu-operator.dev/slice-id": slice_id, "tpu-operator.dev/job": job_name}
    metadata = {"name": f"{slice_id}-on-{node_name}", "namespace": "default", "labels": labels}
    spec = {"nodeName": node_name, "containers": CONTAINERS}
    return decode_pod({"metadata": metadata, "spec": spec}, **RUNNING)


def told(
    pods: Iterable[Pod], nodes: dict[str, Node], others: Iterable[Pod] = (), hosts: int = 4, **spec: Any
) -> Hold:
    """What is said of pods of a job whose slices have so many hosts."""
    by_name = {each.name: each for each in pods}
    the_world = World(job(**spec), nodes=nodes, others=list(others), pods=by_name)
    chips = {"cloud.google.com/gke-accelerator-count": "4"}
    shared = the_world.job.spec.scheduling.placement == "Shared"
    demand = Demand(SELECTOR | chips, [], hosts=hosts, chips=4, shared=shared)
    seen = the_world.snapshot()
    found = capacity.unschedulable(by_name.values(), seen.nodes, seen.pools, demand)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({}, f"no node has {ACCELERATOR}=tpu-v5-lite-podslice"),
        (
            {ACCELERATOR: "tpu-v6e-slice"},
            f"no node has {ACCELERATOR}=tpu-v5-lite-podslice; there are nodes with tpu-v6e-slice",
        ),
        (
            SELECTOR | {"cloud.google.com/gke-tpu-topology": "2x4"},
            f"no node with {OTHERS} has cloud.google.com/gke-tpu-topology=4x4; there are nodes with 2x4",
        ),
    ],
)
def test_the_label_that_no_node_has(labels: dict[str, str], message: str) -> None:
    other = msgspec.convert({"metadata": {"name": "n", "labels": labels}}, Node)
    assert told([waiting()], {"n": other}) == Hold(BlockedReason.NO_MATCHING_NODES, message)


def test_values_that_there_are_instead_are_not_all_named() -> None:
    nodes = {t: msgspec.convert({"metadata": {"name": t, "labels": {ACCELERATOR: t}}}, Node) for t in "abcde"}
    assert told([waiting()], nodes).message.endswith("; there are nodes with a, b, c and 2 more")


@pytest.mark.parametrize("others", [[], [tenant("x-0", "b-0", "other")]])
def test_where_there_is_room_the_scheduler_knows_better(others: list[Pod]) -> None:
    pods = [pod("train-0-1", **STARTING), waiting("train-0-2"), waiting("train-0-3")]
    assert told(pods, node_pool("a") | node_pool("b"), others) == Hold(
        BlockedReason.UNSCHEDULABLE,
        "2 pods wait for nodes; the scheduler says of train-0-2: 0/9 nodes fit",
    )


def test_who_holds_the_node_pools() -> None:
    nodes = node_pool("a") | node_pool("b")
    others = [tenant("x-0", "a-1", "big"), tenant("y-0", "b-0", "other")]
    assert told([waiting()], nodes, others) == Hold(
        BlockedReason.CAPACITY_IN_USE,
        "6 of 8 hosts of the kind are free, 4 in one node pool are needed; "
        "held are a by default/big; b by default/other",
    )


def test_not_all_who_hold_node_pools_are_named() -> None:
    nodes = {name: node for i in range(5) for name, node in node_pool(f"p{i}").items()}
    others = [tenant(f"x-{i}", f"p{i}-0", f"j{i}") for i in range(5)]
    others += [tenant(f"y-{i}", "p0-1", f"k{i}") for i in range(3)]
    assert told([waiting()], nodes, others).message.endswith(
        "held are p0 by default/j0, default/k0, default/k1 and 1 more; p1 by default/j1; p2 by default/j2"
        " and 2 more"
    )


def test_the_pool_that_has_nearly_enough_hosts() -> None:
    nodes = node_pool("a", chips="0") | node_pool("b")
    nodes["b-1"] = node("b-1", "b", unschedulable=True)
    nodes["b-3"] = node("b-3", "b", taints=[{"key": "broken", "effect": "NoSchedule"}])
    assert told([waiting()], nodes) == Hold(
        BlockedReason.UNSCHEDULABLE,
        "a slice needs 4 hosts of one node pool at the same time, and b, the one with the most of them, "
        "has 2 that pods may use: b-1 is cordoned, b-3 has the taint broken",
    )
    message = told([waiting()], node_pool("c", ready="Unknown")).message
    assert message.endswith("c-0 is not ready, c-1 is not ready, c-2 is not ready and 1 more")


def test_hosts_of_no_use_beside_those_held() -> None:
    nodes = node_pool("a") | node_pool("b", ready="Unknown")
    nodes["a-0"] = node("a-0", "a", unschedulable=True)
    assert told([waiting()], nodes, [tenant("x-0", "a-1", "big")]).message == (
        "2 of 8 hosts of the kind are free, 4 in one node pool are needed; held are a by default/big; "
        "a-0 is cordoned, b-0 is not ready, b-1 is not ready and 2 more"
    )


@pytest.mark.parametrize(
    ("slice_id", "message"),
    [
        (
            "a",
            "5 of 8 hosts of the kind are free, 4 in one node pool are needed; held are b by default/big; ",
        ),
        (
            "b",
            "4 of 8 hosts of the kind are free, 4 in one node pool are needed; held are a by default/train; ",
        ),
    ],
)
def test_hosts_that_the_job_has_itself_are_free_for_the_slice_that_has_them(
    slice_id: str, message: str
) -> None:
    nodes = node_pool("a") | {"a-3": node("a-3", "a", unschedulable=True)} | node_pool("b")
    mine, other = tenant(slice_id, "a-0", "train"), [tenant("x-0", f"b-{host}", "big") for host in (0, 1)]
    assert told([mine, waiting("train-0-1", "a")], nodes, other).message.startswith(message)


def test_a_head_holds_no_chips() -> None:
    nodes = node_pool("a", unschedulable=True)
    assert "default/big" not in told([waiting()], nodes, [tenant("", "a-0", "big")]).message


@pytest.mark.parametrize(
    ("hosts", "slices", "placement", "need"),
    [
        (4, 1, "Exclusive", "4 in one node pool are needed"),
        (4, 2, "Exclusive", "4 in each of 2 node pools are needed"),
        (4, 2, "Shared", "8 are needed"),
        (1, 1, "Exclusive", "1 is needed"),
        (1, 3, "Exclusive", "3 are needed"),
    ],
)
def test_what_is_needed(hosts: int, slices: int, placement: str, need: str) -> None:
    pods = [waiting(f"train-{index}-0", f"s-{index}") for index in range(slices)]
    other = [tenant("x-0", "a-0", "big")]
    message = told(pods, node_pool("a"), other, hosts=hosts, scheduling={"placement": placement}).message
    assert message.startswith(f"3 of 4 hosts of the kind are free, {need}; ")


@pytest.mark.parametrize(
    "condition",
    [
        {"type": "PodScheduled", "status": "True"},
        {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"},
        {"type": "Ready", "status": "False", "reason": "Unschedulable"},
    ],
)
def test_pods_that_the_scheduler_has_not_given_up(condition: dict[str, str]) -> None:
    demand = Demand(SELECTOR, [], hosts=4, chips=4)
    seen = World(job()).snapshot()
    found = capacity.unschedulable([pod(conditions=[condition])], seen.nodes, seen.pools, demand)
    assert found is None


def test_what_is_said_of_others_is_said_anew_after_a_while() -> None:
    the_world = World(job(), nodes=node_pool("a"), others=[tenant("x-0", "a-1", "big")]).settle()
    for name in the_world.pods:
        the_world.set_pod(name, node=None, phase="Pending", conditions=[SAYS])
    the_world.settle()
    assert the_world.condition("Blocked") == "True/CapacityInUse"
    assert the_world.plan().requeue_after == capacity.LOOK_AGAIN
    the_world.others = [tenant("y-0", "a-2", "next")]
    the_world.settle()
    assert "default/next" in (the_world.job.status.message or "")

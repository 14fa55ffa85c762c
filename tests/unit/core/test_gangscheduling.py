"""Which slices get PodGroups, and what becomes of these; case 67 of the peers' behaviours."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.builders import RUNNING, UID, World, job, node_pool, terminated
from tpu_operator.core.snapshot import PodGroup

V5E = {"accelerator": "v5e", "topology": "4x4"}


def world(gang: str = "Auto", *, served: bool = True, **spec: Any) -> World:
    scheduling = {"gang": gang} | spec.pop("scheduling", {})
    made = job(scheduling=scheduling, **spec)
    return World(made, pod_groups={} if served else None)


def groups(world: World) -> dict[str, int]:
    """Their counts, by name."""
    found = world.pod_groups or {}
    return {name: group.spec.scheduling_policy.gang.min_count for name, group in found.items()}


def joined(world: World) -> set[str]:
    """PodGroups that pods are in, an empty name for none."""
    return {pod.spec.scheduling_group.pod_group_name for pod in world.pods.values()}


def test_auto_groups_each_slice_that_the_scheduler_places() -> None:
    there = world(tpu=V5E | {"slices": 2}).settle()
    assert groups(there) == {"train-0": 4, "train-1": 4}
    for name, pod in there.pods.items():
        assert name.startswith(pod.spec.scheduling_group.pod_group_name + "-")


def test_auto_groups_no_slice_that_is_pinned_to_a_free_pool() -> None:
    there = world(tpu=V5E | {"slices": 2})
    there.nodes = node_pool("a")
    there.settle()
    assert groups(there) == {"train-1": 4}
    assert there.pods["train-0-0"].spec.node_selector.pool == "a"
    assert joined(there) == {"", "train-1"}


def test_auto_groups_a_slice_in_a_pool_of_the_users_choice_only_without_room() -> None:
    there = world(tpu=V5E | {"capacity": {"nodePool": "a"}})
    there.nodes = node_pool("a")
    there.settle()
    assert joined(there) == {""}
    there = world(tpu=V5E | {"capacity": {"nodePool": "a"}})
    there.nodes = node_pool("a", hosts=3)
    there.settle()
    assert joined(there) == {"train-0"}


@pytest.mark.parametrize(
    ("gang", "served", "tpu"),
    [
        ("Auto", False, V5E),
        ("None", True, V5E),
        ("Auto", True, {"accelerator": "v5e", "topology": "2x2"}),
    ],
    ids=["not served", "not wanted", "one host"],
)
def test_no_groups(gang: str, served: bool, tpu: dict[str, Any]) -> None:
    there = world(gang, served=served, tpu=tpu).settle()
    assert groups(there) == {}
    assert joined(there) == {""}


def test_asked_for_every_slice_has_one() -> None:
    there = world("PodGroup")
    there.nodes = node_pool("a")
    there.settle()
    assert groups(there) == {"train-0": 4}
    assert joined(there) == {"train-0"}


def test_asked_for_and_not_served_is_said_and_nothing_is_made() -> None:
    there = world("PodGroup", served=False).settle()
    assert there.pods == {}
    assert there.condition("Blocked") == "True/CreateRefused"
    pending = there.job.status.pending
    assert pending is not None
    assert "GenericWorkload" in pending.message
    there.pod_groups = {}
    there.settle()
    assert len(there.pods) == 4
    assert there.job.status.pending is None


def test_the_manifest() -> None:
    plan = world(scheduling={"priorityClassName": "high"}).plan()
    (group,) = [m for m in plan.creates if m["kind"] == "PodGroup"]
    assert [m["kind"] for m in plan.creates[:3]] == ["Service", "PodGroup", "Pod"]
    assert group["apiVersion"] == "scheduling.k8s.io/v1beta1"
    assert group["metadata"]["ownerReferences"][0]["uid"] == UID
    assert group["metadata"]["labels"] == {"tpu-operator.dev/job": "train"}
    assert group["spec"] == {
        "schedulingPolicy": {"gang": {"minCount": 4}},
        "disruptionMode": {"all": {}},
        "priorityClassName": "high",
    }


def test_the_template_decides_the_priority() -> None:
    template = {"spec": {"priorityClassName": "mine"}}
    plan = world(template=template, scheduling={"priorityClassName": "high"}).plan()
    (group,) = [m for m in plan.creates if m["kind"] == "PodGroup"]
    (*_, pod) = plan.creates
    assert group["spec"]["priorityClassName"] == pod["spec"]["priorityClassName"] == "mine"


def test_a_restart_keeps_its_group() -> None:
    there = world().run()
    before = there.pod_groups
    there.set_pod("train-0-1", **terminated(1))
    there.settle().run()
    assert there.job.status.restarts.total == 1
    assert there.pod_groups == before


def test_a_suspended_job_has_none() -> None:
    there = world().run()
    there.patch_spec(suspend=True)
    there.settle()
    assert (groups(there), there.pods) == ({}, {})
    there.patch_spec(suspend=False)
    there.run()
    assert groups(there) == {"train-0": 4}


def test_case_67_a_resized_job_has_groups_of_its_new_size() -> None:
    there = world(suspend=True, tpu=V5E | {"slices": 3}).settle()
    there.patch_spec(suspend=False)
    there.settle()
    assert groups(there) == {"train-0": 4, "train-1": 4, "train-2": 4}
    # Before it has started, all of it may change.
    there.patch_spec(tpu={"accelerator": "v5e", "topology": "4x8"})
    there.job = there.job.model_copy(
        update={"status": there.job.status.model_copy(update={"start_time": None})}
    )
    there.settle()
    assert groups(there) == {"train-0": 8}
    assert len(there.pods) == 8


def test_a_slice_that_is_pinned_later_leaves_no_group_behind() -> None:
    there = world().run()
    assert groups(there) == {"train-0": 4}
    there.nodes = node_pool("a")
    there.set_pod("train-0-1", node="a-1", **terminated(1))
    there.settle().run()
    assert joined(there) == {""}
    assert groups(there) == {}


def test_a_slice_that_is_half_made_goes_on_as_it_began() -> None:
    there = world()
    plan = there.plan()
    there.carry_out(plan, writes=4, status=False)
    assert len(there.pods) == 2
    there.nodes = node_pool("a")
    there.settle()
    assert joined(there) == {"train-0"}
    assert len(there.pods) == 4


def test_a_group_that_is_deleted_by_hand_comes_back_while_it_is_used() -> None:
    there = world().settle()
    there.pod_groups = {}
    there.settle()
    assert groups(there) == {"train-0": 4}
    there.all_pods(**RUNNING).settle()
    assert groups(there) == {"train-0": 4}


def test_a_group_of_somebody_else_is_left_alone() -> None:
    there = world("None", suspend=True)
    owner = {"uid": "somebody", "controller": True}
    wire = {"metadata": {"name": "train-0", "ownerReferences": [owner]}}
    stranger = msgspec.convert(wire, PodGroup)
    there.pod_groups = {"train-0": stranger}
    there.settle()
    there.patch_spec(suspend=False)
    there.run()
    assert there.pod_groups == {"train-0": stranger}

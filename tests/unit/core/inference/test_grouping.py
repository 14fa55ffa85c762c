"""Which replicas are scheduled as PodGroups, and what becomes of these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.builders import NOW, RUNNING, node_pool, report, terminated
from tests.inference import UID, InferenceWorld, image, inference, role
from tpu_operator.core.snapshot import PodGroup

if TYPE_CHECKING:
    from collections.abc import Iterable

ONE = [role("decode", 1)]


def world(*, served: bool = True, **spec: Any) -> InferenceWorld:
    there = InferenceWorld(inference(**{"roles": ONE} | spec))
    there.pod_groups = {} if served else None
    return there


def groups(there: InferenceWorld) -> dict[str, int]:
    """Their counts, by name without the revision."""
    found = there.pod_groups or {}
    return {short(name): group.spec.scheduling_policy.gang.min_count for name, group in found.items()}


def short(name: str) -> str:
    inference_name, role_name, _, index = name.split("-")
    return f"{inference_name}-{role_name}-{index}"


def joined(there: InferenceWorld) -> set[str]:
    """PodGroups that pods are in, an empty name for none."""
    return {pod.spec.scheduling_group.pod_group_name for pod in there.pods.values()}


def pools(*names: str, hosts: int = 4) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        found |= node_pool(name, hosts=hosts)
    return found


def fail(there: InferenceWorld, pods: Iterable[str]) -> None:
    for pod in pods:
        there.set_pod(pod, **terminated(1, report(at=NOW), NOW))


def test_each_replica_that_the_scheduler_places_is_one_group() -> None:
    there = world(roles=[role("prefill", 2), role("decode", 1)]).settle()
    assert groups(there) == {"qwen-prefill-0": 4, "qwen-prefill-1": 4, "qwen-decode-0": 4}
    for name, pod in there.pods.items():
        assert name.startswith(pod.spec.scheduling_group.pod_group_name + "-")


def test_a_replica_that_is_pinned_to_a_free_pool_is_none() -> None:
    there = world(roles=[role("decode", 2)])
    there.nodes = pools("a")
    there.settle()
    assert groups(there) == {"qwen-decode-1": 4}
    assert len(joined(there)) == 2


@pytest.mark.parametrize(("hosts", "grouped"), [(4, False), (3, True)])
def test_in_a_pool_of_the_users_choice_only_without_room(hosts: int, grouped: bool) -> None:
    tpu = {"accelerator": "v5e", "topology": "4x4", "capacity": {"nodePool": "a"}}
    there = world(roles=[role("decode", tpu=tpu)])
    there.nodes = pools("a", hosts=hosts)
    there.settle()
    assert bool(groups(there)) is grouped
    assert ("" in joined(there)) is not grouped


@pytest.mark.parametrize(
    ("served", "topology"), [(False, "4x4"), (True, "2x2")], ids=["not served", "one host"]
)
def test_no_groups(served: bool, topology: str) -> None:
    roles = [role("decode", tpu={"accelerator": "v5e", "topology": topology})]
    there = world(served=served, roles=roles).settle()
    assert groups(there) == {}
    assert joined(there) == {""}


def test_the_manifest_comes_before_its_pods() -> None:
    template = {"spec": {"priorityClassName": "mine"}}
    plan = world(roles=[role("decode", template=template)]).plan()
    kinds = [manifest["kind"] for manifest in plan.creates]
    assert kinds == ["ControllerRevision", "Service", "PodGroup", *["Pod"] * 4]
    group, pod = plan.creates[2], plan.creates[3]
    assert group["metadata"]["ownerReferences"][0]["uid"] == UID
    assert group["metadata"]["labels"] == {"tpu-operator.dev/inference": "qwen"}
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 4}}
    assert group["spec"]["priorityClassName"] == pod["spec"]["priorityClassName"] == "mine"
    assert pod["spec"]["schedulingGroup"] == {"podGroupName": group["metadata"]["name"]}


def test_a_restart_keeps_its_group() -> None:
    there = world().run()
    before = dict(there.pod_groups or {})
    fail(there, there.of("decode", host=1))
    there.settle().run()
    assert there.status.restarts == 1
    assert there.pod_groups == before


def test_a_rollout_leaves_the_groups_of_the_new_revision_alone() -> None:
    there = world().run()
    before = set(there.pod_groups or {})
    there.patch_spec(engine=image("2"))
    there.run()
    assert there.status.phase == "Serving"
    assert len(groups(there)) == 1
    assert not before & set(there.pod_groups or {})


def test_scaled_to_zero_it_has_none() -> None:
    there = world().run()
    there.patch_spec(replicas=0)
    there.run()
    assert (groups(there), there.pods) == ({}, {})
    there.patch_spec(replicas=1)
    there.run()
    assert groups(there) == {"qwen-decode-0": 4}


def test_a_replica_that_is_pinned_later_leaves_no_group_behind() -> None:
    there = world().run()
    there.nodes = pools("a")
    fail(there, there.of("decode", host=1))
    there.settle().run()
    assert joined(there) == {""}
    assert groups(there) == {}


def test_a_replica_that_is_half_made_goes_on_as_it_began() -> None:
    there = world()
    there.carry_out(there.plan(), writes=5, status=False)
    assert len(there.pods) == 2
    there.nodes = pools("a")
    there.settle()
    assert len(joined(there)) == 1
    assert "" not in joined(there)
    assert len(there.pods) == 4


def test_a_group_that_is_deleted_by_hand_comes_back_while_it_is_used() -> None:
    there = world().settle()
    there.pod_groups = {}
    there.settle()
    assert groups(there) == {"qwen-decode-0": 4}
    there.all_pods(**RUNNING).settle()
    assert groups(there) == {"qwen-decode-0": 4}


def test_one_that_is_on_its_way_out_is_waited_for() -> None:
    there = world().settle()
    (group,) = (there.pod_groups or {}).values()
    name = group.metadata.name
    wire = msgspec.to_builtins(group)
    wire["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    there.pods.clear()
    there.pod_groups = {name: msgspec.convert(wire, PodGroup)}
    there.settle()
    assert there.pods == {}
    there.pod_groups = {}
    there.settle()
    assert joined(there) == {name}

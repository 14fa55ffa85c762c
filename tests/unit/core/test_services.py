"""The headless Service."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import msgspec
import pytest

from tests.builders import World, job, patched
from tpu_operator.core.objects.services import headless_service, kept
from tpu_operator.core.snapshot import Service

OWNER = {
    "apiVersion": "tpu-operator.dev/v1alpha1",
    "kind": "TPUJob",
    "name": "train",
    "uid": "u-1",
    "controller": True,
    "blockOwnerDeletion": True,
}


def desired() -> dict[str, Any]:
    return headless_service(
        "train", "default", {"tpu-operator.dev/job": "train"}, OWNER, {"launcher": 8090, "more": 1234}
    )


def actual(**changes: Any) -> Service:
    """The Service as the cluster would show it, with some of its fields changed."""
    wire = json.loads(json.dumps(desired()))
    wire["metadata"] |= {"uid": "s-1", "resourceVersion": "7", **changes.pop("metadata", {})}
    wire["spec"] |= {"type": "ClusterIP", "sessionAffinity": "None", "clusterIPs": ["None"], **changes}
    return msgspec.json.decode(json.dumps(wire), type=Service)


def test_kubernetes_accepts_it() -> None:
    kubernetes_validate.validate(desired(), "1.37", strict=True)


def test_case_3_it_is_headless_and_publishes_pods_that_are_not_ready() -> None:
    spec = desired()["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    assert spec["selector"] == {"tpu-operator.dev/job": "train"}


def test_it_goes_with_its_job() -> None:
    assert desired()["metadata"]["ownerReferences"] == [OWNER]


def test_what_the_cluster_adds_is_no_difference() -> None:
    assert kept(desired(), {"train": actual()}) == ((), ())
    more = {"labels": {"tpu-operator.dev/job": "train", "team": "a"}}
    assert kept(desired(), {"train": actual(metadata=more)}) == ((), ())


@pytest.mark.parametrize(
    "changes",
    [
        {"selector": {"app": "other"}},
        {"selector": {}},
        {"selector": {"tpu-operator.dev/job": "train", "team": "a"}},
        {"publishNotReadyAddresses": False},
        {"clusterIP": "10.0.0.1"},
        {"ports": []},
        {"ports": [{"name": "launcher", "port": 8090}, {"name": "more", "port": 1}]},
        {"metadata": {"labels": {}}},
    ],
)
def test_a_difference_that_matters_is_put_right(changes: dict[str, Any]) -> None:
    (patch,), creates = kept(desired(), {"train": actual(**changes)})
    assert (patch.kind, patch.name, patch.version, patch.subresource, creates) == (
        "Service",
        "train",
        "7",
        "",
        (),
    )
    assert kept(desired(), {"train": patched(actual(**changes), patch.change)}) == ((), ())


@pytest.mark.parametrize("owners", [[], [OWNER | {"uid": "u-2"}]])
def test_what_belongs_to_somebody_else_is_no_service_of_ours(owners: list[dict[str, Any]]) -> None:
    """The API server refuses to create ours, which is told."""
    found = {"train": actual(metadata={"ownerReferences": owners})}
    assert kept(desired(), found) == ((), (desired(),))


def test_case_4_only_the_service_is_made_again() -> None:
    the_world = World(job()).run()
    del the_world.services["train"]
    plan = the_world.plan()
    assert [manifest["kind"] for manifest in plan.creates] == ["Service"]
    assert (plan.applies, plan.deletes, plan.status) == ((), (), None)


def test_a_service_of_a_namesake_is_not_taken_over() -> None:
    """The API server refuses to create ours beside it, which is told; it is not applied over the other."""
    the_world = World(job()).run()
    the_world.services["train"] = actual(metadata={"ownerReferences": [OWNER | {"uid": "somebody else"}]})
    plan = the_world.plan()
    assert [manifest["kind"] for manifest in plan.creates] == ["Service"]
    assert plan.applies == ()

"""Routing objects on a real API server, by the operator: made, put right, removed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.docs import ROOT, yaml_blocks
from tests.gateway import picker
from tests.gateway.picker import POOLS, ROUTES
from tests.kube import POD, SERVICE, wait_for
from tests.roles import FOUR_HOSTS, role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hack.devcluster import Cluster
    from tests.kube import Kube, Object

pytestmark = pytest.mark.usefixtures("operator")
INFERENCE: Final = ("tpu-operator.dev/v1alpha1", "TPUInference")
DEPLOYMENT: Final = ("apps/v1", "Deployment")
ACCOUNT: Final = ("v1", "ServiceAccount")
BINDING: Final = ("rbac.authorization.k8s.io/v1", "RoleBinding")
ROUTING: Final[Object] = {
    "inferencePool": {},
    "httpRoute": {"parentRefs": [{"name": "gateway"}], "hostnames": ["qwen.example"]},
    "endpointPicker": {"image": "example/picker:1"},
}
MADE: Final = [
    (POOLS, "qwen"),
    (ROUTES, "qwen"),
    (DEPLOYMENT, "qwen-epp"),
    (SERVICE, "qwen-epp"),
    (ACCOUNT, "qwen-epp"),
    (BINDING, "qwen-epp"),
]


class Model:
    """A TPUInference of one role, and its routing."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self.kube, self.namespace = kube, namespace

    def create(self, name: str = "qwen", routing: Object = ROUTING) -> None:
        """Make it."""
        spec: Object = {
            "model": {"name": "test/model"},
            "engine": {"type": "vllm", "image": "example/vllm:1"},
            "roles": [role("serve", "prefill-decode", FOUR_HOSTS | {"accelerator": "v5e"})],
            "routing": routing,
        }
        self.kube.create(INFERENCE, {"metadata": {"name": name}, "spec": spec}, self.namespace)

    def get(self, kind: tuple[str, str], name: str) -> Object | None:
        """One of its objects."""
        return self.kube.get(kind, name, self.namespace)

    def change(self, routing: Any) -> None:
        """Edit `spec.routing`."""
        self.kube.patch(INFERENCE, "qwen", self.namespace, {"spec": {"routing": routing}})

    def degraded(self) -> str:
        """Why it is degraded; empty if it is not."""
        found = (self.get(INFERENCE, "qwen") or {}).get("status", {}).get("conditions", ())
        return next((c["message"] for c in found if c["type"] == "Degraded" and c["status"] == "True"), "")

    def blocked(self) -> str:
        """What blocks it; empty if nothing does."""
        found = (self.get(INFERENCE, "qwen") or {}).get("status", {}).get("conditions", ())
        return next((c["message"] for c in found if c["type"] == "Blocked" and c["status"] == "True"), "")

    def wait_made(self) -> None:
        """Wait until all objects are there."""
        wait_for(lambda: all(self.get(kind, name) for kind, name in MADE), f"{self.namespace}'s routing")


@pytest.fixture
def model(kube: Kube, namespace: str) -> Iterator[Model]:
    """A TPUInference to be."""
    yield Model(kube, namespace)
    kube.delete(INFERENCE, "qwen", namespace)


def test_kinds_that_are_not_served_are_named_and_found_when_they_come(
    model: Model, control_plane: Cluster
) -> None:
    picker.uninstall(control_plane)
    model.create()
    text = wait_for(model.degraded, "it to say what is missing")
    assert "does not serve InferencePool" in text
    assert "install the Gateway API inference extension" in text
    assert "does not serve HTTPRoute" in text
    assert model.get(DEPLOYMENT, "qwen-epp") is None
    picker.install(control_plane)
    model.wait_made()
    wait_for(lambda: not model.degraded(), "it to be content")


@pytest.mark.usefixtures("kinds")
def test_what_is_changed_or_deleted_by_hand_is_put_right(model: Model) -> None:
    model.create()
    model.wait_made()
    kube, namespace = model.kube, model.namespace
    kube.patch(POOLS, "qwen", namespace, {"spec": {"targetPorts": [{"number": 1}]}})
    kube.patch(DEPLOYMENT, "qwen-epp", namespace, {"spec": {"replicas": 0}})
    kube.delete(SERVICE, "qwen-epp", namespace)

    def right() -> bool:
        pool, deployment = model.get(POOLS, "qwen"), model.get(DEPLOYMENT, "qwen-epp")
        assert pool
        assert deployment
        numbers = [port["number"] for port in pool["spec"]["targetPorts"]]
        return numbers == [8000] and deployment["spec"]["replicas"] == 1

    wait_for(right, "pool and picker to be as they were")
    wait_for(lambda: model.get(SERVICE, "qwen-epp"), "the Service to be back")


@pytest.mark.usefixtures("kinds")
def test_what_goes_from_the_spec_goes_from_the_cluster(model: Model) -> None:
    model.create()
    model.wait_made()
    model.change({"httpRoute": {"hostnames": None}})

    def without_names() -> bool:
        route = model.get(ROUTES, "qwen")
        return route is not None and "hostnames" not in route["spec"]

    wait_for(without_names, "the route to be for all names")
    model.change({"httpRoute": None, "endpointPicker": None})
    gone = [each for each in MADE if each != (POOLS, "qwen")]
    wait_for(lambda: not any(model.get(kind, name) for kind, name in gone), "the rest to go")
    assert model.get(POOLS, "qwen")


@pytest.mark.usefixtures("kinds")
def test_a_pool_of_somebody_else_is_left_alone_and_named(model: Model) -> None:
    theirs: Object = {
        "metadata": {"name": "qwen"},
        "spec": {
            "selector": {"matchLabels": {"app": "theirs"}},
            "targetPorts": [{"number": 80}],
            "endpointPickerRef": {"name": "theirs", "port": {"number": 9002}},
        },
    }
    model.kube.create(POOLS, theirs, model.namespace)
    model.create()
    wait_for(lambda: "InferencePool qwen belongs to something else" in model.degraded(), "the clash")
    model.change(None)
    wait_for(lambda: not model.degraded(), "it to be content")
    pool = model.get(POOLS, "qwen")
    assert pool
    assert pool["spec"]["selector"] == {"matchLabels": {"app": "theirs"}}
    assert "ownerReferences" not in pool["metadata"]


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize("kind", [ACCOUNT, SERVICE])
def test_what_has_the_name_of_a_picker_is_not_taken_over(model: Model, kind: tuple[str, str]) -> None:
    """It lacks the label by which objects of pickers are seen."""
    spec = {"spec": {"ports": [{"port": 80}]}} if kind == SERVICE else {}
    theirs = model.kube.create(kind, {"metadata": {"name": "qwen-epp"}} | spec, model.namespace)
    model.create()
    text = wait_for(model.blocked, "it to say so")
    assert f"{kind[1]} {model.namespace}/qwen-epp exists and belongs to something else" in text
    found = model.get(kind, "qwen-epp") or {}
    assert "ownerReferences" not in found["metadata"]
    assert found.get("spec") == theirs.get("spec")
    model.kube.delete(kind, "qwen-epp", model.namespace)
    model.wait_made()
    wait_for(lambda: not model.blocked(), "it to be content")


@pytest.mark.usefixtures("kinds")
def test_a_part_that_has_lost_its_label_gets_it_back(model: Model) -> None:
    model.create()
    model.wait_made()
    label = "tpu-operator.dev/inference"
    before = (model.get(ACCOUNT, "qwen-epp") or {})["metadata"]
    model.kube.patch(ACCOUNT, "qwen-epp", model.namespace, {"metadata": {"labels": {label: None}}})
    wait_for(lambda: label in (model.get(ACCOUNT, "qwen-epp") or {})["metadata"]["labels"], "the label")
    assert (model.get(ACCOUNT, "qwen-epp") or {})["metadata"]["uid"] == before["uid"]


@pytest.mark.usefixtures("kinds")
def test_a_route_of_the_users_splits_by_weight_between_two_of_them(
    model: Model, request: pytest.FixtureRequest
) -> None:
    """As docs/rollout.md shows."""
    page = ROOT / "docs" / "rollout.md"
    (shown,) = (body for _, body in yaml_blocks(page) if body.get("kind") == "HTTPRoute")
    names = [each["name"] for each in shown["spec"]["rules"][0]["backendRefs"]]
    kube, namespace = model.kube, model.namespace
    for name in names:
        model.create(name, {key: value for key, value in ROUTING.items() if key != "httpRoute"})
        request.addfinalizer(partial(kube.delete, INFERENCE, name, namespace))
    kube.create(ROUTES, shown, namespace)
    for name in names:
        wait_for(partial(alone_behind, model, name), f"{name}, and nothing else, behind its pool")
        assert model.get(DEPLOYMENT, f"{name}-epp")
        assert model.get(ROUTES, name) is None


def alone_behind(model: Model, name: str) -> bool:
    """Whether the pods that a pool selects are host 0 of a TPUInference, and no others."""
    pool = model.get(POOLS, name)
    if pool is None:
        return False
    labels = ",".join(f"{key}={value}" for key, value in pool["spec"]["selector"]["matchLabels"].items())
    found = {pod["metadata"]["name"] for pod in model.kube.list(POD, model.namespace, labels)}
    mine = f"tpu-operator.dev/inference={name},tpu-operator.dev/host=0"
    return bool(found) and found == {
        pod["metadata"]["name"] for pod in model.kube.list(POD, model.namespace, mine)
    }

"""Which routing objects there should be, and what is done about it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import kubernetes_validate  # type: ignore[import-untyped]
import msgspec
import pytest

from tests.roles import IMAGES, UID, inference, role
from tpu_operator.core.inference.routing import KINDS, RoutingObject, desired, plan_routing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpu_operator.api import TPUInference
    from tpu_operator.core.inference.routing import RoutingPlan
    from tpu_operator.core.plan import Manifest

OWNER = {
    "apiVersion": "tpu-operator.dev/v1alpha1",
    "kind": "TPUInference",
    "name": "qwen",
    "uid": UID,
    "controller": True,
    "blockOwnerDeletion": True,
}
ALL: dict[str, Any] = {
    "inferencePool": {},
    "httpRoute": {"parentRefs": [{"name": "gateway"}], "hostnames": ["qwen.example"]},
    "endpointPicker": {},
}
FOREIGN = {"InferencePool", "HTTPRoute"}


def pair(routing: dict[str, Any] | None = None, **spec: Any) -> TPUInference:
    return inference(role("prefill"), role("decode"), routing=ALL if routing is None else routing, **spec)


def objects(of: TPUInference | None = None) -> dict[str, Manifest]:
    return {manifest["kind"]: manifest for manifest in desired(of or pair(), OWNER, IMAGES)}


def seen(manifests: Iterable[Manifest], **metadata: Any) -> dict[str, dict[str, RoutingObject]]:
    """Objects as the cluster shows them once they are applied."""
    found: dict[str, dict[str, RoutingObject]] = {kind: {} for kind in KINDS}
    for manifest in manifests:
        wire = json.loads(json.dumps(manifest))
        wire["metadata"] |= {"uid": f"uid-{wire['kind']}", "resourceVersion": "7", **metadata}
        found[wire["kind"]][wire["metadata"]["name"]] = msgspec.json.decode(
            json.dumps(wire), type=RoutingObject
        )
    return found


def plan(of: TPUInference, found: dict[str, dict[str, RoutingObject]]) -> RoutingPlan:
    return plan_routing(of, OWNER, IMAGES, found)


def applied(of: TPUInference) -> tuple[Manifest, ...]:
    return plan(of, seen(())).applies


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in FOREIGN])
def test_kubernetes_accepts_what_is_its_own(kind: str) -> None:
    kubernetes_validate.validate(objects()[kind], "1.37", strict=True)


def test_without_a_field_there_is_nothing() -> None:
    assert plan(pair({}), seen(())).applies == ()


def test_each_part_is_made_with_its_field_alone() -> None:
    assert set(objects(pair({"inferencePool": {}}))) == {"InferencePool"}
    assert set(objects(pair({"endpointPicker": {}}))) == set(KINDS) - FOREIGN
    assert set(objects(pair())) == set(KINDS)


class TestPool:
    def test_it_has_host_0_of_every_replica_and_nothing_else(self) -> None:
        spec = objects()["InferencePool"]["spec"]
        assert spec["selector"]["matchLabels"] == {
            "tpu-operator.dev/inference": "qwen",
            "llm-d.ai/inference-serving": "true",
        }

    def test_requests_go_to_the_port_of_the_spec_and_to_the_picker_first(self) -> None:
        spec = objects(pair(engine={"port": 9000}))["InferencePool"]["spec"]
        assert spec["targetPorts"] == [{"number": 9000}]
        assert spec["endpointPickerRef"] == {
            "kind": "Service",
            "name": "qwen-epp",
            "port": {"number": 9002},
            "failureMode": "FailClose",
        }

    def test_a_picker_of_the_users_has_the_name_that_ours_would_have(self) -> None:
        reference = objects(pair({"inferencePool": {}}))["InferencePool"]["spec"]["endpointPickerRef"]
        assert (reference["name"], reference["port"]) == ("qwen-epp", {"number": 9002})

    def test_the_failure_mode_can_be_chosen(self) -> None:
        routing = ALL | {"inferencePool": {"failureMode": "FailOpen"}}
        assert (
            objects(pair(routing))["InferencePool"]["spec"]["endpointPickerRef"]["failureMode"] == "FailOpen"
        )


class TestRoute:
    def test_streams_have_no_time_limit(self) -> None:
        (rule,) = objects()["HTTPRoute"]["spec"]["rules"]
        assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}

    def test_it_leads_from_the_gateways_to_the_pool(self) -> None:
        spec = objects()["HTTPRoute"]["spec"]
        assert spec["parentRefs"] == [{"name": "gateway"}]
        assert spec["hostnames"] == ["qwen.example"]
        assert spec["rules"][0]["backendRefs"] == [
            {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "qwen"}
        ]


class TestPicker:
    def config(self, of: TPUInference) -> dict[str, Any]:
        spec = objects(of)["Deployment"]["spec"]["template"]["spec"]
        text = next(arg for arg in spec["containers"][0]["args"] if arg.startswith("--config-text="))
        loaded: dict[str, Any] = json.loads(text.removeprefix("--config-text="))
        return loaded

    def gate(self, of: TPUInference) -> dict[str, Any]:
        plugins = self.config(of)["plugins"]
        found: dict[str, Any] = next(
            p["parameters"] for p in plugins if p["type"] == "disaggregatedset-rollout-screener"
        )
        return found

    def test_case_pc06_and_pc07_requests_stay_in_one_revision_that_has_every_role(self) -> None:
        gate = self.gate(pair())
        assert gate["revisionGating"] == {
            "mode": "max-role",
            "revisionLabelKey": "tpu-operator.dev/revision",
            "roleLabelKey": "llm-d.ai/role",
            "requireRoles": {"values": ["decode", "prefill"]},
        }
        assert gate["scope"]["labelSelector"] == (
            "tpu-operator.dev/inference=qwen,llm-d.ai/inference-serving=true"
        )

    def test_prefill_and_decode_are_chosen_apart(self) -> None:
        profiles = self.config(pair())["schedulingProfiles"]
        assert [profile["name"] for profile in profiles] == ["prefill", "decode"]
        assert [profile["plugins"][0] for profile in profiles] == [
            {"pluginRef": "prefill-filter"},
            {"pluginRef": "decode-filter"},
        ]

    def test_a_role_that_does_both_needs_one_profile(self) -> None:
        config = self.config(inference(routing=ALL))
        assert [profile["name"] for profile in config["schedulingProfiles"]] == ["default"]
        assert {"type": "single-profile-handler"} in config["plugins"]

    def test_every_plugin_that_a_profile_names_is_there(self) -> None:
        for of in (pair(), inference(routing=ALL)):
            config = self.config(of)
            there = {plugin["type"] for plugin in config["plugins"]}
            named = {p["pluginRef"] for each in config["schedulingProfiles"] for p in each["plugins"]}
            assert named <= there

    def test_a_configuration_of_the_user_is_taken_as_it_is(self) -> None:
        own = objects(pair(ALL | {"endpointPicker": {"config": "plugins: []\n"}}))
        container = own["Deployment"]["spec"]["template"]["spec"]["containers"][0]
        assert "--config-text=plugins: []\n" in container["args"]

    def test_it_knows_its_pods_by_their_pool_or_else_by_their_labels(self) -> None:
        def args(routing: dict[str, Any]) -> list[str]:
            spec = objects(pair(routing))["Deployment"]["spec"]["template"]["spec"]
            found: list[str] = spec["containers"][0]["args"]
            return found

        assert {"--pool-name=qwen", "--pool-namespace=default"} <= set(args(ALL))
        assert "--endpoint-target-ports=8000" in args({"endpointPicker": {}})
        assert args({"endpointPicker": {"args": ["--v=4"]}})[-1] == "--v=4"

    def test_its_pods_are_no_pods_of_engines(self) -> None:
        template = objects()["Deployment"]["spec"]["template"]
        assert template["metadata"]["labels"] == {"tpu-operator.dev/endpoint-picker": "qwen"}
        assert objects()["Service"]["spec"]["selector"] == template["metadata"]["labels"]

    def test_it_goes_on_until_the_last_stream_through_it_is_over(self) -> None:
        spec = objects()["Deployment"]["spec"]["template"]["spec"]
        assert spec["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 15}}}
        assert spec["terminationGracePeriodSeconds"] > 75

    def test_several_of_them_elect_one(self) -> None:
        made = objects(pair(ALL | {"endpointPicker": {"replicas": 2}}))
        container = made["Deployment"]["spec"]["template"]["spec"]["containers"][0]
        assert "--ha-enable-leader-election" in container["args"]
        assert container["readinessProbe"]["grpc"]["service"] == "readiness"

    def test_it_has_the_rights_of_all_pickers_in_its_namespace(self) -> None:
        binding = objects()["RoleBinding"]
        assert binding["roleRef"]["kind"] == "ClusterRole"
        assert binding["roleRef"]["name"] == "tpu-operator-endpoint-picker"
        subjects = [{"kind": "ServiceAccount", "name": "qwen-epp", "namespace": "default"}]
        assert binding["subjects"] == subjects


class TestPlan:
    def test_what_is_there_is_left_alone(self) -> None:
        found = seen(applied(pair()))
        done = plan(pair(), found)
        assert (done.applies, done.deletes, done.missing, done.clashes) == ((), (), (), ())

    def test_what_the_cluster_adds_is_no_difference(self) -> None:
        manifests = json.loads(json.dumps(applied(pair())))
        for manifest in manifests:
            if manifest["kind"] == "Deployment":
                manifest["spec"] |= {"progressDeadlineSeconds": 600}
                manifest["spec"]["template"]["spec"]["containers"][0] |= {"imagePullPolicy": "Always"}
        assert plan(pair(), seen(manifests)).applies == ()

    @pytest.mark.parametrize(
        ("kind", "path", "value"),
        [
            ("InferencePool", ("spec", "selector"), {"matchLabels": {"a": "b"}}),
            ("HTTPRoute", ("spec", "rules"), []),
            ("RoleBinding", ("subjects",), []),
            ("Deployment", ("spec", "replicas"), 0),
            ("Service", ("spec", "selector"), {}),
        ],
    )
    def test_what_is_changed_by_hand_is_put_right(self, kind: str, path: tuple[str, ...], value: Any) -> None:
        manifests = json.loads(json.dumps(applied(pair())))
        changed = next(manifest for manifest in manifests if manifest["kind"] == kind)
        for key in path[:-1]:
            changed = changed[key]
        changed[path[-1]] = value
        assert [manifest["kind"] for manifest in plan(pair(), seen(manifests)).applies] == [kind]

    def test_a_value_that_goes_from_the_spec_goes_from_the_object(self) -> None:
        routing = ALL | {"httpRoute": {"parentRefs": [{"name": "gateway"}]}}
        (manifest,) = plan(pair(routing), seen(applied(pair()))).applies
        assert manifest["kind"] == "HTTPRoute"
        assert "hostnames" not in manifest["spec"]

    def test_a_part_whose_field_goes_is_removed_as_it_was_seen(self) -> None:
        done = plan(pair({"inferencePool": {}}), seen(applied(pair())))
        assert [delete.kind for delete in done.deletes] == [
            "HTTPRoute",
            "Deployment",
            "Service",
            "RoleBinding",
            "ServiceAccount",
        ]
        assert done.deletes[0].uid == "uid-HTTPRoute"
        assert done.applies == ()

    def test_what_goes_already_is_neither_deleted_nor_written(self) -> None:
        going = seen(applied(pair()), deletionTimestamp="2026-11-30T12:00:00Z")
        assert plan(pair({}), going).deletes == ()
        assert plan(pair(), going).applies == ()

    def test_objects_of_others_stay_as_they_are_and_are_named(self) -> None:
        theirs = seen(applied(pair()), ownerReferences=[{"uid": "other", "controller": True}])
        done = plan(pair(), theirs)
        assert done.applies == ()
        assert any(text.startswith("InferencePool qwen belongs to something else") for text in done.clashes)
        assert plan(pair({}), theirs).deletes == ()

    def test_other_objects_of_the_inference_are_not_routings(self) -> None:
        found = seen(applied(pair({})))
        found["Service"]["qwen"] = RoutingObject(
            next(iter(seen(applied(pair()))["Service"].values())).metadata
        )
        assert plan(pair({}), found).deletes == ()

    def test_kinds_that_the_cluster_does_not_serve_are_told_with_what_to_install(self) -> None:
        found = {kind: items for kind, items in seen(()).items() if kind not in FOREIGN}
        done = plan(pair(), found)
        pool, route = done.missing
        assert pool == (
            "spec.routing.inferencePool: the cluster does not serve InferencePool of "
            "inference.networking.k8s.io/v1: install the Gateway API inference extension"
        )
        assert route == (
            "spec.routing.httpRoute: the cluster does not serve HTTPRoute of "
            "gateway.networking.k8s.io/v1: install the Gateway API"
        )

    def test_a_picker_without_its_pool_is_not_started(self) -> None:
        found = {kind: items for kind, items in seen(()).items() if kind != "InferencePool"}
        assert [manifest["kind"] for manifest in plan(pair(), found).applies] == ["HTTPRoute"]

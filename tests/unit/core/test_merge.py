"""A user's template over our pods."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tpu_operator.core.objects.merge import merge

MAIN = {"name": "main", "image": "ours", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}


def spec(**fields: Any) -> dict[str, Any]:
    return {"spec": fields}


@pytest.mark.parametrize(
    ("base", "over", "merged"),
    [
        ({}, {"a": 1}, {"a": 1}),
        ({"a": 1}, {}, {"a": 1}),
        ({"a": 1}, {"a": 2}, {"a": 2}),
        ({"a": {"b": 1, "c": 1}}, {"a": {"b": 2}}, {"a": {"b": 2, "c": 1}}),
        ({"a": {"b": 1}}, {"a": None}, {}),
        ({"a": {"b": 1}}, {"a": {"b": None}}, {"a": {}}),
        ({"a": 1}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": [1]}, {"a": [2]}, {"a": [2]}),
        ({"a": False}, {"a": True}, {"a": True}),
        ({"a": True}, {"a": False}, {"a": False}),
        ({"a": "x"}, {"a": ""}, {"a": ""}),
    ],
)
def test_fields(base: Any, over: Any, merged: Any) -> None:
    assert merge(base, over) == merged


class TestNamedLists:
    def test_a_container_is_merged_with_its_namesake_and_stays_in_its_place(self) -> None:
        over = [{"name": "sidecar"}, {"name": "main", "tty": True}]
        merged = merge(spec(containers=[MAIN]), spec(containers=over))
        assert merged["spec"]["containers"] == [MAIN | {"tty": True}, {"name": "sidecar"}]

    def test_variables_keep_their_order_new_ones_come_last(self) -> None:
        """Since a value may refer to the variables before it."""
        over = [{"name": "C", "value": "3"}, {"name": "A", "value": "9"}]
        merged = merge(MAIN, {"env": over})
        assert [(e["name"], e["value"]) for e in merged["env"]] == [("A", "9"), ("B", "2"), ("C", "3")]

    def test_mounts_go_by_path(self) -> None:
        base = {"volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}
        over = {"volumeMounts": [{"name": "disk", "mountPath": "/tmp"}, {"name": "disk", "mountPath": "/x"}]}
        assert merge(base, over)["volumeMounts"] == over["volumeMounts"]

    def test_volumes_go_by_name(self) -> None:
        base = {"volumes": [{"name": "dshm", "emptyDir": {"medium": "Memory"}}]}
        over = {"volumes": [{"name": "dshm", "emptyDir": {"sizeLimit": "1Gi"}}]}
        assert merge(base, over)["volumes"] == [
            {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
        ]

    def test_ports_go_by_number_and_protocol(self) -> None:
        base = {"ports": [{"name": "launcher", "containerPort": 8090, "protocol": "TCP"}]}
        over = [
            {"name": "dns", "containerPort": 53, "protocol": "UDP"},
            {"name": "dns-tcp", "containerPort": 53, "protocol": "TCP"},
            {"name": "mine", "containerPort": 8090},
        ]
        merged = merge(base, {"ports": over})["ports"]
        assert [(p["name"], p["containerPort"], p.get("protocol")) for p in merged] == [
            ("mine", 8090, "TCP"),
            ("dns", 53, "UDP"),
            ("dns-tcp", 53, "TCP"),
        ]

    def test_an_item_without_its_name_is_left_for_the_api_server_to_refuse(self) -> None:
        assert merge({"env": [{"name": "A"}]}, {"env": [{"value": "1"}]})["env"] == [
            {"name": "A"},
            {"value": "1"},
        ]

    def test_both_of_two_namesakes_of_the_user_are_kept(self) -> None:
        over = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
        assert merge({"env": []}, {"env": over})["env"] == over


class TestAddedLists:
    def test_tolerations_are_added_once(self) -> None:
        tpu, mine = {"key": "google.com/tpu"}, {"key": "team"}
        assert merge({"tolerations": [tpu]}, {"tolerations": [mine, tpu]})["tolerations"] == [tpu, mine]

    def test_terms_between_pods_are_added_to_those_that_keep_the_slice_together(self) -> None:
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        ours, mine = {"topologyKey": "pool"}, {"topologyKey": "zone"}
        base = {"affinity": {"podAffinity": {required: [ours]}}}
        over = {"affinity": {"podAffinity": {required: [mine]}, "nodeAffinity": {required: {"x": 1}}}}
        affinity = merge(base, over)["affinity"]
        assert affinity["podAffinity"][required] == [ours, mine]
        assert affinity["nodeAffinity"] == {required: {"x": 1}}

    def test_case_63_merging_twice_changes_nothing(self) -> None:
        over = {
            "tolerations": [{"key": "team"}],
            "affinity": {
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
            },
            "containers": [{"name": "main", "env": [{"name": "C", "value": "3"}]}],
        }
        base = {"tolerations": [{"key": "google.com/tpu"}], "containers": [MAIN]}
        once = merge(base, over)
        assert merge(once, over) == once


def test_neither_side_is_changed() -> None:
    base = spec(containers=[MAIN], tolerations=[{"key": "a"}], nodeSelector={"x": "1"})
    over = spec(containers=[{"name": "main", "env": [{"name": "A", "value": "9"}]}], nodeSelector={"x": None})
    before = copy.deepcopy((base, over))
    merge(base, over)
    assert (base, over) == before

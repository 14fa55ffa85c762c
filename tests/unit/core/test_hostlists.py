"""Lists of hosts that are too long to be in every pod."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.builders import UID, World, job
from tpu_operator.core.objects import hostlists

LARGE = {"accelerator": "v5p", "topology": "8x8x16"}
"""256 hosts of 4 chips."""


def created(**spec: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """ConfigMaps and pods that a job comes down to."""
    creates = World(job(**spec)).plan().creates
    return (
        [m for m in creates if m["kind"] == "ConfigMap"],
        [m for m in creates if m["kind"] == "Pod"],
    )


def environment(
    pod: dict[str, Any], config_maps: list[dict[str, Any]], container: str = "main"
) -> dict[str, str]:
    """What a container's processes will see."""
    data = {m["metadata"]["name"]: m["data"] for m in config_maps}
    spec = pod["spec"]
    every = {c["name"]: c for c in (*spec["containers"], *spec.get("initContainers", ()))}
    found = {}
    for variable in every[container]["env"]:
        if "valueFrom" in variable:
            reference = variable["valueFrom"]["configMapKeyRef"]
            found[variable["name"]] = data[reference["name"]][reference["key"]]
        else:
            found[variable["name"]] = variable["value"]
    return found


def test_small_slices_carry_their_lists_themselves() -> None:
    config_maps, pods = created(tpu={"accelerator": "v5e", "topology": "8x16"})
    assert config_maps == []
    assert len(environment(pods[0], [])["TPU_WORKER_HOSTNAMES"].split(",")) == 32


def test_large_ones_refer_to_a_config_map_of_their_slice() -> None:
    config_maps, pods = created(tpu=LARGE | {"slices": 2})
    assert [m["metadata"]["name"].rpartition("-")[0] for m in config_maps] == [
        "train-0-hosts",
        "train-1-hosts",
    ]
    assert all(m["metadata"]["ownerReferences"][0]["uid"] == UID for m in config_maps)
    assert all(m["immutable"] for m in config_maps)
    assert max(len(json.dumps(pod)) for pod in pods) < 6000
    last = environment(pods[-1], config_maps)
    assert last["TPU_WORKER_HOSTNAMES"].split(",")[255] == "train-1-255.train"
    assert len(last["TPU_PROCESS_ADDRESSES"].split(",")) == 1024
    assert last["TORCH_TPU_SLICEBUILDER_ADDRESSES"].startswith("train-1-0.train:8070,")
    assert last["TPU_WORKER_ID"] == "255"


def test_they_come_before_the_pods() -> None:
    kinds = [m["kind"] for m in World(job(tpu=LARGE)).plan().creates]
    assert kinds[:3] == ["Service", "ConfigMap", "Pod"]


def test_containers_that_differ_in_a_list() -> None:
    chips = {"resources": {"limits": {"google.com/tpu": "4"}}}
    init = {"name": "warm-up", "image": "x", **chips}
    config_maps, pods = created(tpu=LARGE, template={"spec": {"initContainers": [init]}})
    assert len(environment(pods[0], config_maps, "warm-up")["TPU_PROCESS_ADDRESSES"].split(",")) == 256
    assert len(environment(pods[0], config_maps)["TPU_PROCESS_ADDRESSES"].split(",")) == 1024


@pytest.mark.parametrize(
    "value", [{"value": "own"}, {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
)
def test_a_users_own_list_stays_as_it_is(value: dict[str, Any]) -> None:
    run = {"command": ["x"], "env": [{"name": "TORCH_TPU_SLICEBUILDER_ADDRESSES", **value}]}
    _, pods = created(tpu=LARGE, run=run)
    (own,) = [
        v for v in pods[0]["spec"]["containers"][0]["env"] if v["name"] == "TORCH_TPU_SLICEBUILDER_ADDRESSES"
    ]
    assert own == {"name": "TORCH_TPU_SLICEBUILDER_ADDRESSES", **value}


def test_another_spec_has_another_config_map() -> None:
    names = {created(tpu=LARGE, run={"command": [c]})[0][0]["metadata"]["name"] for c in ("a", "b")}
    assert len(names) == 2


def test_what_linux_does_not_pass_on_is_found_before_it_is_moved() -> None:
    long_name = World(job("n" * 45, tpu={"accelerator": "v5p", "topology": "16x16x16"})).settle()
    assert long_name.condition("Blocked") == "True/EnvironmentConflict"


def test_the_limit_is_on_all_lists_together() -> None:
    variables = [{"name": name, "value": "x" * 6000} for name in sorted(hostlists.LISTS)]
    pod = {"spec": {"containers": [{"name": "main", "env": variables}]}}
    assert hostlists.too_long(pod)
    variables.pop()
    assert not hostlists.too_long(pod)

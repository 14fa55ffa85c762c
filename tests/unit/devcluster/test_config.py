"""What the components are told."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.devcluster import controlplane, fake, kind, nodes, tpu
from hack.devcluster.state import Layout, Record, Shape


def test_containerd_pins_the_sandbox_image_and_finds_the_plugins() -> None:
    plugins: dict[str, Any] = tomllib.loads(nodes.containerd_config(Path("/opt/cni/bin")))["plugins"]
    assert plugins["io.containerd.cri.v1.images"]["pinned_images"] == {"sandbox": nodes.PAUSE}
    runtime = plugins["io.containerd.cri.v1.runtime"]
    assert runtime["restrict_oom_score_adj"] is True
    assert runtime["cni"]["bin_dirs"] == ["/opt/cni/bin"]


def test_kubelets_have_ports_and_cgroups_of_their_own() -> None:
    first, second = (nodes.kubelet_config(10250 + index, f"/pods-{index}") for index in range(2))
    assert {key for key in first if first[key] != second[key]} == {"port", "cgroupRoot"}


def test_tpu_taint_is_registered() -> None:
    taints = nodes.kubelet_config(10250, "/pods-0")["registerWithTaints"]
    assert taints == [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}]


def test_four_hosts_are_one_node_pool() -> None:
    pools = [tpu.labels(index, "pool")[tpu.POOL] for index in range(8)]
    assert pools == ["pool-0"] * 4 + ["pool-1"] * 4


def test_labels_are_those_of_a_v5e_4x4_slice() -> None:
    assert tpu.labels(0, "pool") == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
        "cloud.google.com/gke-accelerator-count": "4",
        "cloud.google.com/gke-nodepool": "pool-0",
    }


def test_dns_answers_for_the_cluster_and_denies_the_rest() -> None:
    corefile = nodes.corefile(Path("/with space/coredns.kubeconfig"))
    assert 'kubeconfig "/with space/coredns.kubeconfig"' in corefile
    assert "rcode NXDOMAIN" in corefile


def test_fake_node_is_a_tpu_host_that_tells_itself_from_a_real_one() -> None:
    node = fake.node(5)
    assert node["metadata"]["labels"]["type"] == "kwok"
    assert node["metadata"]["labels"][tpu.POOL] == "fake-pool-1"
    assert node["status"]["capacity"]["google.com/tpu"] == "4"
    assert node["spec"]["taints"] == [tpu.TAINT]


def test_kwok_never_completes_a_pod(tmp_path: Path) -> None:
    layout = Layout("dev", tmp_path)
    layout.config.mkdir(parents=True)
    fake.write_files(layout)
    documents = list(yaml.safe_load_all((layout.config / "kwok.yaml").read_text()))
    stages = {document["metadata"]["name"] for document in documents if document["kind"] == "Stage"}
    assert stages == {"node-ready", "pod-ready", "pod-delete"}


def test_audit_leaves_out_the_clusters_own_components() -> None:
    rules = controlplane.audit_policy()["rules"]
    assert "kube-scheduler" in rules[0]["users"]
    assert "admin" not in rules[0]["users"]
    assert rules[-1] == {"level": "Metadata"}


@pytest.mark.parametrize(("rate", "count"), [(None, 0), (1000, 4)])
def test_client_rates_are_the_components_own_unless_given(rate: int | None, count: int) -> None:
    record = Record(Shape(api_qps=rate), "10.202.0.1", "10.202.0.2")
    bins = dict.fromkeys(
        ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"), Path("/bin/true")
    )
    components = controlplane.components(Layout("dev", Path("/a")), record, bins)
    flags = [str(word) for component in components for word in component.argv]
    assert sum(flag.startswith("--kube-api-") for flag in flags) == count


def test_gang_scheduling_is_on_for_all_that_have_a_part_in_it() -> None:
    record = Record(Shape(), "10.202.0.1", "10.202.0.2")
    bins = dict.fromkeys(
        ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"), Path("/bin/true")
    )
    components = controlplane.components(Layout("dev", Path("/a")), record, bins)
    gated = {each.name for each in components if "--feature-gates=GenericWorkload=true" in each.argv}
    assert gated == {"kube-apiserver", "kube-controller-manager", "kube-scheduler"}


def test_kind_has_as_many_tpu_hosts() -> None:
    config = kind.config(4)
    workers = [node for node in config["nodes"] if node["role"] == "worker"]
    assert len(workers) == 4
    assert workers[0]["labels"] == tpu.labels(0, "tpu-pool")
    patch = json.loads(workers[0]["kubeadmConfigPatches"][0])
    assert patch["nodeRegistration"]["taints"] == [tpu.TAINT]

"""`kubectl tpu doctor`: findings from what was read."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.builders import NOW, node, node_pool, stamp
from tests.unit.cli.scenes import COLOURED, PLAIN
from tpu_operator.api.crd import KINDS, definition
from tpu_operator.cli.checks import Facts, examine
from tpu_operator.cli.doctor import draw
from tpu_operator.cli.findings import Finding, Severity
from tpu_operator.core.snapshot import Node, Quota

if TYPE_CHECKING:
    from collections.abc import Iterable

ESTABLISHED = {"status": {"conditions": [{"type": "Established", "status": "True"}]}}
CRDS = {crd["metadata"]["name"]: crd | ESTABLISHED for crd in map(definition, KINDS)}
NAME, CRD = next((name, crd) for name, crd in CRDS.items() if name.startswith("tpujobs."))
DEPLOYMENT = {
    "spec": {"replicas": 2, "template": {"spec": {"containers": [{"image": "tpu-operator:0.1.0"}]}}},
    "status": {"readyReplicas": 2},
}
LEASE = {"spec": {"holderIdentity": "tpu-operator-a", "renewTime": stamp(NOW)}}
HEALTHY = Facts(
    namespace="team-a",
    version={"major": "1", "minor": "37", "gitVersion": "v1.37.0"},
    crds=CRDS,
    served=True,
    lease=LEASE,
    deployment=DEPLOYMENT,
    nodes=list(node_pool("pool-a").values()),
    quotas=[],
    groups=frozenset({"kueue.x-k8s.io"}),
    may={"create TPUJobs": True, "read logs": True},
)


def findings(check: str, **facts: Any) -> list[Finding]:
    return [one for one in examine(replace(HEALTHY, **facts), NOW) if one.check == check]


def worst(found: Iterable[Finding]) -> Severity:
    return max((one.severity for one in found), key=list(Severity).index)


def test_a_cluster_that_is_in_order() -> None:
    assert draw(examine(HEALTHY, NOW), PLAIN) == [
        "ok  server    Kubernetes v1.37.0",
        *(f"ok  crds      {name} is as this program knows it" for name in CRDS),
        "ok  operator  2 of 2 replicas ready, image tpu-operator:0.1.0",
        "ok  operator  tpu-operator-a leads",
        "ok  nodes     4 nodes with TPUs that pods may use",
        "ok  pools     whole slices: 1 x v5e 4x4",
        "ok  quotas    no ResourceQuota of team-a limits pods or chips",
        "ok  queues    Kueue is there: spec.scheduling.queueName works",
        "ok  rights    you may create TPUJobs, read logs in team-a",
    ]


def test_every_trouble_comes_with_what_to_do() -> None:
    facts = replace(HEALTHY, crds={}, served=False, lease=None, deployment=None, nodes=None, quotas=None)
    found = examine(facts, NOW)
    assert all(one.remedy for one in found if one.severity in {Severity.WARNING, Severity.ERROR})
    lines = draw(found, COLOURED)
    assert any(line.startswith("\x1b[31merror\x1b[0m") for line in lines)
    assert any(line.lstrip().startswith("-> install the chart") for line in lines)


@pytest.mark.parametrize(
    ("version", "severity"),
    [
        ({"major": "1", "minor": "30+", "gitVersion": "v1.30"}, Severity.ERROR),
        ({"major": "1", "minor": "31"}, Severity.OK),
        ({}, Severity.OK),
    ],
)
def test_versions(version: dict[str, str], severity: Severity) -> None:
    assert worst(findings("server", version=version)) is severity


class TestCrds:
    def of_job(self, crd: dict[str, Any]) -> list[Finding]:
        """What is found of that definition of TPUJobs."""
        return [one for one in findings("crds", crds=CRDS | {NAME: crd}) if one.found.startswith(NAME)]

    def test_absent(self) -> None:
        found = findings("crds", crds={}, served=False)[0]
        assert found.severity is Severity.ERROR
        assert "tpu-operator crds" in found.remedy

    def test_served_but_secret(self) -> None:
        found = findings("crds", crds={})[0]
        assert found.severity is Severity.OK

    def test_not_established(self) -> None:
        (found,) = self.of_job(CRD | {"status": {}})
        assert found.severity is Severity.ERROR

    def test_older_and_newer(self) -> None:
        older = msgspec.json.decode(msgspec.json.encode(CRD))
        schema = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        gone = schema.pop("maintenance")
        (found,) = self.of_job(older)
        assert found.severity is Severity.WARNING
        assert "lacks spec.maintenance" in found.found
        newer = schema | {"maintenance": gone, "future": {"type": "string"}}
        older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"] = newer
        (found,) = self.of_job(older)
        assert (found.severity, found.found) == (
            Severity.NOTE,
            f"{NAME} is newer than this program: it has spec.future",
        )


class TestOperator:
    def test_nobody_leads_any_more(self) -> None:
        spec = LEASE["spec"] | {"renewTime": stamp(NOW - timedelta(minutes=5))}
        found = findings("operator", lease={"spec": spec})
        assert worst(found) is Severity.ERROR
        assert found[-1].found == "no replica leads: the Lease was last renewed 5m ago"

    def test_nobody_leads_since_the_lease_was_released(self) -> None:
        assert worst(findings("operator", lease={"spec": {}})) is Severity.ERROR

    def test_a_replica_is_missing(self) -> None:
        deployment = DEPLOYMENT | {"status": {"readyReplicas": 1}}
        assert worst(findings("operator", deployment=deployment)) is Severity.WARNING
        assert worst(findings("operator", deployment=DEPLOYMENT | {"status": {}})) is Severity.ERROR

    def test_nothing_can_be_read(self) -> None:
        (found,) = findings("operator", deployment=None, lease=None)
        assert found.severity is Severity.WARNING
        assert "--operator-namespace" in found.remedy


def without(one: Node, label: str) -> Node:
    wire = msgspec.to_builtins(one)
    del wire["metadata"]["labels"][label]
    return msgspec.convert(wire, Node)


class TestNodes:
    def test_none(self) -> None:
        (found,) = findings("nodes", nodes=[])
        assert found.severity is Severity.ERROR

    def test_a_label_is_missing(self) -> None:
        nodes = [without(node("a", "pool-a"), "cloud.google.com/gke-nodepool")]
        found = findings("nodes", nodes=nodes)
        assert found[0].found == "without the label cloud.google.com/gke-nodepool: a"

    def test_a_device_plugin_is_missing(self) -> None:
        found = findings("nodes", nodes=[node("a", "pool-a", chips="0")])
        assert found[0].severity is Severity.ERROR
        assert found[0].found == "offers no google.com/tpu: a"

    def test_nodes_that_pods_may_not_use(self) -> None:
        nodes = [node("a", "p", ready="False"), node("b", "p", unschedulable=True), node("c", "p")]
        assert [one.found for one in findings("nodes", nodes=nodes)] == [
            "is not ready: a",
            "is cordoned: b",
            "1 node with TPUs that pods may use",
        ]

    def test_an_accelerator_that_is_not_in_the_catalog(self) -> None:
        labels = {"cloud.google.com/gke-tpu-accelerator": "tpu-v99"}
        found = findings("nodes", nodes=[node("a", "p", labels=labels)])
        assert found[-1].severity is Severity.NOTE
        assert "chipsPerHost" in found[-1].remedy

    def test_a_node_pool_of_the_wrong_size(self) -> None:
        (found,) = findings("pools", nodes=list(node_pool("pool-a", hosts=3).values()))
        assert found.severity is Severity.WARNING
        assert found.found == "pool-a has 3 nodes, a 4x4 slice has 4"


def test_quotas() -> None:
    wire = {
        "metadata": {"name": "team"},
        "status": {
            "hard": {"requests.google.com/tpu": "16", "pods": "10"},
            "used": {"requests.google.com/tpu": "16"},
        },
    }
    found = findings("quotas", quotas=[msgspec.convert(wire, Quota)])
    assert [(one.severity, one.found) for one in found] == [
        (Severity.WARNING, "ResourceQuota team of team-a: 16 of 16 requests.google.com/tpu used"),
        (Severity.OK, "ResourceQuota team of team-a: 0 of 10 pods used"),
    ]


def test_rights() -> None:
    (found,) = findings("rights", may={"create TPUJobs": False, "read logs": True})
    assert found.found == "you may not create TPUJobs in team-a"


def test_no_kueue_is_only_a_note() -> None:
    assert findings("queues", groups=frozenset())[0].severity is Severity.NOTE

"""What the chart has for Prometheus and Grafana, against their schemas and what is really exposed."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from hack.devcluster import binaries
from tests.unit.chart import gotypes, promql
from tests.unit.chart.exposed import VALUES, everything
from tests.unit.chart.rendering import CHART, Manifest, Render, Template, of_kind

if TYPE_CHECKING:
    from tests.unit.chart.exposed import Exposed

MODULE = "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring"
ALL = {
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "workloadMonitor": {"enabled": True, "interval": "1m"},
    "rules": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True},
}
IN_GRAFANA = {"$__rate_interval": "5m", "$__range": "6h", "$namespace": "team"}
ALERTS = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((CHART / "files" / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]
PAGE = (Path(__file__).parents[3] / "docs" / "alerts.md").read_text()


@pytest.fixture(scope="module")
def exposed() -> Exposed:
    return everything()


@pytest.fixture(scope="module")
def types() -> Path:
    """Go types of the Prometheus operator's kinds."""
    return binaries.source("prometheus-operator", MODULE) / "v1"


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        (ALL, ["PodMonitor", "PodMonitor", "PrometheusRule"]),
        ({"serviceMonitor": {"enabled": True}}, ["ServiceMonitor"]),
        ({}, []),
    ],
)
def test_objects_of_the_prometheus_operator_are_valid(
    render: Render, types: Path, values: Manifest, kinds: list[str]
) -> None:
    found = [each for each in render({"metrics": values}) if each["apiVersion"] == "monitoring.coreos.com/v1"]
    assert sorted(each["kind"] for each in found) == kinds
    for each in found:
        assert not [*gotypes.unknown(each["spec"], f"{each['kind']}Spec", types, "spec")]


def test_the_operator_is_not_scraped_twice(template: Template) -> None:
    both = {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}
    done = template({"metrics": both})
    assert done.returncode != 0
    assert "enable the one that your Prometheus selects" in done.stderr


@pytest.mark.parametrize(("kind", "endpoints"), [("pod", "podMetricsEndpoints"), ("service", "endpoints")])
def test_namespaces_of_jobs_are_kept(render: Render, kind: str, endpoints: str) -> None:
    values = {f"{kind}Monitor": {"enabled": True, "interval": "7s", "labels": {"release": "x"}}}
    objects = render({"metrics": values})
    monitor = of_kind(objects, f"{kind.title()}Monitor")["tpu-operator/tpu-operator"]
    assert monitor["metadata"]["labels"]["release"] == "x"
    assert monitor["spec"][endpoints] == [{"port": "metrics", "interval": "7s", "honorLabels": True}]
    (service,) = of_kind(objects, "Service").values()
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    assert wanted <= service["metadata"]["labels"].items()
    assert wanted <= service["spec"]["selector"].items()


@pytest.mark.parametrize(
    ("namespaces", "selector"), [([], {"any": True}), (["team-a"], {"matchNames": ["team-a"]})]
)
def test_launchers_are_scraped_where_the_operator_works(
    render: Render, namespaces: list[str], selector: Manifest
) -> None:
    objects = render({"metrics": ALL, "watchNamespaces": namespaces})
    monitor = of_kind(objects, "PodMonitor")["tpu-operator/tpu-operator-workloads"]
    assert monitor["spec"]["namespaceSelector"] == selector
    assert monitor["spec"]["podMetricsEndpoints"] == [{"port": "launcher", "interval": "1m"}]


MONITOR = (Path(__file__).parents[3] / "docs" / "how-to" / "monitor.md").read_text()


@pytest.mark.parametrize("query", re.findall(r"^\| [^|]+ \| `(.+)` \|$", MONITOR, re.MULTILINE))
def test_what_the_documentation_asks_for_is_exposed(query: str, exposed: Exposed) -> None:
    assert promql.labels(query, exposed)


class TestRules:
    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
    def test_what_they_ask_for_is_exposed(self, rule: Manifest, exposed: Exposed) -> None:
        found = promql.labels(rule["expr"], exposed)
        told = set(re.findall(r"\$labels\.(\w+)", "".join(rule["annotations"].values())))
        assert told <= found

    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
    def test_they_say_what_to_do(self, rule: Manifest) -> None:
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert f"\n## {rule['alert']}\n" in PAGE

    def test_the_page_has_no_others(self) -> None:
        assert re.findall(r"^## (\w+)$", PAGE, re.MULTILINE) == [rule["alert"] for rule in RULES]

    def test_they_come_as_they_are_in_the_file(self, render: Render) -> None:
        (rules,) = of_kind(render({"metrics": ALL}), "PrometheusRule").values()
        assert rules["spec"] == ALERTS

    def test_runbooks_are_linked_on_request(self, render: Render) -> None:
        values = {"rules": {"enabled": True, "runbook": "https://example.test/alerts/"}}
        (rules,) = of_kind(render({"metrics": values}), "PrometheusRule").values()
        for group in rules["spec"]["groups"]:
            for rule in group["rules"]:
                anchor = rule["alert"].lower()
                assert rule["annotations"]["runbook_url"] == f"https://example.test/alerts/#{anchor}"


class TestDashboard:
    @pytest.mark.parametrize(("title", "target"), QUERIES, ids=[title for title, _ in QUERIES])
    def test_what_panels_ask_for_is_exposed(self, title: str, target: Manifest, exposed: Exposed) -> None:
        query = target["expr"]
        for variable, value in IN_GRAFANA.items():
            query = query.replace(variable, value)
        assert "$" not in query
        found = promql.labels(query, exposed)
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= found

    def test_panels_do_not_cover_each_other(self) -> None:
        cells = [
            {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            for at in (panel["gridPos"] for panel in DASHBOARD["panels"])
        ]
        assert not [1 for one, other in combinations(cells, 2) if one & other]
        assert max(x for panel in cells for x, _ in panel) == 23
        ids = [panel["id"] for panel in DASHBOARD["panels"]]
        assert len(ids) == len(set(ids))

    def test_its_variables_are_there_and_used(self, exposed: Exposed) -> None:
        source, namespace = DASHBOARD["templating"]["list"]
        assert {panel["datasource"]["uid"] for panel in PANELS} == {f"${{{source['name']}}}"}
        assert promql.names(namespace["query"]["query"], exposed)
        assert any(f"${namespace['name']}" in target["expr"] for _, target in QUERIES)

    def test_it_comes_in_a_config_map_that_grafana_looks_for(self, render: Render) -> None:
        (config,) = of_kind(render({"metrics": ALL}), "ConfigMap").values()
        assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert json.loads(config["data"]["tpu-operator.json"]) == DASHBOARD


class TestChecks:
    """They would find what they look for."""

    @pytest.mark.parametrize(
        ("query", "complaint"),
        [
            ("sum(tpu_operator_jobs)", "nothing exposes tpu_operator_jobs"),
            ('tpu_operator_leader{phase="Running"}', "has no label phase"),
            ('tpu_operator_job_phase{phase="Done"}', "phase is never {'Done'}"),
            ("sum by (cause) (tpu_operator_leader)", "which nothing has"),
            ("rate(tpu_operator_job_restarts[5m])", "nothing exposes"),
            ("sum by (name) (tpu_operator_job_phase) / sum(tpu_operator_leader)", "never match"),
            ("histogram_quantile(0.5, sum(tpu_operator_gang_start_seconds_bucket))", "needs the label le"),
        ],
    )
    def test_of_queries(self, query: str, complaint: str, exposed: Exposed) -> None:
        with pytest.raises(AssertionError, match=complaint):
            promql.labels(query, exposed)

    def test_closed_sets_of_values_are_of_labels_that_exist(self, exposed: Exposed) -> None:
        assert all(label in exposed[name] for name, label in VALUES)

    def test_of_fields_that_no_kind_has(self, types: Path) -> None:
        wrong = {"podMetricsEndpoints": [{"port": "metrics", "honorLabels": True, "honourLabels": True}]}
        found = [*gotypes.unknown(wrong, "PodMonitorSpec", types, "spec")]
        assert found == ["spec.podMetricsEndpoints[0].honourLabels"]
        rules = {"groups": [{"name": "a", "rules": [{"alert": "A", "exprs": "1"}]}]}
        assert [*gotypes.unknown(rules, "PrometheusRuleSpec", types, "spec")] == [
            "spec.groups[0].rules[0].exprs"
        ]

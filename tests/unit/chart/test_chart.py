"""What helm makes of the chart."""

import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from tests.unit.chart.rendering import CHART, Manifest, Render, Template, of_kind
from tpu_operator import settings

EVERYTHING: Manifest = {
    "image": {"repository": "example.test/tpu-operator", "tag": "v1", "pullPolicy": "Always"},
    "runtime": {"image": {"repository": "example.test/tpu-runtime", "tag": "v2"}},
    "imagePullSecrets": [{"name": "pull"}],
    "replicas": 3,
    "emulate": "cpu",
    "injectTopologyEnv": True,
    "logLevel": "debug",
    "extraArgs": ["--workers=8"],
    "extraEnv": [{"name": "PYTHONASYNCIODEBUG", "value": "1"}],
    "resources": {"requests": {"cpu": "1"}},
    "prometheus": {"addresses": ["http://prometheus.monitoring:9090", "https://other.test/team"]},
    "priorityClassName": "system-cluster-critical",
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "google.com/tpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "podAnnotations": {"example.test/team": "platform"},
    "allowHostPathCaches": True,
    "networkPolicy": {
        "enabled": True,
        "metricsFrom": [
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
        ],
        "egress": [{"to": [{"ipBlock": {"cidr": "192.0.2.1/32"}}], "ports": [{"port": 443}]}],
    },
    "metrics": {
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "workloadMonitor": {"enabled": True},
        "rules": {"enabled": True},
        "dashboard": {"enabled": True},
    },
}

Rules = set[tuple[str, str, tuple[str, ...]]]


def deployment(objects: list[Manifest]) -> Manifest:
    return of_kind(objects, "Deployment")["tpu-operator/tpu-operator"]


def container(objects: list[Manifest]) -> Manifest:
    (only,) = deployment(objects)["spec"]["template"]["spec"]["containers"]
    return dict(only)


def rules(role: Manifest) -> Rules:
    return set(_rules(role))


def _rules(role: Manifest) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for rule in role["rules"]:
        for group, resource in product(rule["apiGroups"], rule["resources"]):
            yield f"{group}/{resource}", ",".join(rule.get("resourceNames", ())), tuple(sorted(rule["verbs"]))


IN_NAMESPACES: Rules = {
    ("tpu-operator.dev/tpujobs", "", ("delete", "list", "watch")),
    ("tpu-operator.dev/tpujobs/status", "", ("patch",)),
    ("tpu-operator.dev/tpujobs/finalizers", "", ("update",)),
    ("tpu-operator.dev/tpuinferences", "", ("list", "watch")),
    ("tpu-operator.dev/tpuinferences/status", "", ("patch",)),
    ("tpu-operator.dev/tpuinferences/finalizers", "", ("update",)),
    ("tpu-operator.dev/tpuinferencescalers", "", ("create", "delete", "get", "list", "watch")),
    ("tpu-operator.dev/tpuinferencescalers/status", "", ("patch",)),
    ("apps/controllerrevisions", "", ("create", "delete", "list", "patch", "watch")),
    ("/pods", "", ("create", "delete", "get", "list", "patch", "watch")),
    ("/services", "", ("create", "delete", "get", "list", "patch", "watch")),
    ("apps/deployments", "", ("create", "delete", "list", "patch", "watch")),
    ("/serviceaccounts", "", ("create", "delete", "list", "patch", "watch")),
    ("rbac.authorization.k8s.io/rolebindings", "", ("create", "delete", "list", "patch", "watch")),
    ("rbac.authorization.k8s.io/clusterroles", "tpu-operator-endpoint-picker", ("bind",)),
    ("inference.networking.k8s.io/inferencepools", "", ("create", "delete", "list", "patch", "watch")),
    ("gateway.networking.k8s.io/httproutes", "", ("create", "delete", "list", "patch", "watch")),
    ("/configmaps", "", ("create", "get")),
    ("/resourcequotas", "", ("list", "watch")),
    ("scheduling.k8s.io/podgroups", "", ("create", "delete", "get", "list", "watch")),
    ("kueue.x-k8s.io/workloads", "", ("create", "delete", "get", "list", "watch")),
    ("kueue.x-k8s.io/workloads/status", "", ("patch",)),
    ("events.k8s.io/events", "", ("create", "patch")),
}
IN_CLUSTER: Rules = {
    ("/nodes", "", ("list", "watch")),
    ("kueue.x-k8s.io/resourceflavors", "", ("list", "watch")),
    ("kueue.x-k8s.io/workloadpriorityclasses", "", ("list", "watch")),
    ("scheduling.k8s.io/priorityclasses", "", ("list", "watch")),
}


@pytest.mark.parametrize("values", [{}, EVERYTHING, EVERYTHING | {"watchNamespaces": ["a", "b"]}])
def test_objects_are_valid(render: Render, values: Manifest) -> None:
    for each in render(values):
        if each["apiVersion"] != "monitoring.coreos.com/v1":  # test_monitoring.py looks at these
            kubernetes_validate.validate(each, "1.37", strict=True)


def test_lint_finds_nothing(helm: Path) -> None:
    done = subprocess.run([helm, "lint", "--strict", CHART], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"emulate": "gpu"}, "/emulate"),
        ({"replica": 2}, "additional properties 'replica' not allowed"),
        ({"replicas": "2"}, "/replicas"),
        ({"replicas": -1}, "/replicas"),
        ({"logLevel": "trace"}, "/logLevel"),
        ({"image": {"repository": ""}}, "/image/repository"),
        ({"image": {"digest": "sha256:0"}}, "/image"),
        ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
        ({"runtime": {"repository": "x"}}, "/runtime"),
        ({"watchNamespaces": "team-a"}, "/watchNamespaces"),
        ({"watchNamespaces": ["Team_A"]}, "/watchNamespaces/0"),
        ({"injectTopologyEnv": "yes"}, "/injectTopologyEnv"),
        ({"imagePullSecrets": ["pull"]}, "/imagePullSecrets/0"),
        ({"nodeSelector": {"pool": 1}}, "/nodeSelector/pool"),
        ({"extraArgs": "--workers=8"}, "/extraArgs"),
        ({"metrics": {"podMonitor": {"interval": "often"}}}, "/metrics/podMonitor/interval"),
        ({"metrics": {"rules": {"runbook": "docs/alerts.md"}}}, "/metrics/rules/runbook"),
        ({"metrics": {"dashboard": {"labels": {"grafana_dashboard": 1}}}}, "/metrics/dashboard/labels"),
        ({"networkPolicy": {"ingress": []}}, "/networkPolicy"),
        ({"topologySpreadConstraints": [{"topologyKey": "zone"}]}, "/topologySpreadConstraints/0"),
        ({"podDisruptionBudget": {"minAvailable": 1}}, "/podDisruptionBudget"),
        ({"allowHostPathCaches": "yes"}, "/allowHostPathCaches"),
        ({"prometheus": {"addresses": ["file:///etc/passwd"]}}, "/prometheus/addresses/0"),
        ({"prometheus": {"addresses": ["http://me:secret@prometheus.test"]}}, "/prometheus/addresses/0"),
    ],
)
def test_wrong_values_are_refused_by_name(template: Template, values: Manifest, complaint: str) -> None:
    done = template(values)
    assert done.returncode != 0
    assert complaint in done.stderr


def test_permissions_are_cluster_wide_by_default(render: Render) -> None:
    objects = render()
    assert rules(of_kind(objects, "ClusterRole")["/tpu-operator"]) == IN_CLUSTER | IN_NAMESPACES
    (leader,) = of_kind(objects, "Role").values()
    assert leader["metadata"]["namespace"] == "tpu-operator"
    assert rules(leader) == {
        ("coordination.k8s.io/leases", "", ("create",)),
        ("coordination.k8s.io/leases", "tpu-operator", ("get", "update")),
    }


def test_watched_namespaces_get_a_role_each_and_the_cluster_nothing_but_nodes(render: Render) -> None:
    objects = render({"watchNamespaces": ["team-a", "team-b"]})
    assert rules(of_kind(objects, "ClusterRole")["/tpu-operator"]) == IN_CLUSTER
    for namespace in ("team-a", "team-b"):
        assert rules(of_kind(objects, "Role")[f"{namespace}/tpu-operator"]) == IN_NAMESPACES
        binding = of_kind(objects, "RoleBinding")[f"{namespace}/tpu-operator"]
        account = {"kind": "ServiceAccount", "name": "tpu-operator", "namespace": "tpu-operator"}
        assert binding["subjects"] == [account]
    assert settings.parse(container(objects)["args"][1:]).namespaces == ("team-a", "team-b")


def test_roles_bind_to_the_account_that_the_pods_use(render: Render) -> None:
    objects = render()
    account = deployment(objects)["spec"]["template"]["spec"]["serviceAccountName"]
    assert f"tpu-operator/{account}" in of_kind(objects, "ServiceAccount")
    roles = {**of_kind(objects, "Role"), **of_kind(objects, "ClusterRole")}
    bindings = {**of_kind(objects, "RoleBinding"), **of_kind(objects, "ClusterRoleBinding")}
    for binding in bindings.values():
        namespace = binding["metadata"].get("namespace", "")
        assert f"{namespace}/{binding['roleRef']['name']}" in roles
        assert [subject["name"] for subject in binding["subjects"]] == [account]


def test_users_get_jobs_through_the_roles_that_clusters_have(render: Render) -> None:
    roles = of_kind(render(), "ClusterRole")
    aggregate = "rbac.authorization.k8s.io/aggregate-to-"
    edit, view = roles["/tpu-operator-edit"], roles["/tpu-operator-view"]
    assert (
        edit["metadata"]["labels"][f"{aggregate}edit"]
        == edit["metadata"]["labels"][f"{aggregate}admin"]
        == "true"
    )
    assert view["metadata"]["labels"][f"{aggregate}view"] == "true"
    verbs = {verb for _, _, each in rules(view) for verb in each}
    assert verbs == {"get", "list", "watch"}


def test_the_operator_understands_its_arguments(render: Render) -> None:
    command, *arguments = container(render(EVERYTHING))["args"]
    assert command == "run"
    parsed = settings.parse(arguments)
    assert parsed.pods.runtime_image == "example.test/tpu-runtime:v2"
    assert parsed.pods.launcher_image == "example.test/tpu-operator:v1"
    assert parsed.pods.emulate == "cpu"
    assert parsed.pods.inject_topology_env
    assert parsed.pods.allow_host_path_caches
    assert (parsed.metrics_port, parsed.health_port) == (8080, 8081)
    assert parsed.prometheus == ("http://prometheus.monitoring:9090", "https://other.test/team")
    assert (parsed.log_level, parsed.log_format, parsed.workers) == ("debug", "json", 8)


def test_images_default_to_the_version_of_the_chart(render: Render) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    parsed = settings.parse(container(render())["args"][1:])
    assert parsed.pods.runtime_image == f"tpu-runtime:{version}"
    assert container(render())["image"] == parsed.pods.launcher_image == f"tpu-operator:{version}"
    assert (parsed.pods.emulate, parsed.pods.inject_topology_env, parsed.namespaces) == ("", False, ())
    assert not parsed.pods.allow_host_path_caches


def test_pods_meet_the_restricted_security_standard(render: Render) -> None:
    pod = deployment(render())["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(render())["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_two_replicas_are_spread_and_kept_during_drains_and_upgrades(render: Render) -> None:
    objects = render()
    spec = deployment(objects)["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    labels = spec["template"]["metadata"]["labels"]
    (spread,) = spec["template"]["spec"]["topologySpreadConstraints"]
    (budget,) = of_kind(objects, "PodDisruptionBudget").values()
    assert budget["spec"]["maxUnavailable"] == 1
    (service,) = of_kind(objects, "Service").values()
    for selector in (
        spec["selector"]["matchLabels"],
        spread["labelSelector"]["matchLabels"],
        budget["spec"]["selector"]["matchLabels"],
        service["spec"]["selector"],
    ):
        assert selector.items() <= labels.items()


def test_probes_and_service_name_ports_that_exist(render: Render) -> None:
    objects = render(EVERYTHING)
    main = container(objects)
    ports = {port["name"]: port["containerPort"] for port in main["ports"]}
    assert main["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}
    assert main["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    assert ports == {"metrics": 8080, "health": 8081}
    (service,) = of_kind(objects, "Service").values()
    monitor = of_kind(objects, "PodMonitor")["tpu-operator/tpu-operator"]
    assert service["spec"]["ports"][0]["targetPort"] in ports
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] in ports


def test_what_needs_other_operators_or_a_network_plugin_is_made_only_on_request(render: Render) -> None:
    kinds = {each["kind"] for each in render()}
    assert not kinds & {"PodMonitor", "ServiceMonitor", "PrometheusRule", "ConfigMap", "NetworkPolicy"}


def test_a_network_policy_lets_in_requests_for_metrics_alone(render: Render) -> None:
    objects = render({"networkPolicy": {"enabled": True}})
    (policy,) = of_kind(objects, "NetworkPolicy").values()
    labels = deployment(objects)["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": "metrics"}]}]


def test_a_network_policy_can_name_who_may_ask_and_where_the_operator_may_connect_to(render: Render) -> None:
    (policy,) = of_kind(render(EVERYTHING), "NetworkPolicy").values()
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    (rule,) = policy["spec"]["ingress"]
    assert rule["from"] == EVERYTHING["networkPolicy"]["metricsFrom"]
    assert policy["spec"]["egress"] == EVERYTHING["networkPolicy"]["egress"]


def test_the_spread_can_be_another_one(render: Render) -> None:
    (zones,) = EVERYTHING["topologySpreadConstraints"]
    own = {"labelSelector": {"matchLabels": {"own": "selector"}}}
    pod = deployment(render({"topologySpreadConstraints": [zones, zones | own]}))["spec"]["template"]
    first, second = pod["spec"]["topologySpreadConstraints"]
    assert first["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert {key: first[key] for key in zones} == zones
    assert second == zones | own


def test_the_disruption_budget_can_be_left_out(render: Render) -> None:
    assert not of_kind(render({"podDisruptionBudget": {"enabled": False}}), "PodDisruptionBudget")


def test_no_role_reads_secrets_or_has_a_wildcard(render: Render) -> None:
    objects = render()
    for role in [*of_kind(objects, "ClusterRole").values(), *of_kind(objects, "Role").values()]:
        for resource, _, verbs in rules(role):
            assert "*" not in f"{resource} {verbs}"
            assert resource not in {"/secrets", "/serviceaccounts/token", "/pods/exec"}
            assert not {"escalate", "impersonate"} & set(verbs)


def crd_files() -> set[str]:
    return {
        yaml.safe_load(path.read_text())["metadata"]["name"] for path in (CHART / "../../crds").glob("*.yaml")
    }


def test_crds_come_with_the_release_and_stay_on_uninstall(render: Render) -> None:
    crds = of_kind(render(), "CustomResourceDefinition")
    assert {crd["metadata"]["name"] for crd in crds.values()} == crd_files() != set()
    for crd in crds.values():
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_crds_can_be_left_to_another_release(render: Render) -> None:
    assert not of_kind(render({"crds": {"install": False}}), "CustomResourceDefinition")


def test_a_packaged_chart_renders_the_same(helm: Path, render: Render, tmp_path: Path) -> None:
    subprocess.run([helm, "package", CHART, "--destination", tmp_path], capture_output=True, check=True)
    (package,) = tmp_path.glob("*.tgz")
    assert render(chart=package) == render()

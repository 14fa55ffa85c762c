"""What helm makes of the chart."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from hack.devcluster import binaries
from tpu_operator import settings

CHART = Path(__file__).parents[3] / "charts" / "tpu-operator"
EVERYTHING = {
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
    "priorityClassName": "system-cluster-critical",
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "google.com/tpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "podAnnotations": {"example.test/team": "platform"},
    "metrics": {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
}

Manifest = dict[str, Any]
Rules = set[tuple[str, str, tuple[str, ...]]]


@pytest.fixture(scope="session")
def helm() -> Path:
    return binaries.ensure(["helm"])["helm"]


Template = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def template(helm: Path, tmp_path: Path) -> Template:
    def run(values: Manifest | None = None, chart: Path = CHART) -> "subprocess.CompletedProcess[str]":
        file = tmp_path / "values.json"
        file.write_text(json.dumps(values or {}))
        command: list[str | Path] = [
            helm,
            "template",
            "tpu-operator",
            chart,
            "--namespace",
            "tpu-operator",
            "--values",
            file,
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


Render = Callable[..., list[Manifest]]


@pytest.fixture
def render(template: Template) -> Render:
    def run(values: Manifest | None = None, chart: Path = CHART) -> list[Manifest]:
        done = template(values, chart)
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]

    return run


def of_kind(objects: list[Manifest], kind: str) -> dict[str, Manifest]:
    found = [each for each in objects if each["kind"] == kind]
    return {f"{o['metadata'].get('namespace', '')}/{o['metadata']['name']}": o for o in found}


def deployment(objects: list[Manifest]) -> Manifest:
    return of_kind(objects, "Deployment")["tpu-operator/tpu-operator"]


def container(objects: list[Manifest]) -> Manifest:
    (only,) = deployment(objects)["spec"]["template"]["spec"]["containers"]
    return dict(only)


def rules(role: Manifest) -> Rules:
    return set(_rules(role))


def _rules(role: Manifest) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for rule in role["rules"]:
        for resource in rule["resources"]:
            (group,) = rule["apiGroups"]
            yield f"{group}/{resource}", ",".join(rule.get("resourceNames", ())), tuple(sorted(rule["verbs"]))


IN_NAMESPACES: Rules = {
    ("tpu-operator.dev/tpujobs", "", ("delete", "list", "watch")),
    ("tpu-operator.dev/tpujobs/status", "", ("patch",)),
    ("tpu-operator.dev/tpuinferences", "", ("list", "watch")),
    ("tpu-operator.dev/tpuinferences/status", "", ("patch",)),
    ("tpu-operator.dev/tpuinferencescalers", "", ("create", "delete", "get", "list", "watch")),
    ("tpu-operator.dev/tpuinferencescalers/status", "", ("patch",)),
    ("apps/controllerrevisions", "", ("create", "delete", "get", "list", "patch", "watch")),
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
        if each["kind"] != "PodMonitor":  # not a kind of Kubernetes
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
    assert (parsed.metrics_port, parsed.health_port) == (8080, 8081)
    assert (parsed.log_level, parsed.log_format, parsed.workers) == ("debug", "json", 8)


def test_images_default_to_the_version_of_the_chart(render: Render) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    parsed = settings.parse(container(render())["args"][1:])
    assert parsed.pods.runtime_image == f"tpu-runtime:{version}"
    assert container(render())["image"] == parsed.pods.launcher_image == f"tpu-operator:{version}"
    assert (parsed.pods.emulate, parsed.pods.inject_topology_env, parsed.namespaces) == ("", False, ())


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
    (monitor,) = of_kind(objects, "PodMonitor").values()
    assert service["spec"]["ports"][0]["targetPort"] in ports
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] in ports


def test_a_pod_monitor_is_made_only_on_request(render: Render) -> None:
    assert not of_kind(render(), "PodMonitor")


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

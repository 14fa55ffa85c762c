"""Who may do what, by the roles of the chart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.chart.release import ACCOUNT
from tests.cluster.conftest import SYSTEM
from tests.cluster.inference import models as inferences
from tests.cluster.inference.models import SCALER, Models, image
from tests.cluster.operator.jobs import Jobs
from tests.cluster.routing.conftest import kinds  # noqa: F401 - a fixture
from tests.gateway.picker import POOLS
from tests.kube import NAMESPACE, POD, SERVICE, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.chart.release import Release
    from tests.kube import Kube

NEVER = [
    ("get", "secrets"),
    ("list", "secrets"),
    ("list", "configmaps"),
    ("update", "configmaps"),
    ("create", "pods:exec"),
    ("get", "pods:log"),
    ("create", "serviceaccounts:token"),
    ("impersonate", "users"),
    ("escalate", "clusterroles"),
    ("create", "clusterroles"),
    ("create", "roles"),
    ("bind", "clusterroles/cluster-admin"),
    ("create", "clusterrolebindings"),
    ("patch", "nodes"),
    ("update", "tpujobs.tpu-operator.dev"),
    ("patch", "tpujobs.tpu-operator.dev"),
    ("create", "tpujobs.tpu-operator.dev"),
    ("delete", "tpuinferences.tpu-operator.dev"),
    ("delete", "customresourcedefinitions"),
    ("create", "validatingwebhookconfigurations"),
]
"""What the operator must not be able to do anywhere."""


@pytest.fixture
def other(kube: Kube, namespace: str) -> Iterator[str]:
    """A namespace that the operator does not work in."""
    name = f"{namespace}-other"
    kube.create(NAMESPACE, {"metadata": {"name": name}})
    yield name
    kube.delete(NAMESPACE, name)


@pytest.mark.timeout(600)
def test_the_operator_can_do_no_more_than_its_work(release: Release, namespace: str) -> None:
    release.install()
    assert release.can(ACCOUNT, "create", "pods")
    assert not [what for what in NEVER if release.can(ACCOUNT, *what)]
    wanted = ("create", "rolebinding", "evil", f"--namespace={namespace}", f"--serviceaccount={SYSTEM}:x")
    for role, allowed in (("cluster-admin", False), ("edit", False), (f"{SYSTEM}-endpoint-picker", True)):
        flags = (f"--clusterrole={role}", f"--as={ACCOUNT}", "--dry-run=server")
        done = release.kubectl(*wanted, *flags, check=False)
        assert (done.returncode == 0) is allowed, done.stderr


@pytest.mark.timeout(600)
def test_users_can_do_what_the_roles_of_the_cluster_say(release: Release, namespace: str, other: str) -> None:
    release.install()
    for who in ("edit", "view"):
        release.kubectl(
            "create", "rolebinding", who, f"--clusterrole={who}", f"--user={who}", f"--namespace={namespace}"
        )
    jobs, scalers = "tpujobs.tpu-operator.dev", "tpuinferencescalers.tpu-operator.dev"
    assert release.can("edit", "create", jobs, namespace)
    assert release.can("edit", "patch", f"{scalers}:scale", namespace)
    # Promotions and what else `kubectl tpu rollout` does.
    models = "tpuinferences.tpu-operator.dev"
    assert all(release.can("edit", verb, models, namespace) for verb in ("patch", "update"))
    assert release.can("edit", "list", "controllerrevisions.apps", namespace)
    assert release.can("view", "get", jobs, namespace)
    for who, verb, what, where in (
        ("edit", "create", jobs, other),
        ("edit", "get", jobs, other),
        ("edit", "patch", f"{jobs}:status", namespace),
        ("edit", "patch", f"{models}:status", namespace),
        ("edit", "create", scalers, namespace),
        ("view", "create", jobs, namespace),
        ("view", "delete", jobs, namespace),
    ):
        assert not release.can(who, verb, what, where), (who, verb, what, where)


@pytest.mark.timeout(600)
def test_in_one_namespace_it_works_with_rights_there_alone(
    release: Release, kube: Kube, namespace: str, other: str
) -> None:
    release.install(watchNamespaces=[namespace])
    assert release.can(ACCOUNT, "create", "pods", namespace)
    assert not release.can(ACCOUNT, "create", "pods", other)
    assert not release.can(ACCOUNT, "list", "pods")
    operator = release.start(f"--namespace={namespace}")
    Jobs(kube, other).create("elsewhere")
    jobs = Jobs(kube, namespace)
    jobs.create()
    jobs.reaches("Running")
    for pod in jobs.pods():
        jobs.end_pod(pod, 0)
    jobs.reaches("Succeeded")
    assert not kube.list(POD, other)
    assert 'code="403"' not in operator.http(operator.metrics_port, "/metrics")[1]


OF_MODELS = (
    "tpu-operator.dev/tpuinference",
    "apps/",
    "/serviceaccounts",
    "rbac.authorization.k8s.io/rolebindings",
    "gateway.networking.k8s.io/",
    "inference.networking.k8s.io/",
)
"""What nothing but TPUInferences needs; the rest is compared in tests/e2e/test_permissions.py."""
ROUTING = {
    "inferencePool": {},
    "httpRoute": {"parentRefs": [{"name": "gateway"}]},
    "endpointPicker": {"image": "example/picker:1"},
}


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("kinds")
def test_the_chart_grants_what_a_model_needs_and_no_more(
    release: Release, kube: Kube, namespace: str
) -> None:
    release.install()
    release.start()
    models = Models(kube, namespace)
    # In the way at first, and then a role that goes, more revisions than are kept, and routing that goes.
    kube.create(SCALER, {"metadata": {"name": "qwen-prefill"}, "spec": {"replicas": 1}}, namespace)
    roles = [inferences.role("prefill", scaling="External"), inferences.role("decode")]
    models.create(roles=roles, rollout={"revisionHistoryLimit": 1}, routing=ROUTING)
    assert "qwen-prefill" in models.has_condition("Blocked", "True", "CreateRefused")["message"]
    kube.delete(SCALER, "qwen-prefill", namespace)
    models.serves()
    for tag in ("v2", "v3", "v4"):
        models.change(engine=image(tag))
        models.serves()
    models.change(roles=[inferences.role("decode")])
    wait_for(lambda: kube.get(SCALER, "qwen-prefill", namespace) is None, "the role's scaler to go")
    models.change(routing=None)
    wait_for(lambda: kube.get(POOLS, "qwen", namespace) is None, "the pool to go")
    wait_for(lambda: kube.get(SERVICE, "qwen-epp", namespace) is None, "the picker's Service to go")

    used, granted = release.used(), release.granted()
    of_models = {each for each in granted if each[0].startswith(OF_MODELS)}
    # An apply that makes an object is a patch in the log, and asks for both; of finalizers, see the chart.
    implied = {(kind, "create") for kind, verb in used if verb == "patch"}
    implied |= {each for each in granted if each[0].endswith("/finalizers")}
    assert of_models - implied == {each for each in used if each[0].startswith(OF_MODELS)} - implied
    assert used <= granted

"""The chart's permissions against what the operator has asked the API server for, by its audit log."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.devcluster import Cluster
from tests.e2e.kube import OPERATOR, Kube, Object, job, wait_for

ACCOUNT = f"system:serviceaccount:{OPERATOR}:{OPERATOR}"
MAINTENANCE = "cloud.google.com/scheduled-maintenance-time"
STAY = ["sh", "-c", "exec sleep 600"]

Permission = tuple[str, str]
"""A resource, with its group, and a verb."""


@pytest.fixture
def audit_log(machines: Cluster) -> Path:
    return machines.audit_log


def requests(audit_log: Path) -> Iterator[Object]:
    for line in audit_log.read_text().splitlines():
        event: Object = json.loads(line)
        if event["user"]["username"] == ACCOUNT and "resource" in event.get("objectRef", {}):
            yield event


def permission(event: Object) -> Permission:
    reference = event["objectRef"]
    subresource = f"/{reference['subresource']}" if "subresource" in reference else ""
    return f"{reference.get('apiGroup', '')}/{reference['resource']}{subresource}", event["verb"]


def granted(operator: Kube) -> set[Permission]:
    roles = [operator.get("clusterrole", OPERATOR), operator.get("role", f"{OPERATOR}-leader")]
    return {
        (f"{group}/{resource}", verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


ELSEWHERE = ("kueue.x-k8s.io/", "tpu-operator.dev/tpuinference", "apps/controllerrevisions")
ASKED_OF_OTHERS = ("tpu-operator.dev/tpujobs/finalizers", "update")
"""What the API server asks for when children are made that hold up the deletion of their job."""
ROUTING = {
    "/serviceaccounts",
    "apps/deployments",
    "gateway.networking.k8s.io/httproutes",
    "inference.networking.k8s.io/inferencepools",
    "rbac.authorization.k8s.io/clusterroles",
    "rbac.authorization.k8s.io/rolebindings",
}


def here(permissions: set[Permission]) -> set[Permission]:
    """Those that show here: there is no Kueue, and no TPUInference.

    tests/cluster/kueue compares Kueue's, tests/cluster/chart what a TPUInference needs.
    """
    elsewhere = {each for each in permissions if each[0].startswith(ELSEWHERE) or each[0] in ROUTING}
    return permissions - elsewhere - {("/services", "delete"), ASKED_OF_OTHERS}


def blocked(kube: Kube, name: str) -> bool:
    conditions = kube.status(name).get("conditions", ())
    return any(each["type"] == "Blocked" and each["status"] == "True" for each in conditions)


def uid_of(kube: Kube, selector: str) -> str | None:
    uids: list[str] = [each["metadata"]["uid"] for each in kube.find("pods", selector)]
    return uids[0] if uids else None


def unowned(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def test_the_chart_grants_what_the_operator_uses_and_no_more(
    kube: Kube, operator: Kube, audit_log: Path
) -> None:
    # What ordinary jobs do not lead to: names that are taken, a Service that is changed, a job that is to go.
    kube.apply(unowned("Service", "taken", {"ports": [{"port": 80}]}), job("taken", ["true"]))
    wait_for("the job with a taken Service is blocked", lambda: blocked(kube, "taken"))
    kube.kubectl("delete", "tpujob,service", "taken")

    pod = {"containers": [{"name": "main", "image": "localhost/tpu-runtime:dev"}], "nodeName": "nowhere"}
    kube.apply(unowned("Pod", "pod-taken-0-1", pod), job("pod-taken", ["true"]))
    wait_for("the job with a taken pod is blocked", lambda: blocked(kube, "pod-taken"))
    kube.kubectl("delete", "tpujob/pod-taken", "pod/pod-taken-0-1", "--force")

    kube.apply(job("kept", STAY))
    kube.wait_phase("kept", "Running")
    change = {"spec": {"publishNotReadyAddresses": False}}
    kube.kubectl("patch", "service", "kept", "--type=merge", f"--patch={json.dumps(change)}")
    published = "publishNotReadyAddresses"
    wait_for("the Service is put right", lambda: kube.get("service", "kept")["spec"].get(published))
    # Maintenance of a node, of which the pods are told.
    node = kube.get("pod", "kept-0-0")["spec"]["nodeName"]
    kube.kubectl("label", "node", node, f"{MAINTENANCE}={int(time.time()) + 3600}")
    told = "tpu-operator.dev/maintenance"
    wait_for(
        "a pod is told", lambda: kube.get("pod", "kept-0-1")["metadata"].get("annotations", {}).get(told)
    )
    kube.kubectl("label", "node", node, f"{MAINTENANCE}-")
    kube.kubectl("delete", "tpujob", "kept")

    # Lists of hosts that are in a ConfigMap, and a PodGroup, as there are no nodes for the pods. One of these
    # is made twice. A PodGroup of that name is in the way at first; ours goes with the suspension.
    policy = {"schedulingPolicy": {"gang": {"minCount": 1}}}
    taken = unowned("PodGroup", "large-0", policy) | {"apiVersion": "scheduling.k8s.io/v1beta1"}
    large = {"accelerator": "v5p", "topology": "8x8x8"}
    kube.apply(taken, job("large", ["true"], tpu=large, run={"launcher": "torchrun"}))
    wait_for("the job with a taken PodGroup is blocked", lambda: blocked(kube, "large"))
    kube.kubectl("delete", "podgroup", "large-0")
    pod = wait_for("the last pod of a large job", lambda: kube.find("pods", "tpu-operator.dev/host=127"))
    kube.kubectl("delete", "pod", "large-0-127", "--wait=false")
    uid = pod[0]["metadata"]["uid"]
    wait_for("another one in its place", lambda: uid_of(kube, "tpu-operator.dev/host=127") not in {None, uid})
    # Twice, as an event that is there already is not made but patched.
    for _ in range(2):
        kube.kubectl("patch", "tpujob", "large", "--type=merge", '--patch={"spec": {"suspend": true}}')
        wait_for("the PodGroup is deleted", lambda: not kube.find("podgroups"))
        kube.kubectl("patch", "tpujob", "large", "--type=merge", '--patch={"spec": {"suspend": false}}')
        wait_for("there is another PodGroup", lambda: kube.find("podgroups"))
        kube.wait_phase("large", "Pending")
    kube.kubectl("delete", "tpujob", "large")

    kube.apply(job("short", ["true"], ttlSecondsAfterFinished=0))
    wait_for("the finished job is deleted", lambda: not kube.find("tpujobs"))

    used = {permission(event) for event in requests(audit_log)}
    assert here(used) == here(granted(operator))

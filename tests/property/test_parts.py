"""Laws of the parts that decisions about TPUJobs are made of."""

from __future__ import annotations

import copy
import json
from datetime import timedelta
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import NOW, SETTINGS, World, decode_pod, job, stamp
from tests.property.strategies import specs
from tpu_operator.api import Failure
from tpu_operator.core import failures
from tpu_operator.core.jobview import gang_spec
from tpu_operator.core.objects.merge import merge
from tpu_operator.core.objects.pods import PodFactory
from tpu_operator.core.settings import PodSettings

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
NAMED = st.fixed_dictionaries({"name": st.sampled_from("abc")}, optional={"value": SCALARS, "image": SCALARS})
TEMPLATES = st.fixed_dictionaries(
    {},
    optional={
        "containers": st.lists(NAMED, max_size=3, unique_by=lambda item: str(item["name"])),
        "tolerations": st.lists(st.fixed_dictionaries({"key": st.sampled_from("abc")}), max_size=3),
        "nodeSelector": st.none() | st.dictionaries(st.sampled_from("abc"), SCALARS, max_size=3),
        "ports": st.lists(st.fixed_dictionaries({"containerPort": st.integers(1, 3)}), max_size=3),
        "command": st.lists(st.sampled_from("abc"), max_size=2),
        "hostname": SCALARS,
    },
)
MOMENTS = st.integers(-3600, 3600).map(lambda seconds: NOW + timedelta(seconds=seconds))
MESSAGES = st.text(max_size=20) | st.recursive(
    SCALARS | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["v", "cause", "time", "signal", "error", "terminated", "x"]), inner, max_size=7
        )
    ),
    max_leaves=10,
).map(json.dumps)


class TestMerge:
    @given(TEMPLATES, TEMPLATES)
    def test_twice_is_once(self, base: Any, over: Any) -> None:
        once = merge(base, over)
        assert merge(once, over) == once

    @given(TEMPLATES)
    def test_nothing_changes_nothing(self, base: Any) -> None:
        assert merge(base, {}) == base

    @given(TEMPLATES, TEMPLATES)
    def test_neither_side_is_changed(self, base: Any, over: Any) -> None:
        before = copy.deepcopy((base, over))
        merge(base, over)
        assert (base, over) == before


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    """Metadata and status of a pod that has ended in one way or another."""
    metadata: dict[str, Any] = {"name": "train-0-0", "labels": {"tpu-operator.dev/attempt": "0"}}
    if draw(st.booleans()):
        metadata |= {"deletionTimestamp": stamp(draw(MOMENTS)), "deletionGracePeriodSeconds": 30}
    ended = {
        "exitCode": draw(st.sampled_from([0, 1, 64, 76, 77, 137, 143])),
        "reason": draw(st.sampled_from(["", "Error", "OOMKilled", "Completed"])),
        "message": draw(MESSAGES),
        **({"finishedAt": stamp(draw(MOMENTS))} if draw(st.booleans()) else {}),
        **({"startedAt": stamp(draw(MOMENTS))} if draw(st.booleans()) else {}),
    }
    states = st.sampled_from([{"terminated": ended}, {"running": {}}, {"waiting": {}}, {}])
    names = ("containerStatuses", "initContainerStatuses")
    status = {key: [{"name": "c", "state": draw(states)}] for key in names if draw(st.booleans())}
    reasons = st.sampled_from(["PreemptionByScheduler", "DeletionByPodGC", "Other"])
    condition = {"type": "DisruptionTarget", "status": "True", "reason": draw(reasons)}
    return {
        "metadata": metadata,
        "status": status
        | {"phase": draw(st.sampled_from(["Pending", "Running", "Failed", "Succeeded", "Unknown"]))}
        | {"reason": draw(st.sampled_from(["", "Evicted", "NodeLost", "DeadlineExceeded"]))}
        | ({"conditions": [condition]} if draw(st.booleans()) else {}),
    }


@settings(max_examples=200)
@given(pods())
def test_every_pod_can_be_judged(wire: dict[str, Any]) -> None:
    """Whatever its containers, which are the users', have left behind."""
    pod = decode_pod({"metadata": wire["metadata"], "spec": {}}, **wire["status"])
    assert not (pod.failed and pod.succeeded)
    found = failures.failure_of(pod, NOW)
    assert (found is not None) == (pod.failed or (pod.deleting and not pod.succeeded))
    if found is not None:
        assert Failure.parse(json.loads(json.dumps(found.wire()))) == found
        assert found.time is not None


@given(specs(max_hosts=16), st.text("ab-", max_size=40))
def test_all_hosts_of_a_job_agree_on_its_shape(spec: dict[str, Any], middle: str) -> None:
    the_job = job(f"n{middle}n", **spec)
    gang = gang_spec(the_job)
    factory = PodFactory(the_job, gang, PodSettings("r", "l", inject_topology_env=True))
    ranks = []
    for index in range(gang.num_slices):
        pods_of_slice = [factory.worker(index, host, 0).manifest for host in range(gang.shape.hosts)]
        envs = [{e["name"]: e["value"] for e in pod["spec"]["containers"][0]["env"]} for pod in pods_of_slice]
        names = [f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}" for pod in pods_of_slice]
        assert [env["TPU_WORKER_ID"] for env in envs] == [str(host) for host in range(gang.shape.hosts)]
        assert {env["TPU_WORKER_HOSTNAMES"] for env in envs} == {",".join(names)}
        addresses = {env["TPU_PROCESS_ADDRESSES"] for env in envs}
        assert len(addresses) == 1
        assert len(addresses.pop().split(",")) == gang.shape.hosts * gang.processes_per_host
        ranks += [env["NODE_RANK"] for env in envs if "NODE_RANK" in env]
        differing = {key for env in envs for key in env if env[key] != envs[0][key]}
        assert differing <= {"TPU_WORKER_ID", "TPU_OPERATOR_HOST", "NODE_RANK"}
    assert ranks in ([], [str(rank) for rank in range(gang.shape.hosts * gang.num_slices)])


@settings(max_examples=15)
@given(specs())
def test_kubernetes_accepts_the_pods_of_every_job(spec: dict[str, Any]) -> None:
    the_job = job(**spec)
    factory = PodFactory(the_job, gang_spec(the_job), SETTINGS)
    for built in (factory.worker(0, 0, 0), factory.head(0)):
        if built.manifest["spec"].get("containers"):
            kubernetes_validate.validate(built.manifest, "1.37", strict=True)


JUNK = st.recursive(
    SCALARS | st.just("main"),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["name", "value", "limits", "google.com/tpu"]), inner, max_size=3)
    ),
    max_leaves=6,
)
PLACES = [
    ["containers"],
    ["containers", 0],
    ["containers", 0, "name"],
    ["containers", 0, "image"],
    ["containers", 0, "command"],
    ["containers", 0, "env"],
    ["containers", 0, "env", 0, "value"],
    ["containers", 0, "ports"],
    ["containers", 0, "volumeMounts", 0],
    ["containers", 0, "resources"],
    ["containers", 0, "resources", "limits"],
    ["containers", 0, "resources", "requests", "google.com/tpu"],
    ["containers", 1, "env", 0],
    ["containers", 1, "resources"],
    ["initContainers"],
    ["initContainers", 0, "env"],
    ["volumes", 0],
    ["nodeSelector"],
    ["tolerations"],
    ["affinity"],
    ["affinity", "podAffinity", "requiredDuringSchedulingIgnoredDuringExecution"],
    ["hostname"],
    ["subdomain"],
    ["restartPolicy"],
    ["hostNetwork"],
    ["dnsPolicy"],
    ["terminationGracePeriodSeconds"],
]


def _chips(name: str) -> dict[str, Any]:
    amount = {"google.com/tpu": "2"}
    return {
        "name": name,
        "image": "x",
        "env": [{"name": "A", "value": "1"}],
        "ports": [{"containerPort": 80}],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "resources": {"limits": dict(amount), "requests": dict(amount)},
    }


def _template(path: list[Any], junk: Any) -> dict[str, Any]:
    """A template in order, but for what is put into one place."""
    spec: Any = {
        "containers": [_chips("main"), _chips("second")],
        "initContainers": [{"name": "init", "image": "x", "env": []}],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}},
    }
    target = spec
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = junk
    return {"spec": spec}


@settings(max_examples=200)
@given(st.sampled_from(PLACES), JUNK, st.sampled_from(["template", "head"]))
def test_whatever_a_template_holds_the_job_says_why_it_does_not_run(
    path: list[Any], junk: Any, field: str
) -> None:
    fields: dict[str, Any] = {field: _template(path, junk)}
    world = World(job(**fields)).settle()
    assert world.pods or world.condition("Blocked").startswith("True/")

"""TPUInferences against a real API server, scheduler and garbage collector; kwok plays the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.inference.models import HELD, HOSTS, REVISION, SCALER, label, role, uids
from tests.kube import NODE, POD, POD_GROUP, SERVICE, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cluster.conftest import Operator
    from tests.cluster.inference.models import Models
    from tests.kube import Kube

pytestmark = pytest.mark.usefixtures("operator")


def test_a_prefill_and_a_decode_replica_serve(models: Models) -> None:
    models.create()
    status = models.serves()
    assert status["ready"] == "prefill 1/1, decode 1/1"
    assert status["revisions"][0]["servable"] is True
    pools = {group["name"]: group["nodePool"] for group in status["groups"]}
    assert len(set(pools.values())) == 2
    pods = models.pods()
    assert len(pods) == 2 * HOSTS
    serving = [name for name, pod in pods.items() if "llm-d.ai/role" in pod["metadata"]["labels"]]
    assert sorted(name.rsplit("-", 1)[1] for name in serving) == ["0", "0"]
    assert len({label(pod, "revision") for pod in pods.values()}) == 1


def test_pc24_the_service_comes_back_and_goes_with_its_owner(models: Models, kube: Kube) -> None:
    models.create()
    models.serves()
    before = uids(models.pods())
    old = kube.list(SERVICE, models.namespace)[0]["metadata"]["uid"]
    kube.delete(SERVICE, "qwen", models.namespace)
    new = wait_for(lambda: kube.get(SERVICE, "qwen", models.namespace), "the Service to come back")
    assert new["metadata"]["uid"] != old
    assert uids(models.pods()) == before


def test_pc25_names_are_there_before_pods_are_ready(models: Models, kube: Kube) -> None:
    models.create(roles=[role("decode", template=HELD)])
    wait_for(lambda: len(models.pods()) == HOSTS, "the pods")
    service = kube.get(SERVICE, "qwen", models.namespace) or {}
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["clusterIP"] == "None"
    pod = next(iter(models.pods().values()))
    assert (pod["spec"]["subdomain"], pod["spec"]["hostname"]) == ("qwen", pod["metadata"]["name"])


def test_pc13_a_replica_starts_anew_as_a_whole_and_once(models: Models) -> None:
    models.create(roles=[role("decode", 2)])
    models.serves()
    before = models.pods()
    failed = {name for name, pod in before.items() if label(pod, "replica") == "0"}
    for name in sorted(failed)[1:3]:
        models.end_pod(name)
    wait_for(lambda: models.status()["restarts"] == 1, "the restart")
    models.serves()
    after = uids(models.pods())
    changed = {name for name, uid in uids(before).items() if after[name] != uid}
    assert changed == failed
    status = models.status()
    assert (status["restarts"], status["lastFailure"]["cause"]) == (1, "UserError")
    assert {group["attempt"] for group in status["groups"]} == {0, 1}


def test_a_pod_that_somebody_deletes_takes_its_replica_with_it(models: Models, kube: Kube) -> None:
    models.create(roles=[role("decode")])
    models.serves()
    before = uids(models.pods())
    kube.delete(POD, sorted(before)[2], models.namespace)
    wait_for(lambda: models.status()["restarts"] == 1, "the restart")
    models.serves()
    assert not set(before.values()) & set(uids(models.pods()).values())
    assert models.status()["lastFailure"]["cause"] == "PodDeleted"


def test_without_room_for_all_hosts_of_a_replica_none_is_bound(
    models: Models, kube: Kube, make_nodes: Callable[..., list[str]]
) -> None:
    shape = {"tpu-accelerator": "tpu-v5p-slice", "tpu-topology": "2x2x4", "nodepool": "whole"}
    *_, last = make_nodes("whole", HOSTS, **shape)
    kube.patch(NODE, last, "", {"spec": {"unschedulable": True}})
    models.create(roles=[role("decode", tpu={"accelerator": "v5p", "topology": "2x2x4"})])

    def tried() -> str:
        conditions = (
            each
            for group in kube.list(POD_GROUP, models.namespace)
            for each in group.get("status", {}).get("conditions") or ()
        )
        return next((each["message"] for each in conditions if each["status"] == "False"), "")

    assert "minCount (4) cannot be satisfied" in wait_for(tried, "the scheduler to try")
    assert not [name for name, pod in models.pods().items() if pod["spec"].get("nodeName")]
    kube.patch(NODE, last, "", {"spec": {"unschedulable": None}})
    models.serves()


def test_two_whose_names_could_clash_do_not(models: Models) -> None:
    models.create("m", roles=[role("a-decode", type="decode")])
    models.create("m-a", roles=[role("decode")])
    models.serves("m")
    models.serves("m-a")
    assert not models.pods("m").keys() & models.pods("m-a").keys()


def test_a_service_of_somebody_else_is_told_and_left_alone(models: Models, kube: Kube) -> None:
    taken = {"metadata": {"name": "qwen"}, "spec": {"ports": [{"port": 80}]}}
    uid = kube.create(SERVICE, taken, models.namespace)["metadata"]["uid"]
    models.create(roles=[role("decode")])
    told = models.has_condition("Blocked", "True", "CreateRefused")
    assert "Service" in told["message"]
    service = kube.get(SERVICE, "qwen", models.namespace) or {}
    assert service["metadata"]["uid"] == uid
    kube.delete(SERVICE, "qwen", models.namespace)
    models.serves()


def test_pc30_all_that_is_owned_goes_and_nothing_comes_back(
    models: Models, kube: Kube, operator: Operator
) -> None:
    models.create(roles=[role("prefill", scaling="External"), role("decode")])
    models.serves()
    foreign = {"metadata": {"name": "foreign", "labels": {"tpu-operator.dev/inference": "qwen"}}}
    kube.create(SERVICE, foreign | {"spec": {"ports": [{"port": 80}]}}, models.namespace)
    models.change(engine={"type": "vllm", "image": "example/vllm:2"})
    wait_for(lambda: len(models.status()["revisions"]) == 2, "the rollout to begin")
    kube.delete(("tpu-operator.dev/v1alpha1", "TPUInference"), "qwen", models.namespace)

    def left() -> list[str]:
        found = [
            f"{kind[1]}/{each['metadata']['name']}"
            for kind in (POD, SERVICE, REVISION, SCALER)
            for each in kube.list(kind, models.namespace, "tpu-operator.dev/inference=qwen")
        ]
        return [each for each in found if each != "Service/foreign"]

    wait_for(lambda: not left(), "all of it to go")
    assert kube.get(SERVICE, "foreign", models.namespace)
    operator.check()

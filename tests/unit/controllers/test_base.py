"""What changes of objects mean for those that they belong to, on virtual time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.builders import SETTINGS, node, node_pool
from tests.inference import INSTALLATION, inference
from tests.unit.engine.server import Direct
from tpu_operator.api import TPUInference, TPUInferenceStatus
from tpu_operator.controllers.base import Sources
from tpu_operator.controllers.cluster import ClusterState
from tpu_operator.controllers.decode import decode
from tpu_operator.controllers.inference import InferenceController
from tpu_operator.controllers.job import JobController
from tpu_operator.controllers.quotas import QuotaState
from tpu_operator.core.placement import Demand
from tpu_operator.core.plan import Plan
from tpu_operator.core.quota import Use
from tpu_operator.core.snapshot import Custom, Pod, PodGroup, Quota
from tpu_operator.engine.queue import WorkQueue

if TYPE_CHECKING:
    from tpu_operator.core.snapshot import Node
    from tpu_operator.engine.informer import Informer, Key

pytestmark = pytest.mark.looptime

KEY = ("default", "train")
LABELS = {"TPUJob": "tpu-operator.dev/job", "TPUInference": "tpu-operator.dev/inference"}


class Queue(WorkQueue):
    """Counts what is added."""

    def __init__(self) -> None:
        super().__init__("test")
        self.added: list[Key] = []

    def add(self, key: Key) -> None:
        self.added.append(key)


class Cluster:
    """A controller, and what its informers hear."""

    def __init__(self, kind: str) -> None:
        api, self.queue = Direct(), Queue()
        self.state, self.quotas = ClusterState(api, 60.0), QuotaState(api)
        self.sources = Sources(api, self.queue, self.state, self.quotas)
        self.controller: JobController | InferenceController
        if kind == "TPUJob":
            self.controller = JobController(self.sources, SETTINGS)
        else:
            self.controller = InferenceController(self.sources, INSTALLATION)

    def see(self, informer: Informer[Any], item: Any) -> None:
        """An informer lists one more object."""
        known = {(i.metadata.namespace, i.metadata.name): i for i in informer.values()}
        informer._replace(known | {(item.metadata.namespace, item.metadata.name): item})

    def see_nodes(self, *nodes: Node) -> None:
        self.state.nodes._replace({("", item.metadata.name): item for item in nodes})

    def pods(self, *names: str, owner: str = "1", **labels: str) -> dict[Key, Pod]:
        """Pods with the label of the object, whoever owns them."""
        labels = {f"tpu-operator.dev/{key}": value for key, value in labels.items()}
        meta = {
            "namespace": "default",
            "labels": {LABELS[self.controller.kind]: "train"} | labels,
            "ownerReferences": [{"uid": owner, "controller": True}],
        }
        found = [msgspec.convert({"metadata": meta | {"name": name}}, Pod) for name in names]
        return {("default", pod.name): pod for pod in found}


each_kind = pytest.mark.parametrize("kind", LABELS)


def custom(**wire: Any) -> Custom:
    return msgspec.json.decode(msgspec.json.encode(wire), type=Custom)


def waiting(name: str, namespace: str = "default") -> Custom:
    """An object that waits for nodes."""
    status = {"pending": {"reason": "Unschedulable"}}
    return custom(metadata={"name": name, "namespace": namespace}, status=status)


@each_kind
async def test_nodes_that_join_by_the_thousand_wake_each_that_waits_once(kind: str) -> None:
    cluster = Cluster(kind)
    keys = {("default", f"job-{index}"): waiting(f"job-{index}") for index in range(50)}
    cluster.controller.objects._replace(keys)
    cluster.queue.added.clear()
    cluster.see_nodes(*(node(f"node-{index}", f"pool-{index // 4}") for index in range(1000)))
    await asyncio.sleep(0.5)
    assert sorted(cluster.queue.added) == sorted(keys)


@each_kind
async def test_pods_of_others_hold_chips_while_they_are_there(kind: str) -> None:
    cluster = Cluster(kind)
    cluster.see_nodes(*node_pool("a").values())
    (informer,) = cluster.state.strangers
    assert informer not in cluster.controller.informers.values(), "nothing waits for it"
    container = {"name": "c", "resources": {"limits": {"google.com/tpu": "4"}}}
    wire = {
        "metadata": {"name": "x", "namespace": "lab"},
        "spec": {"nodeName": "a-0", "containers": [container]},
    }
    demand = Demand({}, [], hosts=4, chips=4)
    cluster.see(informer, msgspec.convert(wire, Pod))
    assert not cluster.state.pools.fits("a", demand, "mine")
    informer._replace({})
    assert cluster.state.pools.fits("a", demand, "mine")


@each_kind
async def test_what_is_gone_holds_nothing_though_nobody_decides_about_it_any_more(kind: str) -> None:
    """As when another replica has led meanwhile."""
    cluster = Cluster(kind)
    cluster.see_nodes(*node_pool("a").values())
    cluster.see(cluster.controller.objects, waiting("train"))
    cluster.controller._claim(("default", "train"), Plan(reserved={"a": "train-0"}))
    demand = Demand({}, [], hosts=4, chips=4)
    assert not cluster.state.pools.fits("a", demand, "mine")
    cluster.controller.objects._replace({})
    assert cluster.state.pools.fits("a", demand, "mine")


@each_kind
async def test_a_quota_wakes_those_of_its_namespace(kind: str) -> None:
    cluster = Cluster(kind)
    for namespace in ("a", "b"):
        cluster.see(cluster.controller.objects, waiting("train", namespace))
    cluster.queue.added.clear()
    quota = {"metadata": {"name": "pods", "namespace": "b"}}
    cluster.see(cluster.quotas.informer, msgspec.convert(quota, Quota))
    await asyncio.sleep(0.5)
    assert cluster.queue.added == [("b", "train")]


@each_kind
async def test_quota_that_is_claimed_no_more_wakes_those_of_its_namespace(kind: str) -> None:
    cluster = Cluster(kind)
    quota = {"metadata": {"name": "pods", "namespace": "b"}}
    cluster.see(cluster.quotas.informer, msgspec.convert(quota, Quota))
    for namespace in ("a", "b"):
        cluster.see(cluster.controller.objects, waiting("train", namespace))
    cluster.quotas.claim(kind, ("b", "other"), {Use("pods"): 4000})
    await asyncio.sleep(0.5)
    cluster.queue.added.clear()
    cluster.quotas.claim(kind, ("b", "other"), {Use("pods"): 4000})
    await asyncio.sleep(0.5)
    assert cluster.queue.added == []
    cluster.quotas.claim(kind, ("b", "other"), {})
    await asyncio.sleep(0.5)
    assert cluster.queue.added == [("b", "train")]


@each_kind
async def test_a_child_is_a_matter_for_whom_its_label_names(kind: str) -> None:
    cluster = Cluster(kind)
    group = {"name": "g", "namespace": "default", "labels": {LABELS[cluster.controller.kind]: "train"}}
    cluster.see(cluster.controller.pod_groups, msgspec.convert({"metadata": group}, PodGroup))
    assert cluster.queue.added == [KEY]


@each_kind
async def test_pods_that_are_gone_are_remembered_for_their_owner(kind: str) -> None:
    """Whoever can label pods may label any number of them."""
    cluster = Cluster(kind)
    meta = {"name": "train", "namespace": "default", "uid": "1"}
    cluster.see(cluster.controller.objects, custom(metadata=meta))
    ours, others = cluster.pods("train-0-0"), cluster.pods(*(f"o-{n}" for n in range(100)), owner="2")
    cluster.controller.pods._replace(ours | others)
    cluster.controller.pods._replace({})
    assert set(cluster.controller._gone[KEY]) == {"train-0-0"}
    cluster.controller.pods._replace(ours)
    assert not cluster.controller._gone
    cluster.controller.pods._replace({})
    cluster.controller.forget(KEY)
    assert not cluster.controller._gone


async def test_pods_of_a_job_that_is_over_are_not_remembered() -> None:
    """A job may be over for long."""
    cluster = Cluster("TPUJob")
    meta = {"name": "train", "namespace": "default", "uid": "1", "resourceVersion": "1"}
    cluster.see(cluster.controller.objects, custom(metadata=meta))
    pods = cluster.pods("train-0-0")
    cluster.controller.pods._replace(pods)
    cluster.controller.pods._replace({})
    over = custom(metadata=meta | {"resourceVersion": "2"}, status={"completionTime": "now"})
    cluster.see(cluster.controller.objects, over)
    assert not cluster.controller._gone
    cluster.controller.pods._replace(pods)
    cluster.controller.pods._replace({})
    assert not cluster.controller._gone


async def test_pods_of_replicas_that_were_taken_down_are_forgotten() -> None:
    """Their names never come back: a revision is in each."""
    cluster = Cluster("TPUInference")
    groups = [{"name": "decode-r2-0", "role": "decode", "revision": "r2", "index": 0}]
    item = inference()
    item = item.model_copy(update={"status": TPUInferenceStatus.parse({"groups": groups})})
    for revision in ("r1", "r2"):
        pods = cluster.pods(f"train-{revision}", role="decode", revision=revision, replica="0")
        cluster.controller._gone.setdefault(KEY, {}).update({pod.name: pod for pod in pods.values()})
    assert isinstance(cluster.controller, InferenceController)
    assert set(cluster.controller._gone_from(item, KEY)) == {"train-r2"}
    assert set(cluster.controller._gone[KEY]) == {"train-r2"}


async def test_quota_that_one_object_is_about_to_use_is_not_there_for_those_of_other_kinds() -> None:
    quotas = QuotaState(Direct())
    quota = msgspec.convert({"metadata": {"name": "pods", "namespace": "default"}}, Quota)
    quotas.informer._replace({("default", "pods"): quota})
    quotas.claim("TPUJob", KEY, {Use("pods"): 4000})
    assert quotas.view("TPUInference", KEY).claimed == {Use("pods"): 4000}
    assert quotas.view("TPUJob", KEY).claimed == {}
    assert quotas.view("TPUJob", ("other", "train")).claimed == {}
    quotas.claim("TPUJob", KEY, {})
    assert quotas.view("TPUInference", KEY).claimed == {}


def test_what_somebody_has_promoted_is_seen() -> None:
    promoted = {"tpu-operator.dev/promoted": "3/1"}
    wire = inference().wire()
    seen = custom(**wire | {"metadata": wire["metadata"] | {"annotations": promoted | {"other": "x"}}})
    assert decode(TPUInference, seen).metadata.annotations == promoted

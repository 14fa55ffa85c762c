"""What changes of objects mean for jobs, on virtual time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.builders import SETTINGS, node
from tests.unit.engine.server import Direct
from tpu_operator.controllers.cluster import ClusterState
from tpu_operator.controllers.job import JobController
from tpu_operator.core.snapshot import Custom, Pod, Quota
from tpu_operator.engine.queue import WorkQueue

if TYPE_CHECKING:
    from tpu_operator.core.snapshot import Node
    from tpu_operator.engine.informer import Informer, Key

pytestmark = pytest.mark.looptime

KEY = ("default", "train")


class Queue(WorkQueue):
    """Counts what is added."""

    def __init__(self) -> None:
        super().__init__("test")
        self.added: list[Key] = []

    def add(self, key: Key) -> None:
        self.added.append(key)


class Cluster:
    """A controller, and what its informers hear."""

    def __init__(self) -> None:
        api, self.queue = Direct(), Queue()
        self.state = ClusterState(api, 60.0)
        self.controller = JobController(api, self.queue, SETTINGS, self.state)

    def see(self, informer: Informer[Any], item: Any) -> None:
        """An informer lists one more object."""
        known = {(i.metadata.namespace, i.metadata.name): i for i in informer.values()}
        informer._replace(known | {(item.metadata.namespace, item.metadata.name): item})

    def see_nodes(self, *nodes: Node) -> None:
        self.state.nodes._replace({("", item.metadata.name): item for item in nodes})


def waiting(name: str, namespace: str = "default") -> Custom:
    """A job that waits for nodes."""
    wire = {
        "metadata": {"name": name, "namespace": namespace},
        "status": {"pending": {"reason": "Unschedulable"}},
    }
    return msgspec.json.decode(msgspec.json.encode(wire), type=Custom)


async def test_nodes_that_join_by_the_thousand_wake_each_job_that_waits_once() -> None:
    cluster = Cluster()
    jobs = {("default", f"job-{index}"): waiting(f"job-{index}") for index in range(50)}
    cluster.controller.jobs._replace(jobs)
    cluster.queue.added.clear()
    cluster.see_nodes(*(node(f"node-{index}", f"pool-{index // 4}") for index in range(1000)))
    await asyncio.sleep(0.5)
    assert sorted(cluster.queue.added) == sorted(jobs)


async def test_a_quota_wakes_the_jobs_of_its_namespace() -> None:
    cluster = Cluster()
    for namespace in ("a", "b"):
        cluster.see(cluster.controller.jobs, waiting("train", namespace))
    cluster.queue.added.clear()
    quota = {"metadata": {"name": "pods", "namespace": "b"}}
    cluster.see(cluster.controller.quotas, msgspec.convert(quota, Quota))
    await asyncio.sleep(0.5)
    assert cluster.queue.added == [("b", "train")]


async def test_pods_that_are_gone_are_remembered_for_their_job_and_its_time() -> None:
    """A job may be long, and whoever can label pods may label any number of them."""
    cluster = Cluster()
    job = {"metadata": {"name": "train", "namespace": "default", "uid": "1", "resourceVersion": "1"}}
    cluster.controller.jobs._replace({KEY: msgspec.json.decode(msgspec.json.encode(job), type=Custom)})
    pods = [labelled("train-0-0", "1"), *(labelled(f"other-{index}", "2") for index in range(100))]
    cluster.controller.pods._replace({("default", pod.name): pod for pod in pods})
    cluster.controller.pods._replace({})
    assert set(cluster.controller._gone[KEY]) == {"train-0-0"}
    over = {"metadata": job["metadata"] | {"resourceVersion": "2"}, "status": {"completionTime": "now"}}
    cluster.controller.jobs._replace({KEY: msgspec.json.decode(msgspec.json.encode(over), type=Custom)})
    assert not cluster.controller._gone
    cluster.controller.pods._replace({("default", "train-0-0"): pods[0]})
    cluster.controller.pods._replace({})
    assert not cluster.controller._gone


def labelled(name: str, owner: str) -> Pod:
    """A pod with the label of the job, whoever owns it."""
    meta = {
        "name": name,
        "namespace": "default",
        "labels": {"tpu-operator.dev/job": "train"},
        "ownerReferences": [{"uid": owner, "controller": True}],
    }
    return msgspec.convert({"metadata": meta}, Pod)

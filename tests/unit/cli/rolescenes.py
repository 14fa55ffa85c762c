"""TPUInferences in the states that people ask about, made by the operator's own decisions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from tests.builders import NOW, RUNNING, STARTING, node_pool, report, stamp, terminated
from tests.inference import InferenceWorld, image, inference, role
from tests.unit.cli.scenes import CREATED
from tpu_operator.cli.follow import Served
from tpu_operator.core import names
from tpu_operator.core.snapshot import Pod

ROLES = [role("prefill", 2), role("decode", 1)]
POOLS = {name: node for letter in "abcdefg" for name, node in node_pool(f"pool-{letter}").items()}


def seen(world: InferenceWorld) -> Served:
    """What a command sees of a world."""
    metadata = world.inference.metadata.model_copy(update={"creation_timestamp": CREATED})
    return Served(world.inference.model_copy(update={"metadata": metadata}), list(world.pods.values()))


def serving(**spec: Any) -> InferenceWorld:
    """Two prefill and one decode replica, all ready; each in a node pool of its own."""
    return run(InferenceWorld(inference(**{"roles": ROLES} | spec), nodes=dict(POOLS)))


def run(world: InferenceWorld, status: dict[str, Any] | None = None, limit: int = 60) -> InferenceWorld:
    """Let pods start on the nodes of their pools, and end, until nothing happens any more.

    Args:
        world: what there is.
        status: what kubelets say of pods that they start; default: that they are ready.
        limit: rounds.
    """
    for _ in range(limit):
        world.settle().vanish()
        new = [pod for pod in world.settle().pods.values() if not pod.spec.node_name]
        if not new:
            return world
        for pod in new:
            start(world, pod, RUNNING if status is None else status)
    raise AssertionError("no end")


def start(world: InferenceWorld, pod: Pod, status: dict[str, Any]) -> None:
    """Have a pod on the node of its pool that is its host's."""
    wire = msgspec.to_builtins(pod)
    pool = pod.spec.node_selector.pool or "pool"
    wire["metadata"]["creationTimestamp"] = stamp(NOW)
    wire["spec"]["nodeName"] = f"{pool}-{pod.metadata.labels[names.LABEL_HOST]}"
    wire["status"] = status
    world.pods[pod.name] = msgspec.convert(wire, Pod)


def rolling(**spec: Any) -> InferenceWorld:
    """A rollout of which host 3 of the new decode replica is not ready."""
    world = run(serving(**spec).patch_spec(engine=image("2")), STARTING)
    last = f"qwen-decode-{world.status.updated_revision}-0-3"
    for name, pod in list(world.pods.items()):
        if not pod.ready and name != last:
            start(world, pod, RUNNING)
    return world.settle()


def held() -> InferenceWorld:
    """A rollout at the first step of its canary."""
    canary = {"canary": {"steps": [{"percent": 25}, {"percent": 50, "pauseSeconds": 600}]}}
    return run(serving(rollout=canary).patch_spec(engine=image("2")))


def failing() -> InferenceWorld:
    """A rollout whose new decode replica has failed; host 2 was first."""
    return _failed(rolling(), "no such weights")


def broken_down() -> InferenceWorld:
    """A replica that served and has failed."""
    return _failed(serving(), "boom")


def _failed(world: InferenceWorld, error: str) -> InferenceWorld:
    told = report(error=error, slice=0, host=2, attempt=0, log=f"loading\n{error}")
    world.keep_deleted = True
    pod = world.pods[f"qwen-decode-{world.status.updated_revision}-0-2"]
    start(world, pod, terminated(1, told))
    world.now = NOW + timedelta(seconds=2)
    return world.settle()

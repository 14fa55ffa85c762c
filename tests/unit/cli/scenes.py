"""Jobs in the states that people ask about, made by the operator's own decisions."""

from __future__ import annotations

from datetime import timedelta
from io import BytesIO, TextIOWrapper
from typing import TYPE_CHECKING, Any

import msgspec

from tests.builders import NOW, World, job, node_pool, report, stamp, terminated
from tpu_operator.cli.follow import Seen
from tpu_operator.cli.text import Style, Terminal
from tpu_operator.core.snapshot import Pod

if TYPE_CHECKING:
    from datetime import datetime

PLAIN = Style()
COLOURED = Style(colour=True)
LATER = NOW + timedelta(minutes=5)
CREATED = NOW - timedelta(seconds=20)
LOG = "step 812\nTraceback (most recent call last):\nFloatingPointError: the loss is not a number"


class Screen(Terminal):
    """A terminal whose text can be read."""

    def __init__(self, *, interactive: bool = False, encoding: str = "utf-8", **environment: str) -> None:
        self._bytes = BytesIO()
        self._encoding = encoding
        out = TextIOWrapper(self._bytes, encoding=encoding)
        super().__init__(out, environment, interactive=interactive)

    @property
    def text(self) -> str:
        return self._bytes.getvalue().decode(self._encoding)


def seen(world: World) -> Seen:
    """What a command sees of a world."""
    metadata = world.job.metadata.model_copy(update={"creation_timestamp": CREATED})
    return Seen(world.job.model_copy(update={"metadata": metadata}), list(world.pods.values()))


def on_nodes(world: World, pool: str = "pool-a", at: datetime = NOW) -> World:
    """Pods on the nodes of a pool, made at a time."""
    for number, (name, pod) in enumerate(sorted(world.pods.items())):
        wire = msgspec.to_builtins(pod)
        wire["metadata"]["creationTimestamp"] = stamp(at)
        wire["spec"]["nodeName"] = f"{pool}-{number}"
        world.pods[name] = msgspec.convert(wire, Pod)
    return world


def running(**spec: Any) -> World:
    """A job that runs in pool-a."""
    world = World(job(**spec), nodes=node_pool("pool-a") | node_pool("pool-b"))
    return on_nodes(world.run())


def in_use() -> World:
    """A job for which there is no free node pool."""
    other = msgspec.json.decode(
        msgspec.json.encode(
            {
                "metadata": {
                    "name": "big-0-0",
                    "namespace": "team-b",
                    "labels": {"tpu-operator.dev/job": "big", "tpu-operator.dev/slice-id": "other-0"},
                },
                "spec": {
                    "nodeName": "pool-a-0",
                    "containers": [{"name": "main", "resources": {"limits": {"google.com/tpu": "4"}}}],
                },
                "status": {"phase": "Running"},
            }
        ),
        type=Pod,
    )
    world = World(job(), nodes=node_pool("pool-a"), others=[other]).settle()
    waits = {
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/4 nodes are available: 4 Insufficient google.com/tpu.",
                "lastTransitionTime": stamp(NOW),
            }
        ]
    }
    for name in world.pods:
        world.set_pod(name, node="", **waits)
    return world.settle()


def failed() -> World:
    """A job that has used up its restarts; host 2 failed first, host 0 after it."""
    world = running(failurePolicy={"maxRestarts": 0, "coalesceSeconds": 0})
    first = report(error="FloatingPointError: the loss is not a number", slice=0, host=2, attempt=0, log=LOG)
    later = report(at=NOW + timedelta(seconds=1), error="lost a peer", slice=0, host=0, attempt=0)
    world.pods["train-0-2"] = _ended(world.pods["train-0-2"], first)
    world.pods["train-0-0"] = _ended(world.pods["train-0-0"], later)
    world.now = NOW + timedelta(seconds=2)
    return world.settle()


def _ended(pod: Pod, message: str) -> Pod:
    wire = msgspec.to_builtins(pod)
    wire["status"] = terminated(1, message)
    return msgspec.convert(wire, Pod)


def restarted() -> World:
    """A job that has restarted once and runs again."""
    world = running()
    world.pods["train-0-2"] = _ended(
        world.pods["train-0-2"], report(error="the loss is not a number", attempt=0)
    )
    world.now = NOW + timedelta(seconds=2)
    world.settle()
    return on_nodes(world.run(), at=world.now)


def starting() -> World:
    """A job of which one host cannot have its image, and one is at the gate."""
    world = running()
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(NOW)}
    unready = {"type": "Ready", "status": "False", "lastTransitionTime": stamp(NOW)}
    world = World(job(), nodes=node_pool("pool-a")).settle()
    gate = {"name": "main", "ready": False, "state": {"running": {"startedAt": stamp(NOW)}}}
    for name in world.pods:
        world.set_pod(name, phase="Running", conditions=[scheduled, unready], containerStatuses=[gate])
    pull = {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}}
    world.set_pod("train-0-1", phase="Pending", conditions=[scheduled, unready], containerStatuses=[pull])
    return on_nodes(world.settle())


def event(reason: str, note: str, *, about: str = "Pod/train-0-1", **more: Any) -> dict[str, Any]:
    """An event on the wire."""
    kind, _, name = about.partition("/")
    return {
        "metadata": {"name": f"{name}.1", "creationTimestamp": stamp(NOW)},
        "type": "Warning",
        "reason": reason,
        "note": note,
        "eventTime": stamp(NOW),
        "regarding": {"kind": kind, "name": name},
    } | more

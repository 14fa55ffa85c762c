"""An API server that answers as a test says, and a kind of objects to reconcile on it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tpu_operator.engine.applier import Applier, Target
from tpu_operator.engine.client import ApiServer
from tpu_operator.engine.events import Recorder, Regarding
from tpu_operator.engine.queue import WorkQueue
from tpu_operator.engine.reconciler import Reconciler
from tpu_operator.engine.resources import TPUJOBS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime

    from tpu_operator.core.plan import Manifest, Plan
    from tpu_operator.engine.informer import Key

KEY = ("default", "train")


@dataclass(frozen=True)
class Call:
    """A request, and when it came."""

    at: float
    method: str
    path: str
    body: Mapping[str, Any]


class Scripted(ApiServer):
    """Answers every request with its body, unless the test has another answer.

    Args:
        answer: called with each request; may raise or wait.
    """

    def __init__(self, answer: Callable[[Call], Awaitable[bytes | None]]) -> None:
        self.write_time = lambda: 10.0
        self._given_up = float("-inf")
        self.answer = answer
        self.calls: list[Call] = []

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        timeout: float = 10.0,  # noqa: ASYNC109
        **_: Any,
    ) -> bytes:
        call = Call(asyncio.get_running_loop().time(), method, path, body or {})
        self.calls.append(call)
        async with asyncio.timeout(timeout):
            answer = await self.answer(call)
        return json.dumps(body).encode() if answer is None else answer

    def made(self, resource: str, namespace: str = KEY[0]) -> list[Call]:
        """The requests that create something."""
        return [c for c in self.calls if c.method == "POST" and c.path.endswith(f"/{namespace}/{resource}")]

    def statuses(self) -> list[Any]:
        """The statuses that were written."""
        return [call.body["status"] for call in self.calls if call.path.endswith("/status")]


@dataclass
class Kind:
    """Objects whose decisions are the test's."""

    decision: Callable[[Key, str], Plan]
    """What is decided about an object, from its key and what the server has refused."""
    uids: dict[Key, str] = field(default_factory=lambda: {KEY: "1"})
    """The objects that there are."""
    gone: list[Key] = field(default_factory=list)
    version: str = "1"
    """Resource version that the copy of all objects shows."""
    generation: int = 1
    """Generation of all specs."""
    kind = "TPUJob"
    informers: Mapping[str, Any] = field(default_factory=dict)

    def all_keys(self) -> list[Key]:
        return list(self.uids)

    def target(self, key: Key) -> Target | None:
        if key not in self.uids:
            return None
        regarding = Regarding("tpu-operator.dev/v1alpha1", self.kind, *key, self.uids[key])
        return Target(TPUJOBS, regarding, self.version, self.generation)

    def forget(self, key: Key) -> None:
        self.gone.append(key)

    def decide(self, key: Key, now: datetime, refusal: str) -> Plan:
        return self.decision(key, refusal)


def pod(namespace: str = KEY[0], name: str = "train-0-0") -> Manifest:
    """A pod to create."""
    owner = {"kind": "TPUJob", "name": "train", "uid": "1", "controller": True}
    meta = {"namespace": namespace, "name": name, "labels": {}, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta}


async def reconcile(
    kind: Kind,
    server: Scripted,
    seconds: float,
    script: Callable[[WorkQueue], Awaitable[None]] = lambda _: asyncio.sleep(0),
    workers: int = 64,
) -> None:
    """Reconcile for some time, while a script plays."""
    queue = WorkQueue(share=workers // 2)
    recorder = Recorder(server, "test")
    reconciler = Reconciler(kind, queue, Applier(server, recorder))
    events = asyncio.create_task(recorder.run())
    work = asyncio.create_task(reconciler.run(workers))
    await asyncio.gather(asyncio.sleep(seconds), script(queue))
    assert not work.done()
    for task in (work, events):
        task.cancel()
    await asyncio.gather(work, events, return_exceptions=True)

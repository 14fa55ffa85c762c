"""A job or a TPUInference and its pods as they are, and again whenever something of them has changed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from tpu_operator.api import TPUJob
from tpu_operator.cli.server import read_inference, read_job
from tpu_operator.core import names
from tpu_operator.core.snapshot import Custom, Pod
from tpu_operator.engine.informer import Informer
from tpu_operator.engine.resources import INFERENCES, PODS, TPUJOBS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from tpu_operator.api import TPUInference
    from tpu_operator.cli.command import Target
    from tpu_operator.cli.server import Object, Server
    from tpu_operator.engine.resources import Resource

TOGETHER: Final = 0.1
"""Seconds in which changes are told as one: those of a gang come in crowds."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A job as it is.

    Attributes:
        job: the TPUJob.
        pods: its pods, of any attempt.
    """

    job: TPUJob
    pods: Sequence[Pod] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class Served:
    """A TPUInference as it is.

    Attributes:
        inference: the TPUInference.
        pods: its pods, of any revision and attempt.
    """

    inference: TPUInference
    pods: Sequence[Pod] = field(default_factory=tuple)


S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Kind(Generic[S]):
    """What can be followed.

    Attributes:
        resource: its resource.
        label: by which its pods are found.
        seen: from the wire and its pods to what is told of it.
    """

    resource: Resource
    label: str
    seen: Callable[[Object, Sequence[Pod]], S]


JOBS: Final = Kind(TPUJOBS, names.LABEL_JOB, lambda wire, pods: Seen(read_job(wire), pods))
SERVED: Final = Kind(INFERENCES, names.LABEL_INFERENCE, lambda wire, pods: Served(read_inference(wire), pods))


async def look(server: Server, target: Target) -> Seen | Served:
    """A job or a TPUInference and its pods now.

    Raises:
        CommandError: there is none of that name.
    """
    found = await server.find(target)
    pods = await server.pods(found)
    return Seen(found, pods) if isinstance(found, TPUJob) else Served(found, pods)


class Follower(Generic[S]):
    """Tells of an object until it is deleted. Use `follow` or `follow_inference` to get one.

    Attributes:
        name: kind and name of it, for people.
    """

    def __init__(self, server: Server, kind: Kind[S], name: str, *, pods: bool) -> None:
        self.name = f"{kind.resource.kind} {name}"
        self._kind = kind
        self._key = (server.namespace, name)
        self._changed = asyncio.Event()
        self._objects = Informer(
            server.api, kind.resource, Custom, namespace=server.namespace, fields=f"metadata.name={name}"
        )
        self._pods = Informer(
            server.api, PODS, Pod, namespace=server.namespace, selector=f"{kind.label}={name}"
        )
        self._informers: list[Informer[Any]] = [self._objects, *([self._pods] if pods else [])]
        self._objects.listen(lambda *_: self._changed.set())
        self._pods.listen(lambda *_: self._changed.set())

    def start(self) -> list[asyncio.Task[None]]:
        """Begin to watch."""
        return [asyncio.create_task(informer.run()) for informer in self._informers]

    async def next(self, within: float | None = None) -> S | None:
        """The object after its next change, or the first time at once; None when it is deleted.

        Raises:
            TimeoutError: nothing has changed within that many seconds.
        """
        async with asyncio.timeout(within):
            for informer in self._informers:
                await informer.synced.wait()
            if self.now() is None:
                return None
            await self._changed.wait()
        await asyncio.sleep(TOGETHER)
        self._changed.clear()
        return self.now()

    def now(self) -> S | None:
        """The object as it is known; None if it is deleted."""
        found = self._objects.get(self._key)
        if found is None:
            return None
        pods = [pod for pod in self._pods.values() if pod.metadata.owner_uid == found.metadata.uid]
        # By way of the wire: what the informer keeps of an object is its own matter.
        return self._kind.seen(msgspec.json.decode(msgspec.json.encode(found)), pods)


def follow(server: Server, name: str, *, pods: bool = True) -> AbstractAsyncContextManager[Follower[Seen]]:
    """Watch a job, and its pods if wanted, which has been seen to be there."""
    return _follow(Follower(server, JOBS, name, pods=pods))


def follow_inference(
    server: Server, name: str, *, pods: bool = True
) -> AbstractAsyncContextManager[Follower[Served]]:
    """Watch a TPUInference, and its pods if wanted, which has been seen to be there."""
    return _follow(Follower(server, SERVED, name, pods=pods))


@asynccontextmanager
async def _follow(follower: Follower[S]) -> AsyncIterator[Follower[S]]:
    tasks = follower.start()
    try:
        yield follower
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

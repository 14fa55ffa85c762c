"""A job and its pods as they are, and again whenever something of them has changed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tpu_operator.cli.server import read_job
from tpu_operator.core import names
from tpu_operator.core.snapshot import Custom, Pod
from tpu_operator.engine.informer import Informer
from tpu_operator.engine.resources import PODS, TPUJOBS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tpu_operator.api import TPUJob
    from tpu_operator.cli.server import Server

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


async def look(server: Server, name: str) -> Seen:
    """A job and its pods now.

    Raises:
        CommandError: there is no such job.
    """
    job = await server.job(name)
    return Seen(job, await server.pods(job))


class Follower:
    """Tells of a job until it is deleted. Use `follow` to get one."""

    def __init__(self, server: Server, name: str, *, pods: bool) -> None:
        self._key = (server.namespace, name)
        self._changed = asyncio.Event()
        self._jobs = Informer(
            server.api, TPUJOBS, Custom, namespace=server.namespace, fields=f"metadata.name={name}"
        )
        self._pods = Informer(
            server.api, PODS, Pod, namespace=server.namespace, selector=f"{names.LABEL_JOB}={name}"
        )
        self._informers: list[Informer[Any]] = [self._jobs, *([self._pods] if pods else [])]
        self._jobs.listen(lambda *_: self._changed.set())
        self._pods.listen(lambda *_: self._changed.set())

    def start(self) -> list[asyncio.Task[None]]:
        """Begin to watch."""
        return [asyncio.create_task(informer.run()) for informer in self._informers]

    async def next(self, within: float | None = None) -> Seen | None:
        """The job after its next change, or the first time at once; None when it is deleted.

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

    def now(self) -> Seen | None:
        """The job as it is known; None if it is deleted."""
        found = self._jobs.get(self._key)
        if found is None:
            return None
        # By way of the wire: what the informer keeps of an object is its own matter.
        job = read_job(msgspec.json.decode(msgspec.json.encode(found)))
        pods = [pod for pod in self._pods.values() if pod.metadata.owner_uid == job.metadata.uid]
        return Seen(job, pods)


@asynccontextmanager
async def follow(server: Server, name: str, *, pods: bool = True) -> AsyncIterator[Follower]:
    """Watch a job, and its pods if wanted, which has been seen to be there."""
    follower = Follower(server, name, pods=pods)
    tasks = follower.start()
    try:
        yield follower
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""TPUJobs."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from tpu_operator.api import TPUJob
from tpu_operator.cli import change, logs
from tpu_operator.cli.choose import Choice
from tpu_operator.cli.follow import follow
from tpu_operator.cli.lines import Line, merged
from tpu_operator.cli.stream import Streams
from tpu_operator.client.kinds import JOBS
from tpu_operator.client.objects import AsyncObjects
from tpu_operator.client.reading import query, some
from tpu_operator.core import names

if TYPE_CHECKING:
    import builtins
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from tpu_operator.cli.server import Server


class AsyncJobs(AsyncObjects[TPUJob]):
    """The TPUJobs of one namespace.

    Goals of `wait`: running, succeeded, failed, finished, suspended.
    """

    def __init__(self, server: Server) -> None:
        super().__init__(server, JOBS)

    async def logs(  # noqa: PLR0913 - each narrows what is read
        self,
        name: str,
        *,
        ranks: Sequence[int] = (),
        slices: Sequence[int] = (),
        follow: bool = False,
        tail: int | None = None,
        since: int | None = None,
        container: str = names.MAIN_CONTAINER,
    ) -> AsyncGenerator[Line, None]:
        """What the hosts of a job have written, in the order of time.

        A host whose log cannot be had has a line without a time that says why.

        Args:
            name: the job.
            ranks: only these hosts, counted over all slices as NODE_RANK counts them.
            slices: only these slices.
            follow: go on as they write, and after restarts, until the job has ended.
            tail: only the last lines of each host.
            since: only what is newer than so many seconds.
            container: of the pods.

        Raises:
            NotFoundError: there is no such job, or it has no such pods.
        """
        job = await self.get(name)
        asked = query(container, tail, since)
        with self._told(name):
            chosen = Choice(tuple(ranks), tuple(slices)).pods(job)
            if follow:
                async with aclosing(self._streams(name, chosen, asked).lines()) as lines:
                    async for line in lines:
                        yield line
                return
            there = {pod.name for pod in await self._server.pods(job)}
            found = await logs.read(self._server, [pod for pod in chosen if pod in there], asked)
            for line in merged(some(found)):
                yield line

    def _streams(self, name: str, chosen: Sequence[str], asked: Mapping[str, str]) -> Streams:
        return Streams(self._server, follow(self._server, name), lambda pod: pod.name in chosen, asked)

    async def suspend(self, name: str) -> TPUJob:
        """Stop the pods of a job and keep the job; nothing happens where it is suspended already."""
        return await self._suspend(name, suspend=True)

    async def resume(self, name: str) -> TPUJob:
        """Let a suspended job run."""
        return await self._suspend(name, suspend=False)

    async def _suspend(self, name: str, *, suspend: bool) -> TPUJob:
        job = await self.get(name)
        with self._told(name):
            await change.set_suspend(self._server, job, suspend=suspend)
        return await self.get(name)

    async def restart(self, name: str, slices: Sequence[int] = ()) -> builtins.list[str]:
        """Start all processes of a job anew, in new pods; nothing is charged to maxRestarts.

        Args:
            name: the job.
            slices: only these, where `restartScope` is Slice.

        Returns:
            Names of the pods that were deleted for it: one for each gang, whose others follow.
        """
        job = await self.get(name)
        with self._told(name):
            return await change.restart_job(self._server, job, slices)

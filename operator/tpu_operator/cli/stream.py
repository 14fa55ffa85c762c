"""Logs as they are written: of all pods that a job has, and of those that follow them after a restart."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias

import aiohttp

from tpu_operator.cli.follow import Seen
from tpu_operator.cli.lines import Line, missing, parse
from tpu_operator.cli.tree import ENDED
from tpu_operator.engine.client import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
    from contextlib import AbstractAsyncContextManager

    from tpu_operator.cli.follow import Follower, Served
    from tpu_operator.cli.server import Server
    from tpu_operator.core.snapshot import Pod

    Following: TypeAlias = (
        AbstractAsyncContextManager[Follower[Seen]] | AbstractAsyncContextManager[Follower[Served]]
    )

SILENCE: Final = 86400.0
"""Seconds after which a log that nothing is written to counts as lost."""
AGAIN: Final = 1.0
"""Seconds until a log that has broken off is asked for again."""
DENIED: Final = frozenset({401, 403})
"""Answers to those who may not read logs at all."""
ROOM: Final = 4096
"""Lines that wait to be shown; programs that write faster than the terminal have to wait."""

Life = tuple[str, int]
"""One life of a container: UID of its pod, and restarts before."""


class Streams:
    """Lines of hosts, until their job has ended, or what they belong to is deleted.

    Args:
        server: where to read.
        following: tells of the job or the TPUInference, and its pods.
        wanted: whether a pod is one of those that are wanted.
        query: parameters of the requests.

    Attributes:
        failed: whether the job has ended badly, once all lines were read.
    """

    def __init__(
        self, server: Server, following: Following, wanted: Callable[[Pod], bool], query: Mapping[str, str]
    ) -> None:
        self._server = server
        self._following = following
        self._wanted = wanted
        self._query = dict(query)
        self._lines: asyncio.Queue[Line | None] = asyncio.Queue(ROOM)
        self._open: dict[Life, asyncio.Task[None]] = {}
        self._running: dict[str, Life] = {}
        self._last: dict[Life, str] = {}
        self._denied: ApiError | None = None
        self.failed = False

    async def lines(self) -> AsyncGenerator[Line, None]:
        """The lines as they come.

        Raises:
            ApiError: the caller may not read them.
        """
        watching = asyncio.create_task(self._watch())
        try:
            while (line := await self._lines.get()) is not None:
                yield line
            if self._denied is not None:
                raise self._denied
            await watching
        finally:
            tasks = [watching, *self._open.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        """Open a log with every container that starts; return when the job has ended and all is read."""
        try:
            async with self._following as follower:
                while (seen := await follower.next()) is not None:
                    self._look_at(seen.pods)
                    phase = str(seen.job.status.phase) if isinstance(seen, Seen) else ""
                    self.failed = phase == "Failed"
                    if phase in ENDED:
                        break
            self._running = {}
            await asyncio.gather(*self._open.values())
        finally:
            await self._lines.put(None)

    def _look_at(self, pods: Iterable[Pod]) -> None:
        """Open logs that are new, and take note of which containers run."""
        container, self._running = self._query["container"], {}
        for pod in pods:
            statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
            status = next((one for one in statuses if one.name == container), None)
            if not self._wanted(pod) or status is None:
                continue
            life = (pod.metadata.uid, status.restart_count)
            if status.state.running:
                self._running[pod.name] = life
            if life not in self._open and (status.state.running or status.state.terminated):
                self._open[life] = asyncio.create_task(self._read(pod.name, life))

    async def _read(self, pod: str, life: Life) -> None:
        """Read a log to the end of its container; a connection that ends earlier is made again."""
        while True:
            try:
                await self._read_on(pod, life)
            except ApiError as error:
                if error.status in DENIED:
                    self._denied = error
                    await self._lines.put(None)
                    return
                if error.answered:
                    await self._lines.put(missing(pod, error.message))
                    return
            except (aiohttp.ClientError, TimeoutError, OSError):
                pass
            if self._running.get(pod) != life:
                return
            await asyncio.sleep(AGAIN)

    async def _read_on(self, pod: str, life: Life) -> None:
        """Read what is newer than the last line that was read."""
        after = self._last.get(life, "")
        since = {"sinceTime": after, "container": self._query["container"], "timestamps": "true"}
        async with self._server.follow_log(pod, SILENCE, **(since if after else self._query)) as stream:
            async for raw in _raw_lines(stream):
                line = parse(pod, raw.decode(errors="replace"))
                if not line.time or line.time > after:
                    self._last[life] = line.time or after
                    await self._lines.put(line)


async def _raw_lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length, the last one even if it does not end."""
    rest = b""
    async for chunk in stream.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest

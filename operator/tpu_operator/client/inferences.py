"""TPUInferences."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from tpu_operator.api import TPUInference
from tpu_operator.cli import logs
from tpu_operator.cli.command import CommandError, Exit
from tpu_operator.cli.follow import follow_inference
from tpu_operator.cli.lines import Line, merged
from tpu_operator.cli.stream import Streams
from tpu_operator.client.kinds import INFERENCE
from tpu_operator.client.objects import AsyncObjects
from tpu_operator.client.reading import query, some
from tpu_operator.core import names

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from tpu_operator.cli.server import Server
    from tpu_operator.core.snapshot import Pod


class AsyncInferences(AsyncObjects[TPUInference]):
    """The TPUInferences of one namespace.

    Goals of `wait`: serving (a revision has a ready replica of every role), complete (all replicas are of the
    newest revision, and ready; out of reach once the rollout is overdue or rejected), stopped.
    """

    def __init__(self, server: Server) -> None:
        super().__init__(server, INFERENCE)

    async def logs(  # noqa: PLR0913 - each narrows what is read
        self,
        name: str,
        *,
        role: str = "",
        replica: str = "",
        follow: bool = False,
        tail: int | None = None,
        since: int | None = None,
        container: str = names.MAIN_CONTAINER,
    ) -> AsyncGenerator[Line, None]:
        """What the hosts have written, in the order of time.

        A host whose log cannot be had has a line without a time that says why.

        Args:
            name: the TPUInference.
            role: only hosts of this role.
            replica: only hosts of this replica, by its name in `status.groups`.
            follow: go on as they write, by replicas that come later too, until the object is deleted.
            tail: only the last lines of each host.
            since: only what is newer than so many seconds.
            container: of the pods.

        Raises:
            NotFoundError: there is no such object, or it has no such pods.
        """
        inference = await self.get(name)
        asked = query(container, tail, since)

        def wanted(pod: Pod) -> bool:
            return role in {"", _label(pod, names.LABEL_ROLE)} and replica in {"", replica_of(pod)}

        with self._told(name):
            if follow:
                streams = Streams(self._server, follow_inference(self._server, name), wanted, asked)
                async with aclosing(streams.lines()) as lines:
                    async for line in lines:
                        yield line
                return
            pods = [pod.name for pod in await self._pods(inference) if wanted(pod)]
            for line in merged(some(await logs.read(self._server, pods, asked))):
                yield line

    async def suspend(self, name: str) -> TPUInference:
        """Stop all replicas and keep the object: `spec.replicas` becomes 0."""
        return await self.patch(name, {"replicas": 0})

    async def resume(self, name: str, replicas: int = 1) -> TPUInference:
        """Let it serve again.

        Args:
            name: the TPUInference.
            replicas: copies of its role set.
        """
        return await self.patch(name, {"replicas": replicas})

    async def restart(self, name: str, replica: str) -> str:
        """Start a replica anew, all of its hosts in new pods; others serve meanwhile.

        Args:
            name: the TPUInference.
            replica: its name in `status.groups`.

        Returns:
            Name of the pod that was deleted for it; the others of the replica follow.
        """
        inference = await self.get(name)
        with self._told(name):
            victim = _victim(replica, await self._pods(inference))
            await self._server.delete_pod(victim)
            return victim.name

    async def _pods(self, inference: TPUInference) -> Sequence[Pod]:
        return sorted(await self._server.pods(inference), key=lambda pod: pod.name)


def replica_of(pod: Pod) -> str:
    """Name of the replica that a pod is a host of."""
    of = (names.LABEL_ROLE, names.LABEL_REVISION, names.LABEL_REPLICA)
    return "-".join(_label(pod, key) for key in of)


def _label(pod: Pod, key: str) -> str:
    return pod.metadata.labels.get(key, "")


def _victim(replica: str, pods: Sequence[Pod]) -> Pod:
    """The pod whose deletion starts a replica anew."""
    staying = [pod for pod in pods if not pod.deleting]
    for pod in staying:
        if replica_of(pod) == replica:
            return pod
    there = ", ".join(dict.fromkeys(map(replica_of, staying))) or "none"
    raise CommandError(
        f"it has no replica {replica!r} with pods", Exit.NOT_FOUND, f"those that have: {there}"
    )

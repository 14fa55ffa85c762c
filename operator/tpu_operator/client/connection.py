"""The way to a cluster, for programs with an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpu_operator.cli.command import Place
from tpu_operator.cli.server import Server
from tpu_operator.client.errors import told
from tpu_operator.client.inferences import AsyncInferences
from tpu_operator.client.jobs import AsyncJobs

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

AGENT: Final = "tpu-operator-client"
"""User agent of requests, and field manager of what is changed."""


class AsyncClient:
    """TPUJobs and TPUInferences of one namespace. `connect` makes one; close it, or use `async with`.

    Args:
        server: the cluster, and the namespace.

    Attributes:
        namespace: where objects are.
        jobs: its TPUJobs.
        inferences: its TPUInferences.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.namespace = server.namespace
        self.jobs = AsyncJobs(server)
        self.inferences = AsyncInferences(server)

    @classmethod
    async def connect(cls, namespace: str = "", *, context: str = "", kubeconfig: str = "") -> AsyncClient:
        """Connect as kubectl would, with the caller's rights; in a pod as its service account.

        Args:
            namespace: where objects are; default: that of the context, or of the pod.
            context: an entry of the kubeconfig; default: its current one.
            kubeconfig: a file; default: $KUBECONFIG, or ~/.kube/config.

        Raises:
            UnreachableError: there are no credentials, or they cannot be used.
        """
        with told("the cluster"):
            return cls(await Server.connect(Place(kubeconfig, context, namespace), AGENT))

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()

"""The same for programs and notebooks that wait for each answer.

Every method does what that of the same name does in `AsyncJobs` and `AsyncInferences`, where it is described.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

from tpu_operator.api import TPUInference, TPUJob
from tpu_operator.cli.server import Kind
from tpu_operator.client.connection import AsyncClient
from tpu_operator.client.loop import Loop
from tpu_operator.core import names

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from tpu_operator.cli.lines import Line
    from tpu_operator.client.inferences import AsyncInferences
    from tpu_operator.client.jobs import AsyncJobs
    from tpu_operator.client.objects import AsyncObjects


class Objects(Generic[Kind]):
    """The objects of one kind in one namespace."""

    def __init__(self, loop: Loop, objects: AsyncObjects[Kind]) -> None:
        self._loop = loop
        self._objects = objects

    def create(self, body: Kind | Mapping[str, Any], *, dry_run: bool = False) -> Kind:
        """Create an object, from its model or a manifest; returns it as the API server has it."""
        return self._loop.run(self._objects.create(body, dry_run=dry_run))

    def get(self, name: str) -> Kind:
        """An object by its name."""
        return self._loop.run(self._objects.get(name))

    def list(self, selector: str = "") -> builtins.list[Kind]:
        """All objects of the namespace, or those with some labels."""
        return self._loop.run(self._objects.list(selector))

    def watch(self, name: str) -> Iterator[Kind]:
        """The object as it is, and again after each change, until it is deleted."""
        return self._loop.iterate(self._objects.watch(name))

    def wait(self, name: str, goal: str, *, timeout: float | None = None) -> Kind:
        """Wait until an object is somewhere, for some seconds or for ever."""
        return self._loop.run(self._objects.wait(name, goal, timeout=timeout))

    def patch(self, name: str, spec: Mapping[str, Any]) -> Kind:
        """Change fields of an object's spec, and leave all others."""
        return self._loop.run(self._objects.patch(name, spec))

    def delete(self, name: str, *, wait: bool = False) -> None:
        """Delete an object; with `wait` return only when it is gone."""
        self._loop.run(self._objects.delete(name, wait=wait))


class Jobs(Objects[TPUJob]):
    """The TPUJobs of one namespace.

    Goals of `wait`: running, succeeded, failed, finished, suspended.
    """

    def __init__(self, loop: Loop, jobs: AsyncJobs) -> None:
        super().__init__(loop, jobs)
        self._jobs = jobs

    def logs(  # noqa: PLR0913 - each narrows what is read
        self,
        name: str,
        *,
        ranks: Sequence[int] = (),
        slices: Sequence[int] = (),
        follow: bool = False,
        tail: int | None = None,
        since: int | None = None,
        container: str = names.MAIN_CONTAINER,
    ) -> Iterator[Line]:
        """What the hosts of a job have written, in the order of time."""
        lines = self._jobs.logs(
            name, ranks=ranks, slices=slices, follow=follow, tail=tail, since=since, container=container
        )
        return self._loop.iterate(lines)

    def suspend(self, name: str) -> TPUJob:
        """Stop the pods of a job and keep the job."""
        return self._loop.run(self._jobs.suspend(name))

    def resume(self, name: str) -> TPUJob:
        """Let a suspended job run."""
        return self._loop.run(self._jobs.resume(name))

    def restart(self, name: str, slices: Sequence[int] = ()) -> builtins.list[str]:
        """Start all processes of a job anew, in new pods, or those of some slices."""
        return self._loop.run(self._jobs.restart(name, slices))


class Inferences(Objects[TPUInference]):
    """The TPUInferences of one namespace.

    Goals of `wait`: serving, complete, stopped.
    """

    def __init__(self, loop: Loop, inferences: AsyncInferences) -> None:
        super().__init__(loop, inferences)
        self._inferences = inferences

    def logs(  # noqa: PLR0913 - each narrows what is read
        self,
        name: str,
        *,
        role: str = "",
        replica: str = "",
        follow: bool = False,
        tail: int | None = None,
        since: int | None = None,
        container: str = names.MAIN_CONTAINER,
    ) -> Iterator[Line]:
        """What the hosts have written, in the order of time."""
        lines = self._inferences.logs(
            name, role=role, replica=replica, follow=follow, tail=tail, since=since, container=container
        )
        return self._loop.iterate(lines)

    def suspend(self, name: str) -> TPUInference:
        """Stop all replicas and keep the object: `spec.replicas` becomes 0."""
        return self._loop.run(self._inferences.suspend(name))

    def resume(self, name: str, replicas: int = 1) -> TPUInference:
        """Let it serve again, by that many copies of its role set."""
        return self._loop.run(self._inferences.resume(name, replicas))

    def restart(self, name: str, replica: str) -> str:
        """Start a replica anew, by its name in `status.groups`."""
        return self._loop.run(self._inferences.restart(name, replica))


class Client:
    """TPUJobs and TPUInferences of one namespace. Close it, or use `with`.

    Connects as kubectl would, with the caller's rights; in a pod without a kubeconfig as its service account.

    Args:
        namespace: where objects are; default: that of the context, or of the pod.
        context: an entry of the kubeconfig; default: its current one.
        kubeconfig: a file; default: $KUBECONFIG, or ~/.kube/config.

    Attributes:
        namespace: where objects are.
        jobs: its TPUJobs.
        inferences: its TPUInferences.

    Raises:
        UnreachableError: there are no credentials, or they cannot be used.
    """

    def __init__(self, namespace: str = "", *, context: str = "", kubeconfig: str = "") -> None:
        self._loop = Loop()
        try:
            connecting = AsyncClient.connect(namespace, context=context, kubeconfig=kubeconfig)
            self._client = self._loop.run(connecting)
        except BaseException:
            self._loop.close()
            raise
        self.namespace = self._client.namespace
        self.jobs = Jobs(self._loop, self._client.jobs)
        self.inferences = Inferences(self._loop, self._client.inferences)

    def close(self) -> None:
        """Close the connections."""
        self._loop.run(self._client.close())
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

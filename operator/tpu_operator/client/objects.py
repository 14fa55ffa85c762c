"""What can be done with the objects of any kind."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Generic

from tpu_operator.cli import wait
from tpu_operator.cli.command import Exit
from tpu_operator.cli.server import Kind
from tpu_operator.client import goals
from tpu_operator.client.errors import (
    ClientError,
    OutOfReachError,
    WaitTimeoutError,
    told,
)
from tpu_operator.client.kinds import Family, Object, Whole
from tpu_operator.engine.informer import Informer

if TYPE_CHECKING:
    import builtins
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping
    from contextlib import AbstractContextManager

    from tpu_operator.cli.server import Server

NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


class AsyncObjects(Generic[Kind]):
    """The objects of one kind in one namespace.

    All methods raise a ClientError that names the object, its fields and what to do: NotFoundError,
    RefusedError (also where the rights are missing), UnreachableError.

    Args:
        server: the cluster, and the namespace.
        family: the kind.
    """

    def __init__(self, server: Server, family: Family[Kind]) -> None:
        self._server = server
        self._family = family

    async def create(self, body: Kind | Mapping[str, Any], *, dry_run: bool = False) -> Kind:
        """Create an object.

        Args:
            body: the model, of which only what was set is sent, or a manifest, as from YAML. One without a
                namespace goes to the client's.
            dry_run: only ask the API server whether it would; defaults and validation are the real ones.

        Returns:
            The object as the API server has it.

        Raises:
            ValueError: it is of another kind.
        """
        manifest = self._family.manifest(body)
        meta = manifest.get("metadata", {})
        name = str(meta.get("name") or f"{meta.get('generateName', '')}?")
        with told(self._about(name, meta.get("namespace"))):
            return self._family.read(await self._server.create(manifest, dry_run=dry_run))

    async def get(self, name: str) -> Kind:
        """An object by its name."""
        with self._told(name):
            return self._family.read(await self._server.get(self._family.resource, name))

    async def list(self, selector: str = "") -> builtins.list[Kind]:
        """All objects of the namespace.

        Args:
            selector: only those with these labels, such as "team=vision,stage!=test".
        """
        query: dict[str, Any] = {"labelSelector": selector} if selector else {}
        with told(f"{self._family.resource.kind}s of namespace {self._server.namespace}"):
            found = await self._server.read(self._family.resource, Object, **query)
            return [self._family.read(wire) for wire in found]

    async def watch(self, name: str) -> AsyncGenerator[Kind, None]:
        """The object as it is, and again after each change, until it is deleted.

        Changes in quick succession may be told as one. An API server that is away for a while is waited for.
        """
        with self._told(name):
            await self._server.get(self._family.resource, name)
            async with self._observed(name) as (informer, changed):
                await informer.synced.wait()
                while True:
                    changed.clear()
                    found = informer.get((self._server.namespace, name))
                    if found is None:
                        return
                    yield self._family.read_whole(found)
                    await changed.wait()

    async def wait(self, name: str, goal: str, *, timeout: float | None = None) -> Kind:  # noqa: ASYNC109
        """Wait until an object is somewhere.

        Args:
            name: the object.
            goal: where; what there is for each kind is in docs/sdk.md. "condition=TYPE" or
                "condition=TYPE=False" is for any condition.
            timeout: seconds; default: for ever.

        Returns:
            The object when it was there.

        Raises:
            ValueError: there is no such goal.
            WaitTimeoutError: time is up; says what it waits for.
            OutOfReachError: it can never be there.
        """
        goals.check(self._family.resource.kind, goal)
        said = "has not been seen yet"
        try:
            async with asyncio.timeout(timeout), aclosing(self.watch(name)) as states:
                async for state in states:
                    verdict = wait.verdict(state, goal)
                    said = verdict.message
                    if verdict.code is Exit.DONE:
                        return state
                    if verdict.code is not None:
                        break
                else:
                    said = wait.verdict(None, goal).message
        except TimeoutError:
            raise WaitTimeoutError(
                self._about(name), f"time is up: it {said}", "wait longer; its status says what it waits for"
            ) from None
        raise OutOfReachError(self._about(name), f"it {said}, and will never be {goal}")

    async def patch(self, name: str, spec: Mapping[str, Any]) -> Kind:
        """Change fields of an object's spec, and leave all others.

        Args:
            name: the object.
            spec: the fields as they are written in YAML; None takes one away, a list is replaced as a whole.
        """
        item = await self.get(name)
        with self._told(name):
            return self._family.read(await self._server.patch(item, spec=spec))

    async def delete(self, name: str, *, wait: bool = False) -> None:
        """Delete an object, and by that its pods.

        Args:
            name: the object.
            wait: return only when it is gone.
        """
        item = await self.get(name)
        resource, namespace = self._family.resource, self._server.namespace
        with self._told(name):
            await self._server.api.delete(resource, namespace, name, item.metadata.uid)
            if wait:
                await self._gone(name, item.metadata.uid)

    async def _gone(self, name: str, uid: str) -> None:
        async with self._observed(name) as (informer, changed):
            await informer.synced.wait()
            while True:
                changed.clear()
                found = informer.get((self._server.namespace, name))
                if found is None or found.metadata.uid != uid:
                    return
                await changed.wait()

    @asynccontextmanager
    async def _observed(self, name: str) -> AsyncIterator[tuple[Informer[Whole], asyncio.Event]]:
        """An object that is watched, and what is set when it has changed."""
        informer = Informer(
            self._server.api,
            self._family.resource,
            Whole,
            namespace=self._server.namespace,
            fields=f"metadata.name={name}",
        )
        changed = asyncio.Event()
        informer.listen(lambda *_: changed.set())
        # The informer goes on whatever it is told; that it may not look is said here.
        await self._server.read(self._family.resource, Object, fieldSelector=f"metadata.name={name}")
        task = asyncio.create_task(informer.run())
        try:
            yield informer, changed
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _about(self, name: str, namespace: str | None = None) -> str:
        return f"{self._family.resource.kind} {namespace or self._server.namespace}/{name}"

    def _told(self, name: str) -> AbstractContextManager[None]:
        """Errors are about that object.

        Raises:
            ClientError: nothing can have that name, which would be part of a path.
        """
        if not NAME.fullmatch(name):
            raise ClientError(
                self._about(name),
                "metadata.name: that is no name",
                "write lower-case letters, digits, '-' or '.'",
            )
        return told(self._about(name))

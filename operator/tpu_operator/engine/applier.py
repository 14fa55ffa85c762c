"""Carries plans out: applies, deletes, creates, status, events, in that order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tpu_operator.engine.client import ApiError
from tpu_operator.engine.resources import BY_KIND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Mapping

    from tpu_operator.core.plan import Manifest, Plan
    from tpu_operator.engine.client import ApiServer
    from tpu_operator.engine.events import Recorder, Regarding
    from tpu_operator.engine.resources import Resource

IN_FLIGHT: Final = 32
"""Writes at a time, over all objects."""


@dataclass(frozen=True, slots=True)
class Target:
    """The object that a plan is about.

    Attributes:
        resource: its resource.
        regarding: its identity.
        version: the resource version that the plan was made from; the status is only written on top of it.
    """

    resource: Resource
    regarding: Regarding
    version: str


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = "0"
    uid: str = ""
    owner_references: list[dict[str, Any]] = msgspec.field(default_factory=list)


class _Object(msgspec.Struct):
    metadata: _Meta


class Applier:
    """Writes with bounded concurrency.

    Args:
        api: where to write.
        recorder: writes events.
    """

    def __init__(self, api: ApiServer, recorder: Recorder) -> None:
        self._api = api
        self._recorder = recorder
        self._slots = asyncio.Semaphore(IN_FLIGHT)

    async def carry_out(self, target: Target, plan: Plan, written: dict[str, int]) -> str:
        """Do what the plan says.

        A child that the server refuses ends the creating, since the rest would be refused as well, but not
        the plan: its status is written.

        Args:
            target: the object that the plan is about.
            plan: the plan.
            written: takes the highest resource version written, by kind, even if not all works out.

        Returns:
            The server's words about a child that it would not create; empty when there is none.

        Raises:
            ApiError: something did not work out that is worth another try.
        """
        refusal = ""
        await self._all(self._apply(manifest, written) for manifest in plan.applies)
        await self._all(
            self._api.delete(BY_KIND[d.kind], d.namespace, d.name, d.uid, d.grace_seconds)
            for d in plan.deletes
        )
        try:
            for _, group in groupby(plan.creates, key=lambda manifest: manifest["kind"]):
                await self._all(self._create(manifest, written) for manifest in list(group))
        except ApiError as error:
            if not error.refused and not error.conflict:
                raise
            refusal = error.message
        if plan.status is not None:
            await self._write_status(target, plan.status, written)
        for event in plan.events:
            await self._recorder.record(target.regarding, event)
        return refusal

    async def _all(self, writes: Iterable[Awaitable[None]]) -> None:
        """Run writes side by side; all of them are over when this returns or raises."""
        results = await asyncio.gather(*(self._one(write) for write in writes), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _one(self, write: Awaitable[None]) -> None:
        async with self._slots:
            await write

    async def _apply(self, manifest: Manifest, written: dict[str, int]) -> None:
        _note(written, manifest["kind"], await self._api.apply(BY_KIND[manifest["kind"]], manifest))

    async def _create(self, manifest: Manifest, written: dict[str, int]) -> None:
        resource = BY_KIND[manifest["kind"]]
        try:
            _note(written, resource.kind, await self._api.create(resource, manifest))
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            await self._check_owner(resource, manifest)

    async def _check_owner(self, resource: Resource, manifest: Manifest) -> None:
        """Accept an object that is ours already; never adopt another's."""
        meta = manifest["metadata"]
        found = msgspec.json.decode(
            await self._api.get(resource.path(meta["namespace"], meta["name"])), type=_Object
        )
        owner = meta["ownerReferences"][0]["uid"]
        if owner not in {reference.get("uid") for reference in found.metadata.owner_references}:
            name = f"{resource.kind} {meta['namespace']}/{meta['name']}"
            raise ApiError(409, "AlreadyExists", f"{name} exists and belongs to something else; delete it")

    async def _write_status(self, target: Target, status: Mapping[str, Any], written: dict[str, int]) -> None:
        regarding = target.regarding
        manifest = {
            "apiVersion": regarding.api_version,
            "kind": regarding.kind,
            "metadata": {
                "name": regarding.name,
                "namespace": regarding.namespace,
                "uid": regarding.uid,
                "resourceVersion": target.version,
            },
            "status": status,
        }
        _note(written, regarding.kind, await self._api.apply(target.resource, manifest, "status"))


def _note(written: dict[str, int], kind: str, answer: bytes) -> None:
    version = msgspec.json.decode(answer, type=_Object).metadata.resource_version
    if version.isdecimal():
        written[kind] = max(written.get(kind, 0), int(version))

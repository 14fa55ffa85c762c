"""Carries plans out: applies, deletes, creates, status, events, patches, in that order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import msgspec

from tpu_operator.core import names
from tpu_operator.core.plan import Event
from tpu_operator.engine.client import MERGE, TAKEN, ApiError, FencedError, decode
from tpu_operator.engine.metrics import OBSERVED
from tpu_operator.engine.resources import BY_KIND, CONTROLLER_REVISIONS, PODS, SERVICES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tpu_operator.core.plan import Delete, Manifest, Patch, Plan, Sighting
    from tpu_operator.engine.client import ApiServer
    from tpu_operator.engine.events import Recorder, Regarding
    from tpu_operator.engine.resources import Resource

IN_FLIGHT: Final = 64
"""Children that are written at a time, over all objects."""
IN_FLIGHT_OF_NAMESPACE: Final = 48
"""The same in one namespace: what hangs there, such as an admission webhook, leaves room for others."""
IN_FLIGHT_OF_ONE: Final = 24
"""The same of one object, so that a large gang leaves room for others."""
SLOW_START: Final = 8
"""Writes for one object go out in groups of 1, 2, 4 and 8 before all the rest: most errors meet them all."""

RELABELLED: Final = frozenset({PODS, SERVICES})
"""What gets the label back by which we find it."""

Write = Callable[[], Awaitable[None]]
Slots = tuple[asyncio.Semaphore, asyncio.Semaphore, asyncio.Semaphore]
"""Of the object, of its namespace, of all: a write takes one of each."""


@dataclass(frozen=True, slots=True)
class Target:
    """The object that a plan is about.

    Attributes:
        resource: its resource.
        regarding: its identity.
        version: the resource version that the plan was made from; the status is only written on top of it.
        generation: of its spec.
    """

    resource: Resource
    regarding: Regarding
    version: str
    generation: int = 0


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = "0"
    uid: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: list[dict[str, Any]] = msgspec.field(default_factory=list)


class _Object(msgspec.Struct):
    # Absent from what a deletion may be answered with.
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _List(msgspec.Struct):
    items: list[_Object]


class Applier:
    """Writes with bounded concurrency.

    Args:
        api: where to write.
        recorder: has events written.
    """

    def __init__(self, api: ApiServer, recorder: Recorder) -> None:
        self._api = api
        self._recorder = recorder
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._namespaces: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def carry_out(self, target: Target, plan: Plan, written: dict[str, int]) -> str:
        """Do what the plan says.

        The first child that cannot be applied ends the applies, since others would fare no better, and so
        with creates. It does not end the plan: what is to go goes, whatever else is refused, and the status
        is written, which tells people more than none.

        Args:
            target: the object that the plan is about.
            plan: the plan.
            written: takes the highest resource version written, by kind, even if not all works out; 0 for a
                status of which nobody knows whether it was written.

        Returns:
            The server's words about a child that it refuses for good; empty when there is none.

        Raises:
            ApiError: something did not work out that is worth another try.
        """
        await self._confirm(plan.sightings)
        failure = await self._write_children(target, plan, written)
        if plan.status is not None:
            await self._write_status(target, plan.status, written)
        for seen in plan.observations:
            histogram = OBSERVED[seen.metric]
            (histogram.labels(*seen.labels) if seen.labels else histogram).observe(seen.seconds)
        for event in plan.events:
            self._recorder.record(target.regarding, event)
        for patch in plan.patches:
            await self._patch(patch, written)
        if failure is None:
            return ""
        if not failure.refused:
            raise failure
        return failure.message

    async def version(self, target: Target) -> str:
        """Resource version of the object as the server has it; empty when it is gone."""
        return await self._version(target.resource, target.regarding.namespace, target.regarding.name)

    async def _confirm(self, sightings: Iterable[Sighting]) -> None:
        """See that objects are as they were seen.

        Raises:
            ApiError: one is not, and a decision about how it is now is due.
        """
        for result in await asyncio.gather(*map(self._look, sightings), return_exceptions=True):
            if result is not None:
                raise result

    async def _look(self, seen: Sighting) -> None:
        async with self._slots:
            version = await self._version(BY_KIND[seen.kind], seen.namespace, seen.name)
        if version != seen.version:
            raise ApiError(409, "Conflict", f"{seen.kind} {seen.name} has changed since it was looked at")

    async def _version(self, resource: Resource, namespace: str, name: str) -> str:
        """Resource version of an object as the server has it; empty when it is gone."""
        found = await self._find(resource, namespace, name)
        return found.resource_version if found else ""

    async def _find(self, resource: Resource, namespace: str, name: str) -> _Meta | None:
        """An object as the server has it; by a list of one, as who may watch may list."""
        answer = await self._api.get(resource.path(namespace), fieldSelector=f"metadata.name={name}")
        return next((item.metadata for item in decode(answer, _List).items), None)

    async def _write_children(self, target: Target, plan: Plan, written: dict[str, int]) -> ApiError | None:
        """Apply, delete and create; the server's answer if one of that did not work."""
        namespace = target.regarding.namespace
        shared = self._namespaces.get(namespace) or asyncio.Semaphore(IN_FLIGHT_OF_NAMESPACE)
        self._namespaces[namespace] = shared
        slots = (asyncio.Semaphore(IN_FLIGHT_OF_ONE), shared, self._slots)
        failures = [
            await _all(slots, [partial(self._apply, manifest, written) for manifest in plan.applies]),
            await _all(slots, [partial(self._delete, one, written) for one in plan.deletes], apart=True),
        ]
        for _, group in groupby(plan.creates, key=lambda manifest: manifest["kind"]):
            failures.append(await _all(slots, [partial(self._create, one, written) for one in group]))
            if failures[-1]:
                break  # those that follow need it: pods their group, and the lists that they refer to
        return next(filter(None, failures), None)

    async def _delete(self, delete: Delete, written: dict[str, int]) -> None:
        answer = await self._api.delete(
            BY_KIND[delete.kind], delete.namespace, delete.name, delete.uid, delete.grace_seconds
        )
        if answer is not None:
            _note(written, delete.kind, answer)

    async def _apply(self, manifest: Manifest, written: dict[str, int]) -> None:
        resource, meta = BY_KIND[manifest["kind"]], manifest["metadata"]
        if "ownerReferences" in meta and "uid" not in meta:
            # An apply takes over whatever is there, and our copy does not show what lacks our labels.
            found = await self._find(resource, meta["namespace"], meta["name"])
            if found is not None:
                _check_owner(manifest, found)
        _note(written, resource.kind, await self._api.apply(resource, manifest))

    async def _patch(self, patch: Patch, written: dict[str, int]) -> None:
        answer = await self._api.merge(
            BY_KIND[patch.kind],
            patch.namespace,
            patch.name,
            patch.version,
            patch.change,
            patch.subresource,
        )
        _note(written, patch.kind, answer)

    async def _create(self, manifest: Manifest, written: dict[str, int]) -> None:
        resource = BY_KIND[manifest["kind"]]
        if resource is CONTROLLER_REVISIONS:
            # The server has its data stay the same byte by byte, and later applies write JSON their own way.
            await self._apply(manifest, written)
            return
        try:
            _note(written, resource.kind, await self._api.create(resource, manifest))
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            _note(written, resource.kind, await self._accept(resource, manifest))

    async def _accept(self, resource: Resource, manifest: Manifest) -> bytes:
        """Accept an object that is ours already, and that we can find; never adopt another's."""
        meta = manifest["metadata"]
        path = resource.path(meta["namespace"], meta["name"])
        answer = await self._api.get(path)
        found = decode(answer, _Object).metadata
        _check_owner(manifest, found)
        if meta["labels"].items() <= found.labels.items():
            return answer
        lost = meta["labels"].keys() - found.labels.keys()
        label = {key: meta["labels"][key] for key in names.OWNERS if key in lost}
        if not label or resource not in RELABELLED:
            text = f"{_called(manifest)} exists without the labels that it was made with; delete it"
            raise ApiError(409, TAKEN, text)
        # Somebody has taken it out of our sight. Once it is seen again, it is kept or deleted for what it is.
        body = {"metadata": {"uid": found.uid, "labels": label}}
        return await self._api.write("PATCH", path, body, content_type=MERGE)

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
        try:
            _note(written, regarding.kind, await self._api.apply(target.resource, manifest, "status"))
        except ApiError as error:
            if error.uncertain:
                written[regarding.kind] = 0
            # The object cannot say so itself: it is too large, or its CRD is of another version.
            if error.refused:
                text = f"the API server refuses the status: {error.message}"
                self._recorder.record(regarding, Event(True, "StatusRefused", text))
            raise


def _called(manifest: Manifest) -> str:
    meta = manifest["metadata"]
    return f"{manifest['kind']} {meta['namespace']}/{meta['name']}"


def _check_owner(manifest: Manifest, found: _Meta) -> None:
    """Never adopt another's object.

    Raises:
        ApiError: what has the name of an object of ours belongs to something else.
    """
    owner = manifest["metadata"]["ownerReferences"][0]
    if owner["uid"] in {ref.get("uid") for ref in found.owner_references}:
        return
    named = (owner["kind"], owner["name"])
    if named in {(ref.get("kind"), ref.get("name")) for ref in found.owner_references}:
        text = f"{_called(manifest)} belongs to an earlier {owner['kind']} of this name and has to go first"
    else:
        text = f"{_called(manifest)} exists and belongs to something else: delete it, or choose another name"
    raise ApiError(409, TAKEN, text)


async def _all(slots: Slots, writes: Sequence[Write], *, apart: bool = False) -> ApiError | None:
    """Send writes side by side, the first few carefully: after an error no further one is sent.

    All that were sent are over when this returns or raises.

    Args:
        slots: how many at a time.
        writes: what to send.
        apart: whether the server's refusal of one says nothing of the others, so that these are sent.

    Returns:
        The server's answer to a write that did not work.

    Raises:
        ApiError: there was no answer.
    """
    start, size = 0, 1
    refusals: list[ApiError] = []
    while start < len(writes):
        try:
            refusals += await _together(slots, writes[start : start + size], apart=apart)
        except ApiError as error:
            if not error.answered:
                raise
            return error
        start, size = start + size, size * 2 if size < SLOW_START else len(writes)
    return refusals[0] if refusals else None


async def _together(slots: Slots, writes: Sequence[Write], *, apart: bool) -> list[ApiError]:
    errors: list[BaseException] = []
    refusals: list[ApiError] = []
    own, shared, every = slots

    async def one(write: Write) -> None:
        async with own, shared, every:
            if errors:
                return
            try:
                await write()
            except ApiError as error:
                (refusals if apart and error.refused else errors).append(error)
            except FencedError as error:
                errors.append(error)

    await asyncio.gather(*(one(write) for write in writes))
    if errors:
        raise errors[0]
    return refusals


def _note(written: dict[str, int], kind: str, answer: bytes) -> None:
    version = decode(answer, _Object).metadata.resource_version
    if version.isdecimal():
        written[kind] = max(written.get(kind, 0), int(version))

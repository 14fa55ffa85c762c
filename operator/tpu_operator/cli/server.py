"""The way to the API server, and what commands read and change there.

Everything that can go wrong on it ends as a CommandError that says what to do.
"""

from __future__ import annotations

import difflib
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import aiohttp
import msgspec
from pydantic import ValidationError

from tpu_operator.api import TPUInference, TPUJob
from tpu_operator.api.common import Model
from tpu_operator.cli.command import CommandError, Exit, Place, Target
from tpu_operator.core import names
from tpu_operator.core.snapshot import Pod
from tpu_operator.engine.client import MERGE, ApiError, ApiServer, decode
from tpu_operator.engine.credentials import CredentialsError
from tpu_operator.engine.resources import BY_KIND, EVENTS, INFERENCES, PODS, TPUJOBS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from tpu_operator.engine.resources import Resource

T = TypeVar("T")
M = TypeVar("M", bound=Model)
Kind = TypeVar("Kind", bound=TPUJob | TPUInference)
Object = dict[str, Any]

AGENT: Final = "kubectl-tpu"
"""User agent of the commands, and field manager of what they change."""
DOCTOR: Final = "`kubectl tpu doctor` says what is missing in the cluster"
PAGE: Final = 500
LOG_SILENCE: Final = 30.0
"""Seconds without a byte after which a log is given up."""
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
UNAUTHORIZED: Final = 401


class _Meta(msgspec.Struct):
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    items: list[msgspec.Raw]
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class Server:
    """One cluster, seen from one namespace.

    Args:
        api: the API server.
        namespace: where jobs are looked for.
        place: what was said on the command line, for other programs.
        agent: field manager of what is changed.
    """

    def __init__(self, api: ApiServer, namespace: str, place: Place, agent: str = AGENT) -> None:
        self.api = api
        self.namespace = namespace
        self.place = place
        self._agent = agent

    @classmethod
    async def connect(cls, place: Place, agent: str = AGENT) -> Server:
        """Connect as kubectl would.

        Raises:
            CommandError: there is no way to an API server.
        """
        try:
            api, namespace = await ApiServer.connect_for_person(agent, place.kubeconfig, place.context)
        except CredentialsError as error:
            raise CommandError(
                str(error),
                Exit.UNREACHABLE,
                "`kubectl config get-contexts` shows what there is; choose with --kubeconfig and --context",
            ) from error
        return cls(api, place.namespace or namespace, place, agent)

    async def close(self) -> None:
        """Close the connections."""
        await self.api.close()

    async def job(self, name: str) -> TPUJob:
        """A TPUJob.

        Raises:
            CommandError: there is none of that name, or this version cannot read it.
        """
        return read_job(await self.get(TPUJOBS, name))

    async def inference(self, name: str) -> TPUInference:
        """A TPUInference.

        Raises:
            CommandError: there is none of that name, or this version cannot read it.
        """
        return read_inference(await self.get(INFERENCES, name))

    async def find(self, target: Target) -> TPUJob | TPUInference:
        """What a command is about: a TPUJob, or a TPUInference if that was said or only that is there.

        Raises:
            CommandError: there is none of that name, or this version cannot read it.
        """
        if target.kind == INFERENCES.kind:
            return await self.inference(target.name)
        try:
            return await self.job(target.name)
        except CommandError as error:
            if target.kind or error.code is not Exit.NOT_FOUND:
                raise
            there = {item["metadata"]["name"]: item for item in await self.try_read(INFERENCES, Object) or []}
            if target.name in there:
                return read_inference(there[target.name])
            if near := difflib.get_close_matches(target.name, there, 1):
                error.advice = f"did you mean tpui/{near[0]}?"
            raise

    async def get(self, resource: Resource, name: str) -> Object:
        """An object, as the server has it.

        Raises:
            CommandError: there is none of that name.
        """
        try:
            found: Object = msgspec.json.decode(await self.api.get(resource.path(self.namespace, name)))
        except ApiError as error:
            if error.gone:
                raise await self._missing(resource, name) from error
            raise
        return found

    async def _missing(self, resource: Resource, name: str) -> CommandError:
        """What to say when there is no such object; also why, if it is not there for a larger reason."""
        try:
            there = await self.names(resource)
        except ApiError as error:
            if error.gone:
                return CommandError(
                    f"the cluster does not know {resource.kind}s",
                    Exit.NOT_FOUND,
                    "`kubectl tpu doctor` says what is missing",
                )
            raise
        near = difflib.get_close_matches(name, there, 1)
        advice = f"did you mean {near[0]}?" if near else "--namespace chooses another namespace"
        text = f"there is no {resource.kind} {name} in namespace {self.namespace}"
        return CommandError(text, Exit.NOT_FOUND, advice)

    async def names(self, resource: Resource) -> list[str]:
        """Names of all objects of a resource in the namespace."""
        return [item["metadata"]["name"] for item in await self.read(resource, Object)]

    async def pods(self, owner: TPUJob | TPUInference) -> list[Pod]:
        """Pods of a job or a TPUInference, of any attempt and revision."""
        label = names.LABEL_JOB if isinstance(owner, TPUJob) else names.LABEL_INFERENCE
        found = await self.read(PODS, Pod, labelSelector=f"{label}={owner.metadata.name}")
        return [pod for pod in found if pod.metadata.owner_uid == owner.metadata.uid]

    async def events(self, kind: str, name: str = "") -> list[Object]:
        """Events about objects of a kind; about one of them, or all."""
        fields = f"regarding.kind={kind}" + (f",regarding.name={name}" if name else "")
        return await self.read(EVENTS, Object, fieldSelector=fields)

    async def read(
        self, resource: Resource, view: type[T], *, everywhere: bool = False, **query: str
    ) -> list[T]:
        """All objects of a resource that match.

        Args:
            resource: which.
            view: the type that they are decoded into.
            everywhere: whether they have no namespace, or all namespaces are meant.
            query: selectors.
        """
        path = resource.path("" if everywhere else self.namespace)
        found: list[T] = []
        query |= {"limit": str(PAGE)}
        while True:
            page = decode(await self.api.get(path, **query), _List)
            found += [msgspec.json.decode(raw, type=view) for raw in page.items]
            if not page.metadata.continue_:
                return found
            query["continue"] = page.metadata.continue_

    async def try_read(self, resource: Resource, view: type[T], **query: Any) -> list[T] | None:
        """The same; None where it may not be read, or is not served."""
        found: list[T] | None = await self._try(self.read(resource, view, **query))
        return found

    async def try_get(self, path: str) -> Object | None:
        """An object; None where it is not there, or may not be read."""
        data = await self._try(self.api.get(path))
        return None if data is None else dict(msgspec.json.decode(data))

    async def _try(self, request: Any) -> Any:
        try:
            return await request
        except ApiError as error:
            if error.status in {FORBIDDEN, NOT_FOUND}:
                return None
            raise

    async def create(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """Create an object of a kind that we know, or only ask whether it could be."""
        query = {"fieldManager": self._agent, "fieldValidation": "Strict"}
        query |= {"dryRun": "All"} if dry_run else {}
        path = BY_KIND[manifest["kind"]].path(manifest["metadata"].get("namespace") or self.namespace)
        created: Object = msgspec.json.decode(await self.api.write("POST", path, manifest, query=query))
        return created

    async def patch(self, thing: TPUJob | TPUInference, **parts: Any) -> Object:
        """Change parts of an object, this incarnation of it; the object after that."""
        return await self._merge(thing, {"uid": thing.metadata.uid}, parts)

    async def annotate(self, inference: TPUInference, annotations: Mapping[str, str]) -> None:
        """Set annotations of a TPUInference, this incarnation of it."""
        await self._merge(inference, {"uid": inference.metadata.uid, "annotations": annotations}, {})

    async def _merge(
        self, thing: TPUJob | TPUInference, metadata: Mapping[str, Any], parts: Mapping[str, Any]
    ) -> Object:
        resource = TPUJOBS if isinstance(thing, TPUJob) else INFERENCES
        data = await self.api.write(
            "PATCH",
            resource.path(self.namespace, thing.metadata.name),
            {**parts, "metadata": metadata},
            query={"fieldManager": self._agent, "fieldValidation": "Strict"},
            content_type=MERGE,
        )
        changed: Object = msgspec.json.decode(data)
        return changed

    async def replace(self, wire: Object) -> None:
        """Write a TPUInference back that was read and changed; fields that it has no more are taken away.

        Raises:
            ApiError: a conflict, if there is a newer version; or it is refused.
        """
        path = INFERENCES.path(self.namespace, wire["metadata"]["name"])
        await self.api.write(
            "PUT", path, wire, query={"fieldManager": self._agent, "fieldValidation": "Strict"}
        )

    async def delete_pod(self, pod: Pod) -> bool:
        """Delete a pod, this incarnation of it; whether it was still there."""
        meta = pod.metadata
        return await self.api.delete(PODS, meta.namespace, meta.name, meta.uid) is not None

    async def log(self, pod: str, **query: str) -> str:
        """The log of a container, however large it is.

        Raises:
            ApiError: it cannot be had, or not to its end.
        """
        path = PODS.path(self.namespace, pod, "log")
        try:
            async with self.api.stream(path, query, LOG_SILENCE) as stream:
                return (await stream.read()).decode(errors="replace")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, type(error).__name__, f"the log of {pod} broke off") from error

    @asynccontextmanager
    async def follow_log(self, pod: str, silence: float, **query: str) -> AsyncIterator[aiohttp.StreamReader]:
        """The log of a container as it is written."""
        path = PODS.path(self.namespace, pod, "log")
        async with self.api.stream(path, {**query, "follow": "true"}, silence) as stream:
            yield stream


@asynccontextmanager
async def connect(place: Place) -> AsyncIterator[Server]:
    """The API server, for as long as the context lasts.

    Raises:
        CommandError: there is no way to it.
    """
    server = await Server.connect(place)
    try:
        yield server
    finally:
        await server.close()


def read_job(wire: Object) -> TPUJob:
    """A TPUJob from the wire.

    Raises:
        CommandError: it is of a version that this one cannot read.
    """
    return read_as(TPUJob, wire)


def read_inference(wire: Object) -> TPUInference:
    """A TPUInference from the wire.

    Raises:
        CommandError: it is of a version that this one cannot read.
    """
    return read_as(TPUInference, wire)


def read_as(model: type[M], wire: Object) -> M:
    """An object from the wire.

    Raises:
        CommandError: it is of a version that this one cannot read.
    """
    try:
        return model.parse(wire)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise CommandError(
            f"the {model.__name__} cannot be read: {field}: {first['msg']}",
            Exit.BAD,
            "it is of another version of the operator: use the kubectl-tpu of that version",
        ) from error


def explain(error: ApiError) -> CommandError:
    """What to tell of an answer of the API server that nobody has expected."""
    if not error.answered:
        return CommandError(
            f"the API server does not answer ({error.reason}): {error.message.removesuffix(': ')}",
            Exit.UNREACHABLE,
            "`kubectl version` tells whether it is the cluster; --context chooses another one",
        )
    advice = {
        UNAUTHORIZED: "log in again; the credentials of the kubeconfig are not taken any more",
        FORBIDDEN: "ask for the role `view` (to look) or `edit` (to change) in the namespace",
        NOT_FOUND: DOCTOR,
    }.get(error.status, "")
    code = Exit.NOT_FOUND if error.gone else Exit.REFUSED
    return CommandError("\n  ".join(reasons(error.message)) or error.reason, code, advice)


def reasons(message: str) -> Iterable[str]:
    """The sentences of a refusal, of which the server lists several in brackets."""
    head, bracket, rest = message.partition(": [")
    if not bracket or not rest.endswith("]"):
        return [message] if message else []
    return [f"{head}:", *re.split(r", (?=(?:spec|metadata|status)\.)", rest[:-1])]

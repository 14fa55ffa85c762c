"""The kinds, and how their objects come from the wire whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from tpu_operator.api import API_VERSION, TPUInference, TPUJob
from tpu_operator.cli.server import Kind, read_as
from tpu_operator.engine.resources import INFERENCES, TPUJOBS, Resource

if TYPE_CHECKING:
    from collections.abc import Mapping

Object = dict[str, Any]


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """What `tpu_operator.api.ObjectMeta` has, of an object that is watched."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class Whole(msgspec.Struct, frozen=True):
    """An object that is watched, with all that its model may have."""

    metadata: Metadata
    spec: Object = msgspec.field(default_factory=dict)
    status: Object = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Family(Generic[Kind]):
    """A kind.

    Attributes:
        model: its model.
        resource: where it is in the API.
    """

    model: type[Kind]
    resource: Resource

    def read(self, wire: Object) -> Kind:
        """An object from the wire.

        Raises:
            CommandError: it is of a version that this one cannot read.
        """
        return read_as(self.model, wire)

    def read_whole(self, whole: Whole) -> Kind:
        """The same from a watch."""
        return self.read(msgspec.to_builtins(whole))

    def manifest(self, body: Kind | Mapping[str, Any]) -> Object:
        """The manifest of an object that is to be created: only what was said of it, not what is by default.

        Raises:
            ValueError: it is of another kind.
        """
        given: Mapping[str, Any] = (
            body.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
            if isinstance(body, (TPUJob, TPUInference))
            else body
        )
        kind = (
            body.kind if isinstance(body, (TPUJob, TPUInference)) else given.get("kind", self.resource.kind)
        )
        if kind != self.resource.kind:
            raise ValueError(f"a {kind} is no {self.resource.kind}")
        whole: Object = {"apiVersion": API_VERSION, "kind": kind, **given}
        whole.pop("status", None)
        return whole


JOBS = Family(TPUJob, TPUJOBS)
INFERENCE = Family(TPUInference, INFERENCES)

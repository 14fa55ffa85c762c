"""What to do about one object: data, carried out by the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpu_operator.core.inquiry import Inquiry
    from tpu_operator.core.quota import Use

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete one object, and only that incarnation of it.

    Attributes:
        kind: "Pod", "Service", "PodGroup", "Workload" or one of our kinds.
        namespace: where it is.
        name: its name.
        uid: precondition; a successor of the same name is left alone.
        grace_seconds: None for the object's own grace period.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Patch:
    """Change an object, or a part of it, that others write to as well.

    Attributes:
        kind: "Workload", "Service" or "TPUInferenceScaler".
        namespace: where it is.
        name: its name.
        version: the resource version that the change was decided on; nothing happens to a later one.
        change: the change, as a JSON merge patch.
        subresource: the part of it, "status" for example; empty for the object itself.
    """

    kind: str
    namespace: str
    name: str
    version: str
    change: Mapping[str, Any]
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Sighting:
    """An object as it was when a decision was made from it.

    Attributes:
        kind: "Node".
        namespace: where it is; empty for what is nowhere.
        name: its name.
        version: its resource version.
    """

    kind: str
    namespace: str
    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something a person watching the object wants to read."""

    warning: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Observation:
    """A duration for one of the engine's histograms.

    Attributes:
        metric: name of the histogram, without prefix.
        seconds: the duration.
        labels: values of its labels.
    """

    metric: str
    seconds: float
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Effects in the order they are carried out: applies, deletes, creates, status, events, patches.

    Attributes:
        sightings: objects that the server must still have like that, or nothing happens: a copy may be old.
        applies: objects for server-side apply.
        deletes: objects to delete.
        creates: pods to create; one that exists already is left as it is.
        status: the whole new status, or None to leave it.
        patches: changes of other objects.
        progress: how far the object has come, where that is all that is new in the status: such a status may
            wait until there is no progress any more. Empty where it has to be written now.
        events: written once the status is.
        observations: counted once the status is written.
        reserved: node pools that are kept for slices until their pods are made, with the slices' IDs.
        claimed: what those pods use of the namespace's quotas that are made now, or soon.
        inquiry: what the decision would like to know of a metrics server; a later one sees the answers.
        requeue_after: seconds until the decision changes by the passing of time alone.
    """

    sightings: tuple[Sighting, ...] = ()
    applies: tuple[Manifest, ...] = ()
    deletes: tuple[Delete, ...] = ()
    creates: tuple[Manifest, ...] = ()
    status: Mapping[str, Any] | None = None
    patches: tuple[Patch, ...] = ()
    progress: str = ""
    events: tuple[Event, ...] = ()
    observations: tuple[Observation, ...] = ()
    reserved: Mapping[str, str] = field(default_factory=dict)
    claimed: Mapping[Use, int] = field(default_factory=dict)
    inquiry: Inquiry | None = None
    requeue_after: float | None = None

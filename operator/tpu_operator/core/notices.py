"""What GKE says of coming maintenance, on the nodes themselves.

TPU nodes do not migrate while they run: at the announced time the pods on them are stopped, with those of the
whole slice (https://cloud.google.com/kubernetes-engine/docs/how-to/tpu-node-disruption).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from tpu_operator.api import Cause

if TYPE_CHECKING:
    from tpu_operator.api import Failure
    from tpu_operator.core.snapshot import Node, Pod

SCHEDULED: Final = "cloud.google.com/scheduled-maintenance-time"
"""Label: when maintenance of the host is to begin, in seconds since the epoch."""
ACTIVE: Final = "cloud.google.com/active-node-maintenance"
"""Label: ONGOING while the pods on the node are being stopped."""
TERMINATING: Final = "cloud.google.com/impending-node-termination"
"""Taint: the same, for nodes that are about to end for whatever reason."""
WINDOW: Final = "cloud.google.com/maintenance-window-started"
"""Taint: maintenance may begin at any time."""
HORIZON: Final = 3600.0
"""Seconds before its end from which on the end of a machine of limited life counts as announced.

It is known from the machine's first moment, and for up to seven days.
"""
BY_THE_NODE: Final = frozenset({Cause.NODE_LOST, Cause.EVICTED})
"""What becomes of pods when the announced time has come, whatever the node says of it."""
LEEWAY: Final = timedelta(seconds=120)
"""How much too early a node may go, or seem to: one that is lost was last heard of a minute before."""
LAST_SECOND: Final = 253402300799
"""The end of the year 9999, since the epoch."""


@dataclass(frozen=True, slots=True)
class Notice:
    """What is to happen to a node.

    Attributes:
        start: when; None if it may happen at any moment.
        active: whether it happens now: the pods are being stopped.
        text: what is to happen to which node, and when, in words.
    """

    start: datetime | None
    active: bool
    text: str

    def begun(self, time: datetime) -> bool:
        """Whether it may have begun at that time."""
        return self.active or self.start is None or self.start <= time + LEEWAY


class Told(msgspec.Struct, frozen=True):
    """What pods are told of maintenance, as JSON in their annotation.

    Attributes:
        start: when it begins; None if at any moment.
        checkpoint: when to save what must not be lost.
    """

    start: Annotated[datetime, msgspec.Meta(tz=True)] | None
    checkpoint: Annotated[datetime, msgspec.Meta(tz=True)]


def notice_of(node: Node, now: datetime, ahead: float = HORIZON) -> Notice | None:
    """What a node says of its future; None if nothing is announced.

    Args:
        node: the node.
        now: the time.
        ahead: seconds before the end of a machine of limited life from which on that counts.
    """
    labels, name = node.metadata.labels, node.metadata.name
    taints = [taint.key for taint in node.spec.taints]
    if labels.get(ACTIVE) == "ONGOING" or TERMINATING in taints:
        return Notice(None, True, f"maintenance of node {name} is under way")
    if WINDOW in taints:
        return Notice(None, False, f"maintenance of node {name} may begin at any time")
    if start := _epoch(labels.get(SCHEDULED, "")):
        return Notice(start, False, f"maintenance of node {name} begins at {stamp(start)}")
    end = _end(node)
    if end and (end - now).total_seconds() <= ahead:
        return Notice(end, False, f"node {name} ends at {stamp(end)}")
    return None


def horizon(lead_seconds: float) -> float:
    """Seconds before its end from which on the end of a machine of limited life counts for a job.

    A job that wants twice that time to save its state and to move has to know earlier than others.
    """
    return max(HORIZON, 2 * lead_seconds)


def until_notice(node: Node, now: datetime, ahead: float) -> float | None:
    """Seconds until the end of a machine of limited life counts as announced, None if it does by now."""
    end = _end(node)
    left = (end - now).total_seconds() - ahead if end else 0.0
    return left if left > 0 else None


def remembered(pod: Pod) -> Notice | None:
    """What a pod was told when its node was still there."""
    if not pod.metadata.annotations.maintenance:
        return None
    try:
        told = msgspec.json.decode(pod.metadata.annotations.maintenance, type=Told)
    except msgspec.MsgspecError:
        return None
    when = f" from {stamp(told.start)}" if told.start else ""
    return Notice(told.start, False, f"maintenance of node {pod.spec.node_name} was announced{when}")


def attributed(failure: Failure, notice: Notice | None, now: datetime) -> Failure:
    """A failure, put down to maintenance where that is what has happened to its node."""
    if notice is None or not notice.begun(failure.time or now):
        return failure
    if failure.cause not in BY_THE_NODE and (not notice.active or failure.cause == Cause.PLACEMENT_MISMATCH):
        return failure
    message = f"{notice.text}: {failure.message}" if failure.message else notice.text
    return failure.model_copy(update={"cause": Cause.MAINTENANCE, "message": message})


def stamp(time: datetime) -> str:
    """A time, in UTC and whole seconds."""
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"


def _end(node: Node) -> datetime | None:
    if not node.metadata.annotations.machine_end:
        return None
    try:
        end = datetime.fromisoformat(node.metadata.annotations.machine_end)
    except ValueError:
        return None
    return end if end.tzinfo else end.replace(tzinfo=UTC)


def _epoch(text: str) -> datetime | None:
    seconds = int(text) if text.isdecimal() and len(text) <= len(str(LAST_SECOND)) else 0
    return datetime.fromtimestamp(seconds, UTC) if 0 < seconds <= LAST_SECOND else None

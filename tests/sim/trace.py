"""What happened, one line each: to read, and to compare two runs of a seed."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any

from tests.sim.loop import OWNER

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from tests.sim.server import Change, Object


class Trace:
    """The lines of one run."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self.lines: list[str] = []

    def add(self, who: str, what: str) -> None:
        """Note something."""
        self.lines.append(f"{self._loop.time():9.3f} {who:<12} {what}")

    def change(self, change: Change) -> None:
        """Note a change of the server's state."""
        stored = change.new or change.old
        assert stored is not None
        if change.plural == "leases":
            self._lease(change)
            return
        verb = "creates" if change.old is None else "changes" if change.new else "removes"
        name = "/".join(filter(None, change.key))
        if change.plural == "events":
            name = name.partition(".")[0]  # what follows is random
        text = describe(change.plural, stored.body)
        self.add(change.writer, f"{verb} {change.plural} {name} @{change.version} {text}")

    def _lease(self, change: Change) -> None:
        """Note a new holder; renewals are too many, and identities are never the same."""
        old, new = ((s.body["spec"].get("holderIdentity") if s else "") for s in (change.old, change.new))
        if old != new:
            self.add(change.writer, "leads" if new else "lets go of the lease")

    def digest(self) -> str:
        """One value for all of it."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()

    def tail(self, count: int, *words: str) -> str:
        """The last lines, or the last of those that contain one of some words."""
        lines = [line for line in self.lines if not words or any(word in line for word in words)]
        return "\n".join(lines[-count:])


class LogTrace(logging.Handler):
    """Brings the operator's log into the trace; exceptions that it did not expect go to `crashes`."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(logging.INFO)
        self._trace = trace
        self.crashes: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        owner = OWNER.get()
        text = record.getMessage()
        if not text.startswith("leading as"):
            self._trace.add(owner.name if owner else "?", f"  log {record.levelname.lower()}: {text}")
        if record.exc_info:
            self.crashes.append(f"{text}: {logging.Formatter().formatException(record.exc_info)}")


def describe(plural: str, body: Object) -> str:
    """What matters of an object, in a few words."""
    match plural:
        case "pods":
            return _pod(body)
        case "tpujobs":
            return _job(body)
        case "events":
            count = body.get("series", {}).get("count", 1)
            return f"{body['reason']} x{count}: {body['note']}"
        case _:
            return ""


def _pod(body: Object) -> str:
    meta, status = body["metadata"], body.get("status", {})
    labels = meta.get("labels", {})
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
    words = [
        f"attempt={labels.get('tpu-operator.dev/attempt')}",
        status.get("phase", ""),
        "ready" if ready else "",
        f"on {body['spec']['nodeName']}" if body["spec"].get("nodeName") else "",
        "deleting" if meta.get("deletionTimestamp") else "",
        *meta.get("finalizers", ()),
    ]
    return " ".join(filter(None, words))


def _job(body: Object) -> str:
    spec, status = body["spec"], body.get("status", {})
    conditions = [f"{c['type']}/{c['reason']}" for c in status.get("conditions", ()) if c["status"] == "True"]
    slices = [f"{s['index']}:{s['attempt']}:{s['state']}" for s in status.get("slices", ())]
    restarts: dict[str, Any] = status.get("restarts", {})
    words = [
        status.get("phase", "-"),
        status.get("ready", ""),
        f"slices={slices} true={conditions}",
        f"restarts={restarts.get('total', 0)}/{restarts.get('counted', 0)}",
        "suspend" if spec.get("suspend") else "",
        "deleting" if body["metadata"].get("deletionTimestamp") else "",
    ]
    return " ".join(filter(None, words))

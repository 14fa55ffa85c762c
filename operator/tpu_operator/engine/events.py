"""Kubernetes Events about our objects, for `kubectl describe`."""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tpu_operator.core.names import FIELD_MANAGER
from tpu_operator.engine.client import ApiError, FencedError
from tpu_operator.engine.clock import wall_clock
from tpu_operator.engine.resources import EVENTS

if TYPE_CHECKING:
    from tpu_operator.core.plan import Event
    from tpu_operator.engine.client import ApiServer
    from tpu_operator.engine.clock import Clock

log = logging.getLogger(__name__)

QUIET: Final = 600.0
"""Seconds in which an event is not repeated word for word."""
MEMORY: Final = 4096
"""Events remembered before old ones are forgotten."""
MAX_NOTE: Final = 1024
"""The API's limit on an event's note, in bytes."""


@dataclass(frozen=True, slots=True)
class Regarding:
    """The object that an event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


class Recorder:
    """Writes events. One that cannot be written is logged and forgotten: events are for people.

    Args:
        api: where to write.
        instance: name of this replica.
        clock: tells when events happened.
    """

    def __init__(self, api: ApiServer, instance: str, clock: Clock = wall_clock) -> None:
        self._api = api
        self._clock = clock
        self._instance = instance
        self._recent: dict[tuple[str, str, str], float] = {}

    async def record(self, regarding: Regarding, event: Event) -> None:
        """Write one event, unless the same was written a short while ago."""
        key = (regarding.uid, event.reason, event.message)
        now = asyncio.get_running_loop().time()
        if now - self._recent.get(key, float("-inf")) < QUIET:
            return
        self._recent[key] = now
        if len(self._recent) > MEMORY:
            self._recent = {k: at for k, at in self._recent.items() if now - at < QUIET}
        try:
            await self._api.create(EVENTS, self._manifest(regarding, event))
        except (ApiError, FencedError) as error:
            log.warning("event %s about %s not written: %s", event.reason, regarding.name, error)

    def _manifest(self, regarding: Regarding, event: Event) -> dict[str, Any]:
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": f"{regarding.name[:230]}.{uuid.uuid4().hex[:16]}",
                "namespace": regarding.namespace,
            },
            "eventTime": self._clock().strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "type": "Warning" if event.warning else "Normal",
            "reason": event.reason[:128],
            "action": "Reconcile",
            "note": event.message.encode()[:MAX_NOTE].decode(errors="ignore"),
            "reportingController": f"tpu-operator.dev/{FIELD_MANAGER}",
            "reportingInstance": self._instance[:128],
            "regarding": {
                "apiVersion": regarding.api_version,
                "kind": regarding.kind,
                "namespace": regarding.namespace,
                "name": regarding.name,
                "uid": regarding.uid,
            },
        }

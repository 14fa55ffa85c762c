"""Leader election over a Lease, with a fence.

As in client-go: whoever holds the Lease renews it every few seconds, and others take it over once it has not
been renewed for its duration by their own clocks. The clocks of two machines are never compared. The fence is
`held`: a leader that could not renew in time stops writing before anybody else may begin, even if it was
frozen meanwhile, since it asks the clock before every write.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tpu_operator.engine.client import ApiError, decode
from tpu_operator.engine.clock import wall_clock
from tpu_operator.engine.metrics import LEADER
from tpu_operator.engine.resources import LEASES

if TYPE_CHECKING:
    from tpu_operator.engine.client import ApiServer
    from tpu_operator.engine.clock import Clock

log = logging.getLogger(__name__)

DURATION: Final = 12
"""Seconds after which others may take the Lease over, which makes fail-over take less than 15 in all."""
RENEW_DEADLINE: Final = 8.0
"""Seconds without a renewal after which the holder gives up by itself, well before others may take over."""
RENEW: Final = 2.0
"""Seconds between renewals."""
LONGEST: Final = 120
"""Seconds that the holder of another version may ask for; more would keep everybody from leading."""
REQUEST: Final = 4.0
"""Seconds for one request. The server keeps to it as well: a late renewal by a holder that has died would
make its Lease last longer."""
MOST_TRANSITIONS: Final = (1 << 31) - 1
LOOK: Final = 1.0
"""Seconds between looks of those that wait for the Lease, so that one let go of is taken within 2."""


class _Spec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_transitions: int | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    acquire_time: str | None = None


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Lease(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)


class Elector:
    """Competes for one Lease.

    Args:
        api: where the Lease is. Its own fence does not apply to the Lease.
        namespace: namespace of the Lease.
        name: its name.
        identity: who we are; unique among the replicas and their restarts.
        clock: tells the times that are written into the Lease.
    """

    def __init__(
        self, api: ApiServer, namespace: str, name: str, identity: str, clock: Clock = wall_clock
    ) -> None:
        self._api = api
        self._clock = clock
        self._path = LEASES.path(namespace, name)
        self._collection = LEASES.path(namespace)
        self._name = name
        self._identity = identity
        self._renewed = float("-inf")
        self._observed: tuple[str, float] = ("", 0.0)
        LEADER.set_function(lambda: float(self.held()))

    def held(self) -> bool:
        """Whether we lead for sure."""
        return _monotonic() - self._renewed < RENEW_DEADLINE

    def left(self) -> float:
        """Seconds for which nobody else can lead; none if nothing more may be begun."""
        return self._renewed + DURATION - _monotonic() if self.held() else 0.0

    async def acquire(self) -> None:
        """Wait until we lead."""
        while True:
            if await self._attempt():
                log.info("leading as %s", self._identity)
                return
            await asyncio.sleep(LOOK)

    async def keep(self) -> None:
        """Renew for as long as that works; returns once leadership is lost."""
        while self.held():
            await asyncio.sleep(RENEW)
            await self._attempt()
        log.error("the lease could not be renewed for %d s, leadership is lost", RENEW_DEADLINE)

    async def release(self) -> None:
        """Let go of the Lease at once, so that a successor need not wait for it to run out."""
        if not self.held():
            return
        self._renewed = float("-inf")
        try:
            lease = await self._read()
            if lease is not None and lease.spec.holder_identity == self._identity:
                await self._put(lease, holder="", duration=1)
        except ApiError as error:
            log.warning("the lease could not be released, it runs out by itself: %s", error)

    async def _attempt(self) -> bool:
        """Take or renew the Lease if that may be; whether we hold it now."""
        before = _monotonic()
        try:
            lease = await self._read()
            if lease is None:
                if self._may_be_held():
                    return False
                await self._create()
            elif lease.spec.holder_identity == self._identity or self._expired(lease):
                await self._put(lease, holder=self._identity, duration=DURATION)
            else:
                self._renewed = float("-inf")
                return False
        except ApiError as error:
            log.log(logging.DEBUG if error.conflict else logging.WARNING, "lease: %s", error)
            return self.held()
        # Counted from before the request: the server may have stored it at any moment since.
        self._renewed = before
        return True

    def _may_be_held(self) -> bool:
        """Whether somebody else may still hold a Lease that was deleted, and not know of that yet."""
        version, since = self._observed
        return not self.held() and bool(version) and _monotonic() - since <= DURATION

    def _expired(self, lease: _Lease) -> bool:
        """Whether the holder has let the Lease run out, or has let go of it."""
        if not lease.spec.holder_identity:
            return True
        version, since = self._observed
        if lease.metadata.resource_version != version:
            self._observed = (lease.metadata.resource_version, _monotonic())
            return False
        # The holder's own measure, which is another one while versions change.
        asked = min(lease.spec.lease_duration_seconds or 0, LONGEST)
        return _monotonic() - since > max(asked, DURATION)

    async def _read(self) -> _Lease | None:
        try:
            data = await self._request("GET", self._path)
        except ApiError as error:
            if error.gone:
                return None
            raise
        return decode(data, _Lease)

    async def _create(self) -> None:
        body = self._body(_Lease(), self._identity, DURATION)
        await self._request("POST", self._collection, body)

    async def _put(self, lease: _Lease, *, holder: str, duration: int) -> None:
        """Replace the Lease, unless somebody else has done so first."""
        body = self._body(lease, holder, duration)
        await self._request("PUT", self._path, body)

    async def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        query = {"timeout": f"{REQUEST:.3f}s"}
        return await self._api.request(method, path, query=query, body=body, timeout=REQUEST)

    def _body(self, lease: _Lease, holder: str, duration: int) -> dict[str, Any]:
        now = self._clock().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        version = lease.metadata.resource_version
        same = lease.spec.holder_identity == holder
        # To let go is no transition yet, nor is the first holder's coming.
        taken_over = bool(holder and version and not same)
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": duration,
            "renewTime": now,
            "acquireTime": (lease.spec.acquire_time if same else None) or now,
            "leaseTransitions": min((lease.spec.lease_transitions or 0) + taken_over, MOST_TRANSITIONS),
        }
        metadata = {"name": self._name} | ({"resourceVersion": version} if version else {})
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }


def _monotonic() -> float:
    return asyncio.get_running_loop().time()

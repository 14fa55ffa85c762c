"""The simulated API server right behind the operator's client, and what a test lets go wrong between them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.builders import NOW
from tests.sim.server import RefusalError, Request, Server
from tpu_operator.engine.client import WRITE_TIMEOUT, ApiError, ApiServer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


def clock() -> datetime:
    """The time of day goes as the loop's."""
    return NOW + timedelta(seconds=asyncio.get_running_loop().time())


class Sent(NamedTuple):
    """A request, and when it was sent."""

    at: float
    method: str
    path: str
    query: Mapping[str, str]
    body: dict[str, Any]


@dataclass
class Direct(ApiServer):
    """Requests that reach the server at once.

    Attributes:
        server: the server.
        sent: all requests.
        failures: what happens to the next requests instead; None for nothing.
        lost: whether the server carries out what fails, and only the answer is lost.
        latency: seconds that each request takes.
    """

    server: Server = field(default_factory=lambda: Server(clock))
    sent: list[Sent] = field(default_factory=list)
    failures: list[Exception | None] = field(default_factory=list)
    lost: bool = False
    latency: float = 0.0

    def __post_init__(self) -> None:
        self.write_time = lambda: WRITE_TIMEOUT
        self._given_up = float("-inf")

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "",
        timeout: float = 30.0,  # noqa: ASYNC109
    ) -> bytes:
        now = asyncio.get_running_loop().time()
        self.sent.append(Sent(now, method, path, query or {}, dict(body or {})))
        if self.latency >= timeout:
            await asyncio.sleep(timeout)
            raise ApiError(0, "TimeoutError", path)
        await asyncio.sleep(self.latency)
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None and not self.lost:
            raise failure
        request = Request("op", method, path, query or {}, json.dumps(body or {}).encode(), content_type)
        try:
            answer = self.server.handle(request)
        except RefusalError as refusal:
            raise ApiError(refusal.status, refusal.reason, refusal.message) from refusal
        if failure is not None:
            raise failure
        return answer

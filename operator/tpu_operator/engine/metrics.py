"""Metrics of the operator (contract A6), and the server that shows them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.core import Metric

PREFIX: Final = "tpu_operator_"

RECONCILE_SECONDS = Histogram(
    PREFIX + "reconcile_duration_seconds", "Time of one pass over one object.", ["kind"]
)
RECONCILE_ERRORS = Counter(PREFIX + "reconcile_errors", "Passes that failed.", ["kind"])
QUEUE_DEPTH = Gauge(PREFIX + "queue_depth", "Objects that wait for a pass.", ["queue"])
QUEUE_OLDEST = Gauge(PREFIX + "queue_oldest_seconds", "How long the first of them has waited.", ["queue"])
WATCH_AGE = Gauge(
    PREFIX + "watch_age_seconds",
    "Time since a watch last said anything.",
    ["resource", "namespace", "selector"],
)
API_REQUESTS = Counter(
    PREFIX + "api_requests", "Requests to the API server; code 0 is no answer.", ["verb", "resource", "code"]
)
LISTENER_ERRORS = Counter(
    PREFIX + "listener_errors",
    "Changes of objects that a part of the operator failed to take note of.",
    ["resource"],
)
METRIC_ERRORS = Counter(
    PREFIX + "metric_errors", "Jobs left out of a metric, as their status makes no sense."
)
EVENTS_LOST = Counter(PREFIX + "events_lost", "Kubernetes Events that could not be written.")
LOOP_LAG = Gauge(
    PREFIX + "loop_lag_seconds", "The latest that the event loop has woken up since the last scrape."
)
WAITS: Final = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 4 * 3600, 12 * 3600)
OBSERVED: Final = {
    "gang_start_seconds": Histogram(
        PREFIX + "gang_start_seconds", "From a gang's start to all hosts ready.", buckets=WAITS
    ),
    "gang_restart_seconds": Histogram(
        PREFIX + "gang_restart_seconds",
        "From the decision to restart to all hosts ready.",
        ["cause"],
        buckets=WAITS,
    ),
}
"""Histograms that plans report to, by name without prefix."""
LEADER = Gauge(PREFIX + "leader", "1 on the replica that leads.")

LAG_INTERVAL: Final = 0.25
"""Seconds between looks: a stall that is shorter may fall between two."""


class LoopLag:
    """The latest that the event loop has woken up since somebody last asked."""

    def __init__(self) -> None:
        self._worst = 0.0
        LOOP_LAG.set_function(self.take)

    def take(self) -> float:
        """The worst so far, in seconds; it is forgotten then."""
        worst, self._worst = self._worst, 0.0
        return worst

    async def measure(self) -> None:
        """Measure for ever."""
        loop = asyncio.get_running_loop()
        while True:
            expected = loop.time() + LAG_INTERVAL
            await asyncio.sleep(LAG_INTERVAL)
            self._worst = max(self._worst, loop.time() - expected)


async def render(registry: CollectorRegistry = REGISTRY) -> bytes:
    """All metrics as text, without holding up the event loop: ten thousand jobs take a second.

    They are collected on the loop, where what they tell of lives, and written down on a thread.
    """
    families = []
    for family in registry.collect():
        families.append(family)
        await asyncio.sleep(0)
    return await asyncio.to_thread(generate_latest, _Collected(families))


class _Collected(CollectorRegistry):
    """Metrics of a moment."""

    def __init__(self, families: list[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


async def serve(port: int, unready: Callable[[], str]) -> web.AppRunner:
    """Serve `/metrics` and `/readyz` on all addresses; the caller cleans the runner up.

    Args:
        port: where.
        unready: why this replica could not take over now; empty if it could.
    """

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=await render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def readyz(_: web.Request) -> web.Response:
        why = unready()
        return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/readyz", readyz)])
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner

"""The launcher's HTTP port: probes, metrics, and the gate."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Awaitable, Callable, Optional

from tpu_runtime import gate as gates
from tpu_runtime import http, profiles

if TYPE_CHECKING:
    from tpu_runtime.chips import Chips
    from tpu_runtime.gate import Gate
    from tpu_runtime.hang import Heart
    from tpu_runtime.processes import Group
    from tpu_runtime.profiles import Profiler

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class Health:
    """What the launcher tells of itself.

    Attributes:
        gate: the gate, on the host that keeps it.
        group: the processes, once they were started.
        expected: how many processes there should be.
        started: when the launcher started, by the monotonic clock.
        gate_seconds: how long it took to pass the gate; None before.
        restarts: attempts that the pod has seen the end of without being replaced.
        heart: the heartbeats of the processes, once they were started.
        works: whether what the processes are to bring up is up; None if that is not for us to know.
        chips: what libtpu says of the chips, where there are any.
        profiler: takes traces of the processes, once they were started.
    """

    gate: Optional[Gate]
    started: float
    group: Optional[Group] = None
    expected: int = 0
    gate_seconds: Optional[float] = None
    restarts: int = 0
    heart: Optional[Heart] = None
    works: Optional[Callable[[], Awaitable[bool]]] = None
    chips: Optional[Chips] = None
    profiler: Optional[Profiler] = None

    def wait_again(self) -> None:
        """Back to the gate, once the processes have ended."""
        self.started, self.gate_seconds = time.monotonic(), None
        self.group, self.expected, self.works, self.profiler = None, 0, None, None

    async def handle(self, request: http.Request) -> http.Response:
        """Answer a request."""
        posts: dict[str, Callable[[], Awaitable[http.Response]]] = {
            **{path: partial(gates.answer_request, self.gate, path, request.body) for path in gates.PATHS},
            profiles.PATH: partial(self._profile, request.body),
        }
        pages: dict[str, Callable[[], Awaitable[http.Response]]] = {
            "/healthz": self._healthz,
            "/readyz": self._working,
            "/metrics": self._metrics,
            "/stacks": self._stacks,
        }
        if request.path.startswith(f"{profiles.PATH}/") and request.method == "GET" and self.profiler:
            return self.profiler.file(request.path[len(profiles.PATH) + 1 :])
        method, page = "POST", posts.get(request.path)
        if page is None:
            method, page = "GET", pages.get(request.path)
        if page is None:
            return http.text(404, f"there is nothing at {request.path}; try {', '.join(pages)}")
        if request.method != method:
            return http.text(405, f"{request.path} wants {method}")
        return await page()

    async def _healthz(self) -> http.Response:
        return http.text(200, "ok")

    def _readyz(self) -> http.Response:
        if self.gate_seconds is None:
            return http.text(503, "waiting at the gate for the other hosts")
        running = len(self.group.running) if self.group else 0
        if running < self.expected or not self.expected:
            return http.text(503, f"{running} of {self.expected} processes are running")
        return http.text(200, "ok")

    async def _working(self) -> http.Response:
        ready = self._readyz()
        if ready.status == HTTPStatus.OK and self.works is not None and not await self.works():
            return http.text(503, "the processes are running, the Ray node that they are for is not up")
        return ready

    async def _metrics(self) -> http.Response:
        now = time.monotonic()
        passed = self.gate_seconds is not None
        rows = [
            ("gate_seconds", "gauge", "Seconds spent at the gate, so far or in all.", self._at_gate(now)),
            ("gate_passed", "gauge", "1 once all hosts of the job were there.", int(passed)),
            (
                "processes_running",
                "gauge",
                "Processes that run.",
                len(self.group.running) if self.group else 0,
            ),
            (
                "process_restarts_total",
                "counter",
                "Times that the processes were started again in this pod.",
                self.restarts,
            ),
        ]
        if self.group:
            beat = self.heart.last() if self.heart else None
            age = now - self.group.last_output if beat is None else time.time() - beat
            text = (
                "Seconds since the last heartbeat of a process, or since one wrote something if none has any."
            )
            rows.append(("heartbeat_age_seconds", "gauge", text, age))
        of_chips = await self.chips.metrics() if self.chips and self.group and self.group.running else ""
        return http.Response(200, ("".join(_metric(*row) for row in rows) + of_chips).encode(), _METRICS_TYPE)

    async def _stacks(self) -> http.Response:
        stacks = await self.heart.stacks() if self.heart else ""
        return http.text(
            200, stacks or "no process has started JAX or TorchTPU, or called tpu_runtime.heartbeat(), yet"
        )

    async def _profile(self, body: bytes) -> http.Response:
        if self.profiler is None:
            return http.text(409, "the processes have not been started yet")
        return await self.profiler.take(body)

    def _at_gate(self, now: float) -> float:
        return now - self.started if self.gate_seconds is None else self.gate_seconds


def _metric(name: str, kind: str, text: str, value: float) -> str:
    full = f"tpu_launch_{name}"
    return f"# HELP {full} {text}\n# TYPE {full} {kind}\n{full} {value:g}\n"

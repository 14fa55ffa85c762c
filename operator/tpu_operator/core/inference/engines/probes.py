"""How Kubernetes sees that an engine serves, and how an engine ends without dropping a stream.

Compilation for a TPU takes from minutes to hours (the largest published budget is four hours), and an engine
that compiles may answer nothing at all. So nothing is asked but for readiness until it has served once, and a
silence of less than ten minutes does not end it after that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpu_operator.core import names

if TYPE_CHECKING:
    from tpu_operator.api import Drain
    from tpu_operator.core.inference.engines.pod import Seat
    from tpu_operator.core.plan import Manifest

STARTUP_SECONDS: Final = 4 * 3600
"""Time that an engine has until it serves for the first time."""
STARTUP_PERIOD: Final = 10
LIVENESS_PERIOD: Final = 30
LIVENESS_MISSES: Final = 20
REPORT_SECONDS: Final = 15
"""What a pod has beyond the drain, to end what is left and write its report; contract A5."""
LAUNCHER_SPARE: Final = 10
"""Seconds by which the launcher waits longer than the engine is told to take."""
KV_LEASE_SECONDS: Final = 30
"""How long vLLM keeps the KV of a finished prefill for the decoder that is to fetch it."""
MODELS: Final = "/v1/models"
"""Answered only once the model is loaded; `/health` speaks of the process alone."""

AWAIT_LEADER: Final = """\
import socket, sys, time
end = time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    try:
        socket.create_connection((sys.argv[1], int(sys.argv[2])), 2).close()
    except OSError:
        break
    time.sleep(0.5)
"""
"""Returns when the launcher of a slice's host 0 is gone. Python is there wherever a launcher is."""


def probes(seat: Seat, port: int, launcher_port: int = names.LAUNCHER_PORT) -> Manifest:
    """Probes of one host: of the model where requests go, of the launcher where only processes are.

    Args:
        seat: the host.
        port: where the engine itself listens, behind a sidecar too.
        launcher_port: where the launcher does.
    """
    if not seat.leads:
        ready = {"httpGet": {"path": "/readyz", "port": launcher_port}, "periodSeconds": 2}
        return {"readinessProbe": ready}
    serves = {"path": MODELS, "port": port}
    return {
        "startupProbe": {
            "httpGet": serves,
            "periodSeconds": STARTUP_PERIOD,
            "timeoutSeconds": 5,
            "failureThreshold": STARTUP_SECONDS // STARTUP_PERIOD,
        },
        "readinessProbe": {
            "httpGet": serves,
            "periodSeconds": 5,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
        "livenessProbe": {
            "httpGet": {"path": "/health", "port": port},
            "periodSeconds": LIVENESS_PERIOD,
            "timeoutSeconds": LIVENESS_PERIOD,
            "failureThreshold": LIVENESS_MISSES,
        },
    }


def grace_seconds(drain: Drain) -> int:
    """How long the pod has to end: routers forget it, streams run out, the launcher reports."""
    return drain.route_away_seconds + drain.engine_seconds + REPORT_SECONDS


def held_seconds(drain: Drain, *, prefill: bool) -> int:
    """How long an engine goes on as ever after it was told to go.

    Prefilling ends within seconds, but its KV is fetched later: there most of the drain is for that.
    """
    lease = min(KV_LEASE_SECONDS, drain.engine_seconds * 2 // 3) if prefill else 0
    return drain.route_away_seconds + lease


def shutdown_seconds(drain: Drain, *, prefill: bool) -> int:
    """How long an engine may then finish requests."""
    return drain.route_away_seconds + drain.engine_seconds - held_seconds(drain, prefill=prefill)


def launcher_grace(seat: Seat, drain: Drain, *, prefill: bool) -> int:
    """How long the launcher lets its process finish; on other hosts the engine is over by then."""
    return LAUNCHER_SPARE + (shutdown_seconds(drain, prefill=prefill) if seat.leads else 0)


def lifecycle(
    seat: Seat, drain: Drain, *, prefill: bool, launcher_port: int = names.LAUNCHER_PORT
) -> Manifest | None:
    """What happens before a container is told to stop.

    Host 0 waits until no router sends it requests any more. The others wait until host 0 has ended: without
    them, its streams would break.
    """
    if seat.leads:
        seconds = held_seconds(drain, prefill=prefill)
        return {"preStop": {"sleep": {"seconds": seconds}}} if seconds else None
    patience = drain.route_away_seconds + drain.engine_seconds
    command = ["python3", "-c", AWAIT_LEADER, seat.leader, str(launcher_port), str(patience)]
    return {"preStop": {"exec": {"command": command}}}

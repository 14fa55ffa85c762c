"""Why a pod failed, from the evidence that outlives its processes.

The launcher's termination message is the best witness: it carries the time at which the first process of
the host failed, by that host's clock, which is what tells the root cause of a gang's failure from the
failures that followed. Without it, the kubelet's word is taken.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tpu_operator.api import Cause, Failure
from tpu_operator.core import names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpu_operator.core.snapshot import Pod, Terminated

COUNTED: Final = frozenset(
    {Cause.USER_ERROR, Cause.OUT_OF_MEMORY, Cause.HANG, Cause.STARTUP_TIMEOUT, Cause.LAUNCHER_ERROR}
)
"""Causes that use up `maxRestarts` unless a rule says otherwise: the job's own doing, not the platform's."""

LAUNCHER_CODES: Final = {
    64: Cause.LAUNCHER_ERROR,
    69: Cause.LAUNCHER_ERROR,
    75: Cause.LAUNCHER_ERROR,
    76: Cause.TPU_FAULT,
    77: Cause.HANG,
}
"""Exit codes that `tpu-launch` keeps for itself (contract A4)."""

POD_REASONS: Final = {"Evicted": Cause.EVICTED, "Preempting": Cause.PREEMPTED, "NodeLost": Cause.NODE_LOST}
DISRUPTIONS: Final = {
    "PreemptionByScheduler": Cause.PREEMPTED,
    "EvictionByEvictionAPI": Cause.EVICTED,
    "TerminationByKubelet": Cause.EVICTED,
    "DeletionByTaintManager": Cause.NODE_LOST,
    "DeletionByPodGC": Cause.NODE_LOST,
}
"""Reasons of the pod condition DisruptionTarget, as Kubernetes documents them."""


def failure_of(pod: Pod, now: datetime) -> Failure | None:
    """How a pod failed, or None when it has not, or only stopped because it was told to."""
    report = _report(pod.terminated)
    disruption = _disruption(pod)
    if not pod.failed and not (pod.deleting and not pod.succeeded):
        return None
    if disruption is None and pod.deleting and (not pod.failed or _stopped(pod, report)):
        return _failure(pod, Cause.POD_DELETED, pod.deletion_requested or now, "", report)
    if disruption is None and not pod.failed:
        return None
    cause = disruption or _cause(pod.terminated, report)
    return _failure(pod, cause, _time(pod, report, now), _reason(pod), report)


def missing(pod_name: str, slice_index: int | None, host: int | None, attempt: int, now: datetime) -> Failure:
    """The failure of a pod that is gone although nobody here has deleted it."""
    return Failure(
        cause=Cause.POD_DELETED,
        attempt=attempt,
        pod=pod_name,
        slice=slice_index,
        host=host,
        message=f"pod {pod_name} was deleted",
        time=now,
    )


def root(failures: Iterable[Failure]) -> Failure | None:
    """The failure that came first: what follows in a gang is its echo."""
    return min(failures, key=_order, default=None)


def _order(failure: Failure) -> tuple[datetime, int, int]:
    return (failure.time or datetime.max.replace(tzinfo=UTC), failure.slice or 0, failure.host or 0)


def earlier(one: Failure, other: Failure) -> bool:
    """Whether one failure came before another."""
    return _order(one) < _order(other)


def _report(terminated: Terminated | None) -> dict[str, Any]:
    """The launcher's termination message; empty when there is none that can be read."""
    if terminated is None or not terminated.message.startswith("{"):
        return {}
    try:
        report = msgspec.json.decode(terminated.message)
    except msgspec.DecodeError:
        return {}
    return report if isinstance(report, dict) else {}


def _stopped(pod: Pod, report: dict[str, Any]) -> bool:
    """Whether the process ended because the pod was being deleted, rather than before that."""
    if report:
        return bool(report.get("terminated"))
    ended = pod.terminated.finished_at if pod.terminated else None
    asked = pod.deletion_requested
    return ended is not None and asked is not None and ended >= asked


def _disruption(pod: Pod) -> Cause | None:
    if pod.status.reason in POD_REASONS:
        return POD_REASONS[pod.status.reason]
    condition = pod.condition("DisruptionTarget")
    return DISRUPTIONS.get(condition.reason) if condition and condition.status == "True" else None


def _cause(terminated: Terminated | None, report: dict[str, Any]) -> Cause:
    if report.get("cause") in set(Cause):
        return Cause(report["cause"])
    if terminated is not None and terminated.reason == "OOMKilled":
        return Cause.OUT_OF_MEMORY
    return LAUNCHER_CODES.get(terminated.exit_code if terminated else 1, Cause.USER_ERROR)


def _time(pod: Pod, report: dict[str, Any], now: datetime) -> datetime:
    stamp = report.get("time")
    if isinstance(stamp, int | float) and 0 < stamp < 1 << 33:
        return datetime.fromtimestamp(stamp, UTC)
    ended = pod.terminated.finished_at if pod.terminated else None
    return ended or pod.deletion_requested or now


def _reason(pod: Pod) -> str:
    return pod.status.reason or (pod.terminated.reason if pod.terminated else "")


def _failure(pod: Pod, cause: Cause, time: datetime, reason: str, report: dict[str, Any]) -> Failure:
    labels, terminated = pod.metadata.labels, pod.terminated
    signal = report.get("signal")
    message = report.get("error") or pod.status.message or (terminated.message if terminated else "")
    return Failure(
        cause=cause,
        attempt=pod.attempt,
        pod=pod.name,
        slice=_number(labels.get(names.LABEL_SLICE)),
        host=_number(labels.get(names.LABEL_HOST)),
        container=pod.main.name if pod.main else None,
        exit_code=terminated.exit_code if terminated else None,
        signal=signal if isinstance(signal, int) else None,
        reason=reason or None,
        message=str(message)[:1024] or None,
        time=time,
    )


def _number(label: str | None) -> int | None:
    return int(label) if label is not None and label.isdecimal() else None

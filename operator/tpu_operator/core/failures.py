"""Why a pod failed, from the evidence that outlives its processes.

The launcher's termination message is the best witness: it carries the time at which the first process of
the host failed, by that host's clock, which is what tells the root cause of a gang's failure from the
failures that followed. Without it, the kubelet's word is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from tpu_operator.api import Cause, Failure
from tpu_operator.core import names
from tpu_operator.core.numbers import whole
from tpu_operator.core.report import read

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpu_operator.core.nodes import Loss
    from tpu_operator.core.report import Earlier, Report
    from tpu_operator.core.snapshot import ContainerStatus, Pod, Terminated

COUNTED: Final = frozenset(
    {Cause.USER_ERROR, Cause.OUT_OF_MEMORY, Cause.HANG, Cause.STARTUP_TIMEOUT, Cause.LAUNCHER_ERROR}
)
"""Causes that use up `maxRestarts` unless a rule says otherwise: the job's own doing, not the platform's."""

LAUNCHER_CODES: Final = {
    64: Cause.LAUNCHER_ERROR,
    69: Cause.STARTUP_TIMEOUT,
    70: Cause.LAUNCHER_ERROR,
    75: Cause.LAUNCHER_ERROR,
    76: Cause.TPU_FAULT,
    77: Cause.HANG,
}
"""Exit codes that `tpu-launch` keeps for itself (contract A4)."""

MAX_MESSAGE: Final = 1024
"""Characters of a failure's message, and of its reason."""
SIGNALLED: Final = 128
"""Exit codes above it are those of programs that a signal has killed, as shells and kubelets have it."""
POD_REASONS: Final = {"Evicted": Cause.EVICTED, "Preempting": Cause.PREEMPTED, "NodeLost": Cause.NODE_LOST}
REJECTIONS: Final = {"UnexpectedAdmissionError": Cause.TPU_FAULT}
"""Why a kubelet fails a pod before it runs. This one is the device plugin's: the chips cannot be had."""
LOST_CONTAINERS: Final = frozenset({"ContainerStatusUnknown", "Unknown"})
"""Reasons of containers whose end nobody has seen: their node was started anew."""
DISRUPTIONS: Final = {
    "PreemptionByScheduler": Cause.PREEMPTED,
    "EvictionByEvictionAPI": Cause.EVICTED,
    "TerminationByKubelet": Cause.EVICTED,
    "DeletionByTaintManager": Cause.NODE_LOST,
    "DeletionByPodGC": Cause.NODE_LOST,
}
"""Reasons of the pod condition DisruptionTarget, as Kubernetes documents them."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What a failure is put down to."""

    cause: Cause
    time: datetime
    reason: str
    message: str


def failure_of(pod: Pod, now: datetime) -> Failure | None:
    """How a pod failed or was taken away for good, or None when neither has happened."""
    if not pod.failed and (pod.succeeded or not pod.deleting):
        return None
    container = _culprit(pod)
    ended = container.state.terminated if container else None
    report = read(ended.message) if ended else None
    taken = not pod.failed or _stopped(pod, ended, report)
    verdict = _taken_away(pod, ended, now) if taken else _failed(pod, container, report, now)
    return _failure(pod, container, report, verdict)


def container_failure(pod: Pod, container: ContainerStatus, ended: Terminated, now: datetime) -> Failure:
    """How one life of a container failed, in a pod that goes on."""
    life = msgspec.structs.replace(
        container, state=msgspec.structs.replace(container.state, terminated=ended)
    )
    report = read(ended.message)
    return _failure(pod, life, report, _failed(pod, life, report, now))


def earlier_failure(pod: Pod, container: ContainerStatus, ended: Earlier, now: datetime) -> Failure:
    """How a life of a container failed that only a later one still tells of."""
    code = ended.exit_code or 0
    return outside(
        pod,
        next((cause for cause in Cause if cause == ended.cause), LAUNCHER_CODES.get(code, Cause.USER_ERROR)),
        ended.error or "",
        datetime.fromtimestamp(ended.time, UTC) if ended.time else now,
    ).model_copy(update={"container": container.name, "exit_code": ended.exit_code, "signal": ended.signal})


def _failure(
    pod: Pod, container: ContainerStatus | None, report: Report | None, verdict: _Verdict
) -> Failure:
    ended = container.state.terminated if container else None
    return Failure(
        cause=verdict.cause,
        attempt=_attempt(pod),
        pod=pod.name,
        slice=whole(pod.metadata.labels.get(names.LABEL_SLICE)),
        host=whole(pod.metadata.labels.get(names.LABEL_HOST)),
        container=container.name if container else None,
        exit_code=ended.exit_code if ended else None,
        signal=(report.signal if report else None) or (ended.signal if ended else None),
        reason=verdict.reason[:MAX_MESSAGE] or None,
        message=verdict.message[:MAX_MESSAGE] or None,
        time=verdict.time,
    )


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


def node_lost(pod: Pod, loss: Loss) -> Failure:
    """The failure of a pod whose node is lost."""
    return outside(pod, Cause.NODE_LOST, loss.message, loss.time)


def misplaced(pod: Pod, message: str, now: datetime) -> Failure:
    """The failure of a pod that is apart from the others of its slice."""
    return outside(pod, Cause.PLACEMENT_MISMATCH, message, now)


def outside(pod: Pod, cause: Cause, message: str, time: datetime) -> Failure:
    """A failure that the pod itself says nothing of."""
    return Failure(
        cause=cause,
        attempt=_attempt(pod),
        pod=pod.name,
        slice=whole(pod.metadata.labels.get(names.LABEL_SLICE)),
        host=whole(pod.metadata.labels.get(names.LABEL_HOST)),
        message=message,
        time=time,
    )


def _attempt(pod: Pod) -> int:
    """The attempt of a pod; 0 where somebody has taken its label away, as a failure has to be of one."""
    return max(0, pod.attempt)


def root(failures: Iterable[Failure]) -> Failure | None:
    """The failure that came first: what follows in a gang is its echo."""
    return min(failures, key=_order, default=None)


def _order(failure: Failure) -> tuple[datetime, int, int]:
    return (failure.time or datetime.max.replace(tzinfo=UTC), failure.slice or 0, failure.host or 0)


def earlier(one: Failure, other: Failure) -> bool:
    """Whether one failure came before another."""
    return _order(one) < _order(other)


def _culprit(pod: Pod) -> ContainerStatus | None:
    """The container that speaks for the pod: the main one, unless an init container kept it from running."""
    if pod.terminated is None:
        for status in pod.status.init_container_statuses:
            if status.state.terminated is not None and status.state.terminated.exit_code != 0:
                return status
    return pod.main


def _stopped(pod: Pod, ended: Terminated | None, report: Report | None) -> bool:
    """Whether the pod ended because it was told to go, rather than failed before that."""
    told = pod.told_to_go
    if told is None and pod.status.reason not in POD_REASONS:
        return False
    if report is not None:
        return report.terminated
    if ended is None or ended.finished_at is None or told is None:
        return _disruption(pod) is not None
    return ended.finished_at >= told


def _disruption(pod: Pod) -> Cause | None:
    """What took the pod away, if Kubernetes says so."""
    if pod.status.reason in POD_REASONS:
        return POD_REASONS[pod.status.reason]
    target = pod.disruption_target
    return DISRUPTIONS.get(target.reason) if target else None


def _taken_away(pod: Pod, ended: Terminated | None, now: datetime) -> _Verdict:
    target = pod.disruption_target
    return _Verdict(
        cause=_disruption(pod) or Cause.POD_DELETED,
        time=pod.told_to_go or (ended.finished_at if ended else None) or now,
        reason=pod.status.reason or (target.reason if target else ""),
        message=pod.status.message or (target.message if target else ""),
    )


def _failed(pod: Pod, container: ContainerStatus | None, report: Report | None, now: datetime) -> _Verdict:
    ended = container.state.terminated if container else None
    return _Verdict(
        cause=_cause(pod, container, report),
        time=_time(pod, ended, report, now),
        reason=pod.status.reason or (ended.reason if ended else ""),
        message=(report.error if report else "") or pod.status.message or _last_words(ended),
    )


def _last_words(ended: Terminated | None) -> str:
    """What is known of a container that left no report: which signal killed it, and the end of its log."""
    if ended is None:
        return ""
    killed = f"killed by signal {ended.exit_code - SIGNALLED}; " if ended.exit_code > SIGNALLED else ""
    log = ended.message.strip()[len(killed) - MAX_MESSAGE :]
    return f"{killed}{log}".removesuffix("; ")


def _cause(pod: Pod, container: ContainerStatus | None, report: Report | None) -> Cause:
    ended = container.state.terminated if container else None
    if report is not None and report.cause in set(Cause):
        return Cause(report.cause)
    if container is None or ended is None:
        # No program of the user's has ended: the kubelet would not, or could not, run the pod.
        return REJECTIONS.get(pod.status.reason, Cause.EVICTED)
    if ended.reason == "OOMKilled":
        return Cause.OUT_OF_MEMORY
    if ended.reason in LOST_CONTAINERS:
        return Cause.NODE_LOST
    launched = container is pod.main and pod.metadata.labels.get(names.LABEL_COMPONENT) == names.WORKER
    return LAUNCHER_CODES.get(ended.exit_code, Cause.USER_ERROR) if launched else Cause.USER_ERROR


def _time(pod: Pod, ended: Terminated | None, report: Report | None, now: datetime) -> datetime:
    """When it failed: the launcher's word, unless that is no time at which its container ran."""
    if report is not None and report.time is not None:
        stamp = datetime.fromtimestamp(report.time, UTC)
        if ended is None or _within(stamp, ended):
            return stamp
    return (ended.finished_at if ended else None) or pod.told_to_go or now


def _within(stamp: datetime, ended: Terminated) -> bool:
    """Whether a container ran at that time; both times are its node's, Kubernetes' in whole seconds."""
    after = ended.started_at is None or stamp >= ended.started_at
    return after and (ended.finished_at is None or stamp < ended.finished_at + timedelta(seconds=2))

"""A host of a job as a person sees it: from a pod to one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tpu_operator.core import failures, names, pending, startup
from tpu_operator.core.numbers import whole

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from tpu_operator.api import Failure
    from tpu_operator.core.snapshot import Pod


class Host(msgspec.Struct, frozen=True, rename="camel"):
    """One host, or the head, of a job.

    Attributes:
        pod: name of its pod.
        slice: index of its slice; None for the head.
        host: its index in the slice; None for the head.
        state: Missing, Pending, Waiting, Starting, Running, Terminating, Succeeded or Failed.
        ready: whether it is ready.
        restarts: how often its container was started again in this pod.
        attempt: for which the pod was made, -1 where there is no pod.
        node: where it is, empty if nowhere.
        since: since when there is this pod.
        detail: what holds it up or has ended it, in words.
    """

    pod: str
    slice: int | None = None
    host: int | None = None
    state: str = "Missing"
    ready: bool = False
    restarts: int = 0
    attempt: int = -1
    node: str = ""
    since: datetime | None = None
    detail: str = ""


def host(pod: Pod, now: datetime) -> Host:
    """What there is to say of a pod."""
    state, detail = _state(pod, now)
    main, labels = pod.main, pod.metadata.labels
    return Host(
        pod=pod.name,
        slice=whole(labels.get(names.LABEL_SLICE)),
        host=whole(labels.get(names.LABEL_HOST)),
        state=state,
        ready=pod.ready,
        restarts=main.restart_count if main else 0,
        attempt=pod.attempt,
        node=pod.spec.node_name,
        since=pod.metadata.creation_timestamp,
        detail=detail,
    )


def _state(pod: Pod, now: datetime) -> tuple[str, str]:
    if pod.succeeded:
        return "Succeeded", ""
    if pod.deleting and not pod.failed:
        return "Terminating", ""
    if pod.failed:
        failure = failures.failure_of(pod, now)
        return "Failed", brief(failure) if failure else ""
    if pod.ready:
        return "Running", ""
    return _not_ready(pod)


def _not_ready(pod: Pod) -> tuple[str, str]:
    if not pod.spec.node_name:
        condition = pod.condition("PodScheduled")
        if condition is None:
            return "Pending", "no scheduler has looked at it yet"
        return "Pending", "has schedulingGates" if condition.reason == pending.GATED else condition.message
    if hold := pending.not_started([pod]):
        return "Waiting", hold.message
    return "Starting", startup.progress(pod)


def brief(failure: Failure) -> str:
    """A failure in a few words: cause, exit code or signal, message."""
    code = f", exit code {failure.exit_code}" if failure.exit_code is not None else ""
    signal = f", signal {failure.signal}" if failure.signal else ""
    text = f": {failure.message}" if failure.message else ""
    return f"{failure.cause}{code}{signal}{text}"


def place(failure: Failure) -> str:
    """Where a failure was, in words."""
    if failure.slice is None or failure.host is None:
        return f"pod {failure.pod}" if failure.pod else "the job"
    return f"host {failure.host} of slice {failure.slice} (pod {failure.pod})"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in brief: 0-3,7."""
    parts: list[list[int]] = []
    for value in sorted(numbers):
        if parts and parts[-1][1] == value - 1:
            parts[-1][1] = value
        else:
            parts.append([value, value])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)

"""The last lines of a host that has failed, from the report that its launcher left (docs/runtime.md)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpu_operator.api import Failure
    from tpu_operator.core.snapshot import ContainerStatus, Pod


def of(pods: Iterable[Pod], failure: Failure) -> tuple[str, ...]:
    """The lines; none where the pod is gone, or belongs to another attempt and says nothing of this one."""
    pod = next((pod for pod in pods if pod.name == failure.pod), None)
    if pod is None:
        return ()
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    status = next((one for one in statuses if one.name == failure.container), pod.main)
    return next((lines for text in _messages(status) if (lines := _lines(text, failure))), ())


def _messages(status: ContainerStatus | None) -> Iterable[str]:
    """What a container has left behind, in its present life and the one before."""
    states = (status.state, status.last_state) if status else ()
    return (state.terminated.message for state in states if state.terminated and state.terminated.message)


def _lines(message: str, failure: Failure) -> tuple[str, ...]:
    """The log in the report of that failure; the whole message where it is no report."""
    try:
        report = json.loads(message)
    except ValueError:
        return () if message.startswith("{") else tuple(message.strip().splitlines())
    if not isinstance(report, dict) or not _is_of(report, failure):
        return ()
    log = report.get("log")
    return tuple(str(log).rstrip("\n").splitlines()) if log else ()


def _is_of(report: dict[str, Any], failure: Failure) -> bool:
    """Whether a report is of that failure: of the same attempt, or else with the same exit code."""
    if "attempt" in report:
        return bool(report["attempt"] == failure.attempt)
    return bool(report.get("exitCode") == failure.exit_code)

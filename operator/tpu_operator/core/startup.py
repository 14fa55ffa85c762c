"""`startupTimeoutSeconds`: a gang that has all its nodes and does not come up.

All of it is read off the pods, so that an operator that starts anew goes on with the same clock.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from tpu_operator.api import Cause
from tpu_operator.core import failures

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from tpu_operator.api import Failure
    from tpu_operator.core.slicegroup import Gang
    from tpu_operator.core.snapshot import ContainerStatus, Pod

SHOWN: Final = 8
"""Hosts that a message names."""
QUOTE: Final = 160
"""Characters of what a kubelet says of each of them."""


def timed_out(gang: Gang, limit: int | None, now: datetime) -> list[Failure]:
    """The failure of a gang that is not up within its time, as that of the first host that is not.

    Args:
        gang: the gang.
        limit: seconds from when the last of its pods got a node; None for no limit.
        now: the time.
    """
    deadline, late = _deadline(gang, limit), _laggards(gang)
    if deadline is None or deadline > now or not late:
        return []
    return [failures.outside(late[0], Cause.STARTUP_TIMEOUT, _explain(gang, late, limit), deadline)]


def left(gang: Gang, limit: int | None, now: datetime) -> float | None:
    """Seconds until the gang's time is over; None once it is, and while its clock does not run."""
    deadline = _deadline(gang, limit) if _laggards(gang) else None
    return (deadline - now).total_seconds() if deadline and deadline > now else None


def _deadline(gang: Gang, limit: int | None) -> datetime | None:
    if limit is None or not gang.scheduled:
        return None
    begun = [_begun(pod) for pod in gang.current]
    known = [time for time in begun if time is not None]
    # A gang whose slices are done may have no pods any more.
    return max(known) + timedelta(seconds=limit) if known and len(known) == len(begun) else None


def _begun(pod: Pod) -> datetime | None:
    """When a pod could begin to start: when it got its node, or its container its present life.

    None before that, so between two lives of a container that is restarted in place.
    """
    scheduled, main = pod.condition("PodScheduled"), pod.main
    if main and main.restart_count:
        return main.state.running.started_at if main.state.running else None
    bound = scheduled.last_transition_time if scheduled else None
    return bound or pod.metadata.creation_timestamp


def _laggards(gang: Gang) -> list[Pod]:
    """Pods that have not been ready yet; one that was ready once has started, whatever has become of it."""
    return [pod for pod in gang.current if not (pod.ready or gang.is_done(pod) or _was_ready(pod))]


def _was_ready(pod: Pod) -> bool:
    """Whether a pod has stopped being ready: kubelets say that it is not yet before its containers run."""
    ready, main = pod.condition("Ready"), pod.main
    running = main.state.running if main else None
    if ready is None or running is None or running.started_at is None or ready.last_transition_time is None:
        return False
    return ready.last_transition_time > running.started_at


def _explain(gang: Gang, late: list[Pod], limit: int | None) -> str:
    shown = [f"{pod.name} ({progress(pod)[:QUOTE]})" for pod in late[:SHOWN]]
    more = f" and {len(late) - SHOWN} more" if len(late) > SHOWN else ""
    count = f"{len(late)} of {len(gang.members)} hosts"
    return f"{limit} s after all of them got nodes, {count} are not ready: {', '.join(shown)}{more}"


def progress(pod: Pod) -> str:
    """How far a pod that has a node has come, in words."""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if waiting := status.state.waiting:
            text = f": {waiting.message}" if waiting.message else ""
            return f"container {status.name} waits: {waiting.reason or 'no reason given'}{text}"
    if not pod.status.container_statuses:
        return f"the kubelet of node {pod.spec.node_name} has not started a container"
    return _unready(pod)


def _unready(pod: Pod) -> str:
    names = [status.name for status in _running(pod) if not status.ready]
    if pod.main and pod.main.name in names:
        return "runs, but is at the launcher's gate or without all its processes"
    return f"container {names[0]} runs, but is not ready" if names else "runs, but is not ready"


def _running(pod: Pod) -> Iterable[ContainerStatus]:
    return (status for status in pod.status.container_statuses if status.state.running)

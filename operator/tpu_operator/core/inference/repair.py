"""Replicas that have failed start anew as a whole, once, however many of their hosts have failed.

The protocol is that of TPUJobs (docs/adr/0004-the-attempt-is-the-protocol.md): the decision is only ever the
status saying `attempt + 1`, and pods of another attempt are leftovers that have to be gone first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpu_operator.api import Cause, GroupState, Restarts
from tpu_operator.core import failures, pending, restart
from tpu_operator.core.missing import LEFT_TO_SCHEDULER
from tpu_operator.core.plan import Delete

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpu_operator.core.inference.draft import Draft
    from tpu_operator.core.inference.groups import Group
    from tpu_operator.core.inference.view import InferenceView
    from tpu_operator.core.snapshot import Pod

TAKEN_AWAY: Final = frozenset({Cause.POD_DELETED, Cause.EVICTED, Cause.PREEMPTED, Cause.MAINTENANCE})
"""Causes after which the other hosts still serve, and may finish what they are at."""
NO_ROOM: Final = "the node pool that was chosen has no room after all; the scheduler looks for another"
BROKEN_GRACE: Final = 10
"""Seconds that the hosts of a replica get which has failed: its streams are lost already."""


def restarts(draft: Draft) -> None:
    """Give up the attempts of replicas that have failed, or that find no room where they were put."""
    for group in draft.view.kept:
        _refine(draft, group)
        if found := failures.root(group.failures(draft.view.now)):
            draft.restart(group, found)
        elif _pinned_in_vain(draft, group):
            draft.renew(group, LEFT_TO_SCHEDULER, NO_ROOM)


def pause(group: Group, view: InferenceView) -> float:
    """Seconds until the pods of a replica that fails again and again are made."""
    if group.record is None:
        return 0.0
    used = Restarts(since_ready=group.record.restarts_since_ready, last_time=group.record.last_restart)
    return restart.pause(used, view.now)


def leftovers(view: InferenceView) -> list[Delete]:
    """Deletions of pods of earlier attempts, and of those that belong nowhere."""
    gone = _deletes(view.surplus, None, view)
    for group in view.kept:
        cause = group.record.reason if group.record else None
        grace = None if cause in TAKEN_AWAY or cause == LEFT_TO_SCHEDULER else BROKEN_GRACE
        gone += _deletes(group.gang.stale, grace, view)
    return gone


def leaving(view: InferenceView) -> list[Delete]:
    """Deletions of the pods of replicas that have been told to go, with all the time that they need."""
    return _deletes(
        (p for group in view.groups if group.leaving for p in group.gang.pods.values()), None, view
    )


def _deletes(pods: Iterable[Pod], grace: int | None, view: InferenceView) -> list[Delete]:
    """Deletions of pods that are not going yet, or not fast enough; lost nodes would not confirm any."""
    found = []
    for pod in pods:
        meta = pod.metadata
        limit = 0 if pod.name in view.losses else grace
        if not pod.deleting or (limit is not None and meta.deletion_grace_period_seconds > limit):
            found.append(Delete("Pod", meta.namespace, meta.name, meta.uid, limit))
    return found


def _refine(draft: Draft, group: Group) -> None:
    """Correct the root of a restart when an earlier failure of that attempt comes to light."""
    record = group.record
    if record is None or record.state is not GroupState.RESTARTING or record.last_failure is None:
        return
    last = record.last_failure
    if last.attempt != group.gang.attempt - 1 or record.reason != last.cause:
        return
    found = failures.root(group.gang.reported(last.attempt, draft.view.now))
    if found is not None and failures.earlier(found, last):
        draft.refine(group, found)


def _pinned_in_vain(draft: Draft, group: Group) -> bool:
    factory = draft.view.factory(group.key)
    if factory is None or not factory.chooses_pools:
        return False
    draft.requeue(pending.patience(group.gang.current, draft.view.now))
    return pending.pinned_in_vain(group.gang.current, draft.view.now)

"""TPUJob: from what is to what should be done, as one pure function.

`plan` asks a few questions in order; the first one that has something to say decides. A decision that loses
information (a restart, a suspension, the end) is only ever a new status; the deletions that follow from it
are made by a later pass that reads it there.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from tpu_operator.api import RuleAction, SuccessPolicy
from tpu_operator.catalog import CatalogError
from tpu_operator.core import (
    capacity,
    failures,
    gangscheduling,
    grouping,
    homes,
    inplace,
    maintenance,
    pending,
    queueing,
    restart,
    spares,
    startup,
)
from tpu_operator.core.conditions import job_phase, refused
from tpu_operator.core.jobstatus import Draft, acknowledged, describe
from tpu_operator.core.jobview import JobView, observe
from tpu_operator.core.missing import LEFT_TO_SCHEDULER, missing_pods, template_faults
from tpu_operator.core.nodes import with_sightings
from tpu_operator.core.objects import services
from tpu_operator.core.objects.pods import PodFactory, owner_reference
from tpu_operator.core.plan import Delete, Plan
from tpu_operator.core.quota import demand
from tpu_operator.core.slicegroup import deletes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from tpu_operator.api import Failure
    from tpu_operator.core.plan import Manifest, Patch
    from tpu_operator.core.settings import PodSettings
    from tpu_operator.core.slicegroup import Gang
    from tpu_operator.core.snapshot import JobSnapshot

NO_ROOM: Final = "the node pool that was chosen has no room after all; the scheduler looks for another"
CHANGED: Final = "the spec or the operator's settings have changed since the pods were created"
IGNORED: Final = "FailureIgnored"
LOST_IN_PLACE: Final = "LostInPlace"
LATE_IN_PLACE: Final = "NotReadyInPlace"
"""Reasons of attempts that are not charged, around restarts in place."""
NOT_READY: Final = "not all hosts were ready again in time after a restart in place; their pods are replaced"
MANAGER: Final = "tpu-operator.dev/tpu-operator"
"""Value of `spec.managedBy` that means us; so does leaving it out."""


def plan(snapshot: JobSnapshot, now: datetime, settings: PodSettings) -> Plan:
    """What to do about a TPUJob now."""
    job = snapshot.job
    if job.metadata.deletion_timestamp is not None or job.spec.managed_by not in {None, MANAGER}:
        return Plan()
    try:
        view = observe(snapshot, now)
    except CatalogError as error:
        return refused(job.status, job.metadata.generation, now, str(error), job_phase)
    decided = _finished(view) if view.finished else _decide(view, settings)
    return with_sightings(decided, view.pods, view.losses, view.snapshot.nodes)


def _decide(view: JobView, settings: PodSettings) -> Plan:
    draft = Draft(view)
    return (
        _success(view, draft)
        or _deadline(view, draft)
        or _suspend(view, draft)
        or _queue(view, draft, settings)
        or _run(view, draft, settings)
    )


def _run(view: JobView, draft: Draft, settings: PodSettings) -> Plan:
    """What to do about a job that is to run; the homes of slices without pods are kept for them."""
    plan = _failure(view, draft, settings) or _converge(view, draft, settings)
    if not (held := homes.held(view)):
        return plan
    reserved = homes.reserved(view, queueing.factory(view, settings), held)
    return replace(plan, reserved={**reserved, **plan.reserved})


def _finished(view: JobView) -> Plan:
    """Nothing runs on, finished pods stay for their logs, and after its time the job goes."""
    meta = view.job.metadata
    running = deletes((pod for pod in view.pods if not pod.finished), view.losses)
    told = queueing.finish(view)
    status = acknowledged(view.status, meta.generation)
    ttl, ended = view.job.spec.ttl_seconds_after_finished, view.ended
    if ttl is None or ended is None:
        return Plan(deletes=running, status=status, patches=told)
    left = (ended + timedelta(seconds=ttl) - view.now).total_seconds()
    if left > 0:
        return Plan(deletes=running, status=status, patches=told, requeue_after=left)
    return Plan(deletes=(Delete("TPUJob", meta.namespace, meta.name, meta.uid),))


def _deadline(view: JobView, draft: Draft) -> Plan | None:
    limit, start = view.job.spec.active_deadline_seconds, view.status.start_time
    if limit is None or start is None or view.job.spec.suspend:
        return None
    left = (start + timedelta(seconds=limit) - view.now).total_seconds()
    if left > 0:
        draft.requeue(left)
        return None
    return draft.fail("DeadlineExceeded", f"the job was active for longer than {limit} s")


def _success(view: JobView, draft: Draft) -> Plan | None:
    if view.job.spec.success_policy == SuccessPolicy.LEADER:
        leader = view.leader
        ended = leader if leader and (leader.succeeded or leader.failed) else None
        done = ended is not None and any(gang.is_done(ended) for gang in view.gangs)
    else:
        done = all(gang.succeeded for gang in view.gangs)
    return draft.succeed() if done else None


def _suspend(view: JobView, draft: Draft) -> Plan | None:
    """Suspension gives attempts up, which makes leftovers of all pods but those of gangs that are done."""
    if not view.job.spec.suspend:
        return None
    draft.suspend(view.engaged)
    if view.engaged:
        return draft.plan()
    return draft.plan(deletes=(*_all_but_service(view), *queueing.leave(view)))


def _queue(view: JobView, draft: Draft, settings: PodSettings) -> Plan | None:
    """Nothing is made before the queue admits the job, and nothing stays when it takes the job back."""
    if view.job.spec.scheduling.queue_name is None:
        return None
    turn = queueing.turn(view, settings)
    if turn.hold is None:
        draft.ask(turn.creates)
        return None
    draft.requeue(pending.stuck_in(view.stale, view.now))
    draft.requeue(view.until_lost)
    stuck = pending.waiting_for_old(view.stale, view.now)
    draft.wait_in_queue(view.engaged, pending.refused(view.snapshot.refusal) or stuck or turn.hold, turn.why)
    if view.engaged:
        return draft.plan()
    gone = (*_all_but_service(view), *turn.deletes)
    return draft.plan(deletes=gone, creates=turn.creates, patches=turn.patches)


def _all_but_service(view: JobView) -> tuple[Delete, ...]:
    """Deletions of all that a job without pods of a present attempt does not need."""
    groups = grouping.deletes(gangscheduling.mine(view))
    return (*deletes(view.leaving, view.losses), *groups)


def _failure(view: JobView, draft: Draft, settings: PodSettings) -> Plan | None:
    plan = _refine(view, draft)
    if plan is not None:
        return plan
    # The gang whose failure is on record comes first: the pods of the others are gone because of it.
    for gang in sorted(view.gangs, key=lambda gang: view.incident(gang) is None):
        plan = _gang_failure(view, draft, gang, settings)
        if plan is not None:
            return plan
    return None


def _gang_failure(view: JobView, draft: Draft, gang: Gang, settings: PodSettings) -> Plan | None:
    """Restart a gang in which something has failed, in its pods if they all go on."""
    policy = view.job.spec.failure_policy
    final = _candidates(view, gang)
    if plan := _overtaken(view, draft, gang, final):
        return plan
    told = [] if view.incident(gang) else inplace.new_failures(gang, policy.coalesce_seconds, view.now)
    told = [gang.explained(failure, view.now) for failure in told]
    found = failures.root([*final, *_heeded(view, told)])
    if found is None and not told:
        return None
    if found is not None and (why := restart.fatal(found, policy, draft.restarts)):
        return _fail(view, draft, found, why)
    stays = (
        bool(told)
        and not final
        and inplace.possible(gang, PodFactory(view.job, view.spec, settings).revision)
    )
    if found is None:
        # A rule leaves the failure alone; but its container starts again, and so its gang does.
        draft.hesitate()
        return draft.renew([gang], IGNORED, describe(told[0]), in_place=stays)
    return draft.restart(gang, found, in_place=stays)


def _overtaken(view: JobView, draft: Draft, gang: Gang, final: list[Failure]) -> Plan | None:
    """Make new pods where a gang that restarts in place loses one, by what has made it restart or soon after.

    That is one failure and not two, and its root the earlier of them.
    """
    last, found = gang.last, failures.root(final)
    if found is None or last is None or gang.in_place_since is None or last.attempt != gang.number - 1:
        return None
    if failures.earlier(found, last) and view.status.last_failure == last and view.restarting_for(last.cause):
        draft.take_back(last)
        if why := restart.fatal(found, view.job.spec.failure_policy, draft.restarts):
            draft.record(found)
            return draft.fail(why, _why(view, found, why))
        return draft.restart(gang, found)
    if not inplace.is_echo(found, last, view.job.spec.failure_policy.coalesce_seconds):
        return None
    return draft.renew([gang], LOST_IN_PLACE, describe(found))


def _candidates(view: JobView, gang: Gang) -> list[Failure]:
    """Failures of a gang's present attempt, leaving out what the policy ignores.

    Once the first of them is on record its pods are taken down, and pods that are taken down no longer
    count.
    """
    if known := view.incident(gang):
        return _heeded(view, [*_reported(view, gang, known), known])
    late = startup.timed_out(gang, view.job.spec.startup_timeout_seconds, view.now)
    return _heeded(view, [*gang.failures(view.now), *map(gang.numbered, late)])


def _reported(view: JobView, gang: Gang, known: Failure) -> list[Failure]:
    """What is told of the attempt of a failure on record."""
    coalesce = view.job.spec.failure_policy.coalesce_seconds
    stayed = inplace.known_failures(gang, known, coalesce, view.now)
    return [*gang.reported(known.attempt, view.now), *stayed]


def _heeded(view: JobView, seen: Iterable[Failure]) -> list[Failure]:
    policy = view.job.spec.failure_policy
    return [f for f in seen if restart.action_for(f, policy) is not RuleAction.IGNORE]


def _refine(view: JobView, draft: Draft) -> Plan | None:
    """Correct the root cause of the restart under way when an earlier failure comes to light.

    Kubelets report seconds apart, so the first failure seen need not be the first that happened. If the
    job would have ended had it been known in time, it ends now.
    """
    last = view.status.last_failure
    gang = view.restarted(last) if last is not None else None
    if last is None or gang is None:
        return None
    found = failures.root(_heeded(view, _reported(view, gang, last)))
    if found is None or not failures.earlier(found, last):
        return None
    draft.take_back(last)
    why = restart.fatal(found, view.job.spec.failure_policy, draft.restarts)
    if why:
        draft.record(found)
        return draft.fail(why, _why(view, found, why))
    draft.charge(found)
    return None


def _fail(view: JobView, draft: Draft, found: Failure, why: str) -> Plan:
    """End the job, once its pods have had the time to say which of them failed first."""
    known = view.status.last_failure
    recorded = known is not None and any(view.incident(gang) for gang in view.gangs)
    draft.record(found)
    if not recorded:
        return draft.plan()
    running = [pod for pod in view.pods if not pod.finished]
    window = timedelta(seconds=view.job.spec.failure_policy.coalesce_seconds)
    left = (found.time + window - view.now).total_seconds() if found.time else 0.0
    left = min(left, window.total_seconds())
    if running and left > 0:
        draft.requeue(left)
        return draft.plan(deletes=deletes(running, view.losses))
    return draft.fail(why, _why(view, found, why))


def _why(view: JobView, found: Failure, why: str) -> str:
    text = describe(found)
    if why == restart.BY_BUDGET:
        return f"{text}; all of maxRestarts={view.job.spec.failure_policy.max_restarts} are used up"
    return f"{text}; a rule of failurePolicy ends the job"


def _converge(view: JobView, draft: Draft, settings: PodSettings) -> Plan:
    """Make what is missing, remove what is left over, and say how far things are."""
    patches, creates = _service(view)
    maintenance.announce(view, draft)
    draft.requeue(pending.stuck_in(view.stale, view.now))
    draft.requeue(pending.late_in(view.current, view.now))
    draft.requeue(view.until_lost)
    for gang in view.gangs:
        draft.requeue(startup.left(gang, view.job.spec.startup_timeout_seconds, view.now))
    if faults := template_faults(view.job):
        draft.progress(faults, [], None)
        return draft.plan(deletes=deletes(view.leaving, view.losses), creates=creates, patches=patches)
    factory = queueing.factory(view, settings)
    for step in (spares.give_up, _renew, maintenance.move):
        if plan := step(view, draft, factory):
            return plan
    wait = restart.pause(draft.restarts, view.now)
    draft.requeue(wait or None)
    groups = gangscheduling.leftovers(view, factory)
    ungrouped = gangscheduling.unserved(view) or gangscheduling.in_the_way(view, groups)
    held = view.surplus or view.strangers or wait or ungrouped or homes.vacating(view)
    gangs = () if held else [gang for gang in view.gangs if not gang.stale]
    missing = missing_pods(view, factory, gangs)
    short = view.snapshot.quotas.shortage(missing.demand)
    hold = short or _hold(view, factory)
    draft.requeue(capacity.LOOK_AGAIN if hold and hold.reason in capacity.REASONS else None)
    draft.progress(missing.conflicts, missing.overrides, hold)
    creates += () if short else (*missing.groups, *missing.lists, *missing.pods)
    spare = () if held or missing.conflicts else spares.creates(view, draft, factory)
    gone = (*deletes(view.leaving, view.losses), *grouping.deletes(groups), *queueing.left_over(view))
    plan = draft.plan(
        applies=maintenance.tell(view),
        deletes=gone,
        creates=(*creates, *spare),
        patches=(*patches, *queueing.report(view)),
    )
    return replace(plan, reserved=missing.reserved, claimed=missing.demand + demand(spare))


def _renew(view: JobView, draft: Draft, factory: PodFactory) -> Plan | None:
    """Start an attempt anew whose pods cannot be completed, or not where they are."""
    if outdated := _outdated(view, factory.revision):
        return draft.renew(outdated, "TemplateChanged", CHANGED)
    for gang in view.gangs:
        draft.requeue(inplace.left(gang, view.now))
    if late := [gang for gang in view.gangs if inplace.late(gang, view.now)]:
        return draft.renew(late, LATE_IN_PLACE, NOT_READY)
    if not factory.chooses_pools:
        return None
    if refused := [gang for gang in view.gangs if pending.pinned_in_vain(gang.current, view.now)]:
        return draft.renew(refused, LEFT_TO_SCHEDULER, NO_ROOM)
    draft.requeue(pending.patience(view.pods, view.now))
    return None


def _outdated(view: JobView, revision: str) -> list[Gang]:
    """Gangs that cannot go on with what they have.

    Pods of two revisions do not make one attempt. And until it is on record that the job has started, all of
    its spec may change, even while pods are made from it; slices that were done alone may now belong together
    with others.
    """
    begun = view.status.start_time is not None
    going_on = [gang for gang in view.gangs if not gang.succeeded]
    if not begun:
        return [gang for gang in going_on if gang.outdated(revision) or gang.done]
    return [gang for gang in going_on if gang.outdated(revision) and gang.absent]


def _service(view: JobView) -> tuple[tuple[Patch, ...], tuple[Manifest, ...]]:
    """The headless Service, as changes of it and as a manifest to create."""
    desired = services.headless_service(
        view.spec.subdomain,
        view.job.metadata.namespace,
        view.selector,
        owner_reference(view.job),
        view.spec.ports,
    )
    return services.kept(desired, view.snapshot.services)


def _hold(view: JobView, factory: PodFactory) -> pending.Hold | None:
    """The first thing that keeps the job from running."""
    current = view.current
    return (
        pending.refused("" if spares.only_these_lack(view) else view.snapshot.refusal)
        or gangscheduling.unserved(view)
        or pending.foreign_pods(view.strangers)
        or pending.waiting_for_old([*view.stale, *homes.vacating(view)], view.now)
        or pending.not_started(current)
        or capacity.unschedulable(current, view.snapshot.nodes, view.snapshot.pools, factory.demand)
        or pending.gated(current)
        or pending.neglected(current, view.now)
    )

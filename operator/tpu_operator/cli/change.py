"""`kubectl tpu restart`, `suspend` and `resume`.

A restart deletes one pod of each gang. For the operator that is a failure of cause PodDeleted, which costs
nothing of `maxRestarts`, and whose rules, records and order of things are those of all others; so there is no
second way to restart a job, and nothing but the right to delete pods is needed. A rule of the job's own may
charge it all the same, or forbid it: that is asked first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpu_operator.api import Cause, Failure, Phase, RuleAction
from tpu_operator.cli.command import Call, Command, CommandError, Exit, Parser, add_job, add_place, number
from tpu_operator.cli.server import connect
from tpu_operator.cli.tree import condition
from tpu_operator.core import names, restart
from tpu_operator.core.numbers import whole
from tpu_operator.core.pending import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpu_operator.api import TPUJob
    from tpu_operator.cli.server import Server
    from tpu_operator.core.snapshot import Pod

DELETED: Final = Failure(cause=Cause.POD_DELETED)


def victims(job: TPUJob, pods: Iterable[Pod], slices: Sequence[int] = ()) -> list[Pod]:
    """The pods to delete so that all gangs start again, or those of some slices: one for each.

    Raises:
        CommandError: the job cannot restart.
    """
    _may_restart(job)
    if slices and not job.spec.slices_alone:
        raise CommandError(
            "slices do not restart alone: spec.failurePolicy.restartScope is Job, or the launcher is ray",
            Exit.USAGE,
            "leave --slice out to restart all of them",
        )
    found: dict[int, Pod] = {}
    for pod in sorted(pods, key=lambda pod: pod.name):
        index = whole(pod.metadata.labels.get(names.LABEL_SLICE))
        if index is None or index >= job.spec.tpu.slices or pod.deleting or pod.succeeded:
            continue
        if not slices or index in slices:
            found.setdefault(index if job.spec.slices_alone else 0, pod)
    if not found:
        advice = f"`kubectl tpu why {job.metadata.name}` says how it stands"
        raise CommandError("there are no pods that could be restarted", Exit.BAD, advice)
    return list(found.values())


def _may_restart(job: TPUJob) -> None:
    name, policy = job.metadata.name, job.spec.failure_policy
    ended = condition(job, "Succeeded") or condition(job, "Failed")
    if ended is not None:
        raise CommandError(
            f"TPUJob {name} has ended ({ended.type}), and does not start again",
            advice="create it again under another name, or delete it first",
        )
    if job.status.phase is Phase.PENDING:
        advice = f"`kubectl tpu why {name}` says what it waits for"
        raise CommandError(f"TPUJob {name} has not started yet: there is nothing to restart", advice=advice)
    if job.spec.suspend:
        raise CommandError(f"TPUJob {name} is suspended", advice=f"`kubectl tpu resume {name}` lets it run")
    if (why := restart.fatal(DELETED, policy, job.status.restarts)) != "":
        raise CommandError(
            f"a restart would end TPUJob {name} as Failed ({why}), by a rule for PodDeleted",
            advice="change spec.failurePolicy, or suspend and resume the job",
        )
    if restart.action_for(DELETED, policy) is RuleAction.IGNORE:
        raise CommandError(
            f"a rule of TPUJob {name} ignores pods that are deleted, so it would not restart",
            advice="change spec.failurePolicy, or suspend and resume the job",
        )


def add_restart(parser: Parser) -> None:
    """Add the arguments."""
    add_job(parser)
    parser.add_argument(
        "--slice", type=number, action="append", default=[], help="only this slice, with restartScope Slice"
    )
    add_place(parser)


async def restart_job(server: Server, job: TPUJob, slices: Sequence[int] = ()) -> list[str]:
    """Start all gangs of a job anew, or some; returns the names of the pods that were deleted for it.

    Raises:
        CommandError: the job cannot restart.
    """
    return [pod.name for pod in victims(job, await server.pods(job), slices) if await server.delete_pod(pod)]


async def run_restart(call: Call) -> int:
    """Delete what has to be deleted."""
    async with connect(call.place) as server:
        job = await server.job(call.options.name)
        gone = await restart_job(server, job, call.options.slice)
    name = job.metadata.name
    charged = restart.counts(DELETED, job.spec.failure_policy)
    cost = "a rule charges that to maxRestarts" if charged else "nothing is charged to maxRestarts"
    what = "slice" if job.spec.slices_alone else "job"
    count = counted(len(gone), what, f"{what}s")
    call.terminal.lines([f"tpujob/{name} restarts: {count}, by deleting {', '.join(gone)}; {cost}"])
    return Exit.DONE


def add_suspend(parser: Parser) -> None:
    """Add the arguments."""
    add_job(parser)
    add_place(parser)


async def run_suspend(call: Call) -> int:
    """Set spec.suspend."""
    return await _set(call, suspend=True)


async def run_resume(call: Call) -> int:
    """Unset spec.suspend."""
    return await _set(call, suspend=False)


async def set_suspend(server: Server, job: TPUJob, *, suspend: bool) -> bool:
    """Set spec.suspend of a job; whether it was otherwise before.

    Raises:
        CommandError: the job has ended.
    """
    ended = condition(job, "Succeeded") or condition(job, "Failed")
    if ended is not None:
        raise CommandError(
            f"TPUJob {job.metadata.name} has ended ({ended.type}): nothing of it can be changed any more"
        )
    if job.spec.suspend == suspend:
        return False
    await server.patch(job, spec={"suspend": suspend})
    return True


async def _set(call: Call, *, suspend: bool) -> int:
    async with connect(call.place) as server:
        job = await server.job(call.options.name)
        changed = await set_suspend(server, job, suspend=suspend)
    name, word = job.metadata.name, "suspended" if suspend else "resumed"
    if not changed:
        call.terminal.lines([f"tpujob/{name} is {word if suspend else 'not suspended'} already"])
        return Exit.DONE
    more = "its pods are stopped, and its node pools go to others" if suspend else "it waits for nodes again"
    call.terminal.lines([f"tpujob/{name} {word}: {more}"])
    return Exit.DONE


COMMANDS: Final = (
    Command("restart", "start all processes anew, in new pods, without a charge", add_restart, run_restart),
    Command("suspend", "stop the pods and keep the job", add_suspend, run_suspend),
    Command("resume", "let a suspended job run", add_suspend, run_resume),
)

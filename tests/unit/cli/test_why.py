"""`kubectl tpu why`: one answer for every state that a job can be in."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.builders import NOW, World, job, node_pool, terminated
from tests.unit.cli.scenes import (
    COLOURED,
    LATER,
    PLAIN,
    event,
    failed,
    in_use,
    restarted,
    running,
    seen,
    starting,
)
from tpu_operator.api import BlockedReason, Cause, Failure
from tpu_operator.cli import lastwords
from tpu_operator.cli.advice import BLOCKED, CAUSES
from tpu_operator.cli.diagnosis import Answer, diagnose
from tpu_operator.cli.follow import Seen
from tpu_operator.cli.happenings import happening
from tpu_operator.cli.why import draw


def answer(world: World) -> Answer:
    return diagnose(seen(world), [], LATER)


def test_every_reason_and_cause_has_advice() -> None:
    assert set(BLOCKED) == set(BlockedReason)
    assert set(CAUSES) == set(Cause)
    for advice in (*BLOCKED.values(), *CAUSES.values()):
        assert advice.meaning.endswith(".")
        assert advice.remedies


def test_a_failed_job_has_its_root_cause_and_the_last_lines_of_that_host() -> None:
    found = answer(failed())
    assert not found.well
    assert found.verdict == "the job has failed: MaxRestartsReached"
    assert found.cause == (
        "UserError, exit code 1: FloatingPointError: the loss is not a number - first on host 2 of slice 0 "
        "(pod train-0-2), 12:00:00 UTC"
    )
    assert found.log[-1] == "FloatingPointError: the loss is not a number"
    assert found.evidence == ("also failed, later: train-0-0",)
    assert "`kubectl tpu logs train --failed`" in found.remedies[0]


def test_the_answer_as_text() -> None:
    assert "\n".join(draw(answer(in_use()), LATER, PLAIN)) == (
        "the job does not run: CapacityInUse (since 5m)\n"
        "  3 of 4 hosts of the kind are free, 4 in one node pool are needed; held are pool-a by team-b/big\n"
        "\n"
        "There are such node pools, but other slices are in them.\n"
        "\n"
        "What is known:\n"
        "- train-0-0, train-0-1, train-0-2 and 1 more: Pending: 0/4 nodes are available: 4 Insufficient\n"
        "  google.com/tpu.\n"
        "\n"
        "What to do:\n"
        "- wait: it starts by itself when a node pool is free\n"
        "- free one: the message says who holds which; `kubectl tpu suspend` stops a job and keeps it\n"
        "- add a node pool, or give the job a priority class (spec.scheduling.priorityClassName)"
    )


def test_colours() -> None:
    assert draw(answer(failed()), LATER, COLOURED)[0].startswith("\x1b[31mthe job has failed")
    assert draw(answer(running()), LATER, COLOURED)[0].startswith("\x1b[32mnothing is wrong")


def test_a_job_that_runs_is_well_and_tells_its_past() -> None:
    assert answer(running()).well
    assert answer(running()).evidence == ()
    found = answer(restarted())
    assert found.well
    assert found.evidence[0] == "1 restart (UserError 1), charged 1 of 3"
    assert found.evidence[1].startswith("last failure: UserError, exit code 1: the loss is not a number")


def test_a_host_that_cannot_start_is_named_before_those_that_wait_for_it() -> None:
    found = answer(starting())
    assert found.verdict == "the job does not run: ImagePullFailed"
    assert found.evidence[0].startswith("train-0-1: Waiting: container main")
    assert found.evidence[1].startswith("train-0-0, train-0-2, train-0-3: Starting: runs, but is at the")


def test_what_pods_are_warned_of_is_told_once_the_latest_first() -> None:
    events = [
        happening(event("FailedMount", "no such volume")),
        happening(event("FailedMount", "no such volume")),
        happening(event("FailedScheduling", "0/4 nodes")),
        happening(event("BackOff", "back-off")),
        happening(event("Blocked", "is blocked", about="TPUJob/train")),
    ]
    found = diagnose(seen(starting()), events, LATER)
    assert found.evidence[-2:] == (
        "pod/train-0-1: BackOff: back-off",
        "pod/train-0-1: FailedMount: no such volume",
    )


def test_a_job_that_starts_without_trouble() -> None:
    world = World(job(), nodes=node_pool("pool-a")).settle()
    scheduled = {"type": "PodScheduled", "status": "True"}
    world.all_pods(phase="Pending", conditions=[scheduled]).settle()
    found = answer(world)
    assert found.verdict == "the job is starting: 0 of 4 hosts are ready"
    assert "has not started a container" in found.evidence[0]


def test_a_suspended_job() -> None:
    world = running()
    world.patch_spec(suspend=True)
    found = answer(world.settle())
    assert found.verdict == "the job is suspended: spec.suspend is true"
    assert found.remedies == ("`kubectl tpu resume train` lets it run",)


def test_a_restart_under_way() -> None:
    world = World(job(), nodes=node_pool("pool-a"), keep_deleted=True).run()
    world.set_pod("train-0-2", **terminated(1, "boom"))
    world.step()
    world.step()
    found = answer(world)
    assert found.verdict == "the job restarts: UserError"
    assert found.cause.startswith("UserError, exit code 1: boom - first on host 2 of slice 0")
    assert any("still there: train-0-0, train-0-1" in line for line in found.evidence)


def test_a_pause_before_a_restart_is_told() -> None:
    world = World(job(), nodes=node_pool("pool-a")).run()
    for _ in range(2):
        world.settle().set_pod("train-0-2", **terminated(1, "boom"))
        for _ in range(3):
            world.step()
    found = diagnose(seen(world), [], world.now)
    assert found.verdict == "the job restarts: UserError"
    assert found.evidence[0] == "the next attempt starts in 2s: each pause is twice the last"


def test_a_deadline_is_no_failure_of_a_host() -> None:
    world = running(activeDeadlineSeconds=60)
    world.now = NOW + timedelta(seconds=61)
    found = answer(world.settle())
    assert found.verdict.startswith("the job has failed: DeadlineExceeded: the job was active for longer")
    assert found.log == ()


def test_success() -> None:
    world = running()
    for name in list(world.pods):
        world.set_pod(name, **terminated(0))
    assert answer(world.settle()).verdict == "the job has succeeded"


def test_jobs_that_nobody_looks_at() -> None:
    found = diagnose(Seen(job()), [], NOW)
    assert not found.well
    assert found.verdict == "no operator has looked at the job yet"
    assert "doctor" in found.remedies[0]


def test_a_job_of_another_controller() -> None:
    found = diagnose(Seen(job(managedBy="kueue.x-k8s.io/multikueue")), [], NOW)
    assert found.verdict == "another controller runs the job: spec.managedBy is kueue.x-k8s.io/multikueue"


class TestLastWords:
    FAILURE = Failure(cause=Cause.USER_ERROR, attempt=1, pod="train-0-2", container="main", exit_code=1)

    def words(self, message: str, failure: Failure = FAILURE) -> tuple[str, ...]:
        world = running()
        world.set_pod("train-0-2", **terminated(1, message))
        return lastwords.of(world.pods.values(), failure)

    @pytest.mark.parametrize(
        ("message", "lines"),
        [
            ('{"v": 1, "attempt": 1, "exitCode": 1, "log": "one\\ntwo\\n"}', ("one", "two")),
            ('{"v": 1, "exitCode": 1, "log": "one"}', ("one",)),
            ('{"v": 1, "attempt": 0, "exitCode": 1, "log": "of the attempt before"}', ()),
            ('{"v": 1, "exitCode": 3, "log": "of another failure"}', ()),
            ('{"v": 1, "exitCode": 1, "log": "cut o', ()),
            ("the end\nof a log\n", ("the end", "of a log")),
            ('{"v": 1, "exitCode": 1}', ()),
            ("[1]", ()),
        ],
    )
    def test_are_those_of_that_failure(self, message: str, lines: tuple[str, ...]) -> None:
        assert self.words(message) == lines

    def test_of_a_pod_that_is_gone(self) -> None:
        assert lastwords.of([], self.FAILURE) == ()

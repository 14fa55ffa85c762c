"""Applying again, changing what must not change, writing status, and what kubectl shows."""

import re

import pytest

from tests.cluster.api.client import Jobs, Object, job
from tests.unit.api.samples import full_status
from tpu_operator.api import TPUJob

STARTED = {"startTime": "2026-11-30T12:00:00Z"}


def version(body: Object) -> tuple[int, str]:
    return body["metadata"]["generation"], body["metadata"]["resourceVersion"]


def running(jobs: Jobs, name: str) -> None:
    jobs.create(job(name=name))
    jobs.write_status(name, STARTED)


def test_applying_the_same_object_again_changes_nothing(jobs: Jobs) -> None:
    body = job({"run.env": [{"name": "A", "value": "1"}], "failurePolicy.maxRestarts": 1}, name="again")
    first = jobs.apply(body)
    assert version(jobs.apply(body)) == version(first)
    started = jobs.write_status("again", STARTED)
    assert version(jobs.apply(body)) == version(started)
    assert started["metadata"]["generation"] == first["metadata"]["generation"]


def test_applied_object_is_stored_as_written_but_for_the_number_of_slices(jobs: Jobs) -> None:
    body = job(name="as-written")
    stored = jobs.apply(body)
    assert stored["spec"] == job({"tpu.slices": 1})["spec"]


def test_suspending_by_apply_is_not_refused_for_defaulted_fields(jobs: Jobs) -> None:
    jobs.apply(job(name="suspend-me"))
    jobs.write_status("suspend-me", STARTED)
    assert jobs.apply(job({"suspend": True}, name="suspend-me"))["spec"]["suspend"] is True


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("topology", {"tpu.topology": "4x8"}, "spec.tpu"),
        ("slices", {"tpu.slices": 2}, "spec.tpu"),
        ("command", {"run.command": ["python", "other.py"]}, "spec.run"),
        ("image", {"run.image": "other"}, "spec.run"),
        ("slices-with-suspension", {"tpu.slices": 2, "suspend": True}, "spec.tpu"),
    ],
)
def test_tpu_and_run_are_fixed_once_started(jobs: Jobs, name: str, changes: Object, field: str) -> None:
    running(jobs, name)
    message = jobs.update(name, changes)
    assert f"{field}: Forbidden: cannot change once the job has started: set spec.suspend to true" in message
    assert "wait for phase Suspended" in message


def test_how_it_restarts_is_fixed_once_started_and_with_whom_only_in_place(jobs: Jobs) -> None:
    running(jobs, "policy")
    in_place = {"failurePolicy.restartStrategy": "InPlace"}
    message = jobs.update("policy", in_place)
    assert "spec.failurePolicy: Forbidden: restartStrategy, and with InPlace restartScope, cannot" in message
    assert jobs.update("policy", {"failurePolicy.restartStrategy": "Recreate"}) == ""
    assert jobs.update("policy", {"failurePolicy.restartScope": "Slice"}) == ""
    jobs.create(job(in_place, name="policy-in-place"))
    jobs.write_status("policy-in-place", STARTED)
    for change in ({"failurePolicy.restartScope": "Slice"}, {"failurePolicy.restartStrategy": "Recreate"}):
        assert "spec.failurePolicy: Forbidden" in jobs.update("policy-in-place", in_place | change)
    assert jobs.update("policy-in-place", in_place | {"failurePolicy.maxRestarts": 9}) == ""


def test_the_queue_is_fixed_once_started(jobs: Jobs) -> None:
    team = {"scheduling.queueName": "team"}
    jobs.create(job(team, name="queued"))
    assert jobs.update("queued", {"scheduling.queueName": "other"}) == ""
    jobs.write_status("queued", STARTED)
    message = jobs.update("queued", {})
    assert "spec.scheduling.queueName: Forbidden: cannot change once the job has started" in message
    assert jobs.update("queued", {"scheduling.queueName": "other", "scheduling.placement": "Shared"}) == ""
    running(jobs, "unqueued")
    assert "spec.scheduling.queueName: Forbidden" in jobs.update("unqueued", team)


def test_tpu_and_run_may_change_before_the_start(jobs: Jobs) -> None:
    jobs.create(job(name="not-started"))
    assert jobs.update("not-started", {"tpu.topology": "4x8", "run.command": ["other"]}) == ""


def test_tpu_and_run_may_change_once_the_operator_has_seen_the_suspension(jobs: Jobs) -> None:
    running(jobs, "paused")
    assert jobs.update("paused", {"suspend": True}) == ""
    assert "spec.tpu: Forbidden" in jobs.update("paused", {"suspend": True, "tpu.topology": "4x8"})
    jobs.write_status("paused", {"phase": "Suspended"})
    assert jobs.update("paused", {"suspend": True, "tpu.topology": "4x8"}) == ""
    assert jobs.update("paused", {"tpu.topology": "4x8"}) == ""
    jobs.write_status("paused", STARTED)
    assert "spec.tpu: Forbidden" in jobs.update("paused", {"tpu.topology": "8x8"})


def test_the_rest_of_a_started_job_may_change(jobs: Jobs) -> None:
    running(jobs, "flexible")
    changes = {
        "failurePolicy.maxRestarts": 9,
        "failurePolicy.restartScope": "Slice",
        "ttlSecondsAfterFinished": 60,
        "activeDeadlineSeconds": 60,
        "template": {"metadata": {"labels": {"a": "b"}}},
    }
    assert jobs.update("flexible", changes) == ""


def test_finished_job_may_be_suspended_without_harm(jobs: Jobs) -> None:
    jobs.create(job(name="finished"))
    jobs.write_status("finished", {**STARTED, "phase": "Succeeded", "completionTime": "2026-11-30T13:00:00Z"})
    assert jobs.update("finished", {"suspend": True}) == ""


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("handed-over", {}, {"managedBy": "example.com/b"}),
        ("passed-on", {"managedBy": "example.com/a"}, {"managedBy": "example.com/b"}),
        ("taken-back", {"managedBy": "example.com/a"}, {}),
    ],
)
def test_manager_cannot_change(jobs: Jobs, name: str, before: Object, after: Object) -> None:
    jobs.create(job(before, name=name))
    assert "spec.managedBy: Forbidden: cannot change: create a new job" in jobs.update(name, after)


def test_every_status_field_is_stored(jobs: Jobs) -> None:
    jobs.create(job(name="full"))
    jobs.write_status("full", full_status().wire())
    assert TPUJob.parse(jobs.get("full")).status == full_status()


def test_status_is_written_apart_from_the_spec(jobs: Jobs) -> None:
    jobs.create({**job(name="apart"), "status": {"phase": "Failed"}})
    assert "status" not in jobs.get("apart")
    written = jobs.write_status("apart", {"phase": "Running"})
    assert (written["metadata"]["generation"], written["status"]) == (1, {"phase": "Running"})


def test_kubectl_shows_the_columns_and_selects_by_phase(jobs: Jobs) -> None:
    jobs.create(job({"tpu.slices": 3}, name="shown"))
    status = {
        "phase": "Starting",
        "ready": "11/12",
        "restarts": {"total": 2},
        "reason": "Unschedulable",
        "message": "no node for host 1",
    }
    jobs.write_status("shown", status)
    assert rows(jobs, "tpuj", "--field-selector=status.phase=Starting") == [
        "NAME PHASE READY ACCELERATOR TOPOLOGY SLICES RESTARTS AGE",
        "shown Starting 11/12 v5e 4x4 3 2 AGE",
    ]
    assert rows(jobs, "tpuj", "--field-selector=status.phase=Starting", "--output=wide") == [
        "NAME PHASE READY ACCELERATOR TOPOLOGY SLICES RESTARTS AGE REASON MESSAGE",
        "shown Starting 11/12 v5e 4x4 3 2 AGE Unschedulable no node for host 1",
    ]
    assert "tpujob.tpu-operator.dev/shown" in jobs.kubectl(
        "get", "tpu", "--output=name", f"--namespace={jobs.namespace}"
    )


def rows(jobs: Jobs, *arguments: str) -> list[str]:
    """Return what `kubectl get` prints, without padding and ages."""
    printed = jobs.kubectl("get", *arguments, f"--namespace={jobs.namespace}").splitlines()
    return [re.sub(r"\b\d+m?\d*s\b", "AGE", " ".join(line.split())) for line in printed]


def test_kubectl_explains_every_level(jobs: Jobs) -> None:
    assert "spare ones included" in jobs.kubectl("explain", "tpujob.status.slices")
    assert "Default: 3." in jobs.kubectl("explain", "tpujob.spec.failurePolicy.maxRestarts")

"""Why a pod failed: what each witness is worth, and whose word stands against whose."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.builders import NOW, decode_pod, report, stamp, terminated
from tpu_operator.api import Cause, Failure
from tpu_operator.core import failures

if TYPE_CHECKING:
    from tpu_operator.core.snapshot import Pod

EARLIER = NOW - timedelta(minutes=5)
LATER = NOW + timedelta(minutes=5)


def pod(deleted: datetime | None = None, component: str = "worker", **status: Any) -> Pod:
    """Host 2 of slice 1, deleted at that time with 30 s of grace."""
    labels = {"component": component, "slice": "1", "host": "2", "attempt": "3"}
    metadata: dict[str, Any] = {
        "name": "train-1-2",
        "labels": {f"tpu-operator.dev/{key}": value for key, value in labels.items()},
    }
    if deleted:
        metadata |= {
            "deletionTimestamp": stamp(deleted + timedelta(seconds=30)),
            "deletionGracePeriodSeconds": 30,
        }
    return decode_pod({"metadata": metadata, "spec": {}}, **status)


def failure(**kwargs: Any) -> Failure:
    found = failures.failure_of(pod(**kwargs), LATER)
    assert found is not None
    return found


def disrupted(reason: str, at: datetime | None = NOW, status: str = "True") -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": status, "reason": reason, "message": "made room"}
    return {"conditions": [condition | ({"lastTransitionTime": stamp(at)} if at else {})]}


def stopped(at: datetime = NOW) -> dict[str, Any]:
    """A worker whose launcher was told to stop before anything had failed."""
    return terminated(143, report(cause=None, exit_code=143, at=at, terminated=True, error="told"), at=at)


class TestNoFailure:
    @pytest.mark.parametrize(
        "status",
        [
            {"phase": "Pending"},
            {"phase": "Running"},
            {"phase": "Unknown"},
            terminated(0),
            disrupted("PreemptionByScheduler"),
        ],
        ids=["pending", "running", "unknown", "succeeded", "about to be preempted"],
    )
    def test_a_pod_that_may_yet_do_well(self, status: dict[str, Any]) -> None:
        assert failures.failure_of(pod(**status), NOW) is None

    def test_a_pod_that_has_succeeded_may_be_deleted(self) -> None:
        assert failures.failure_of(pod(deleted=NOW, **terminated(0)), NOW) is None

    def test_a_sidecar_cannot_undo_the_success_of_the_main_container(self) -> None:
        status = terminated(0) | {"phase": "Failed"}
        status["containerStatuses"].append({"name": "logs", "state": {"terminated": {"exitCode": 143}}})
        assert failures.failure_of(pod(**status), NOW) is None

    def test_a_sidecar_that_fails_beside_a_running_main_container_is_no_failure(self) -> None:
        statuses = [
            {"name": "logs", "state": {"terminated": {"exitCode": 2}}},
            {"name": "main", "state": {"running": {}}},
        ]
        assert failures.failure_of(pod(phase="Running", containerStatuses=statuses), NOW) is None


class TestReport:
    def test_the_launchers_word_on_cause_time_signal_and_message(self) -> None:
        at = NOW - timedelta(seconds=3.25)
        message = report("OutOfMemory", 137, at, signal=9, error="killed by SIGKILL")
        found = failure(**terminated(137, message))
        assert (found.cause, found.time, found.signal) == (Cause.OUT_OF_MEMORY, at, 9)
        assert (found.message, found.exit_code, found.container) == ("killed by SIGKILL", 137, "main")
        assert (found.pod, found.slice, found.host, found.attempt) == ("train-1-2", 1, 2, 3)

    def test_a_process_may_fail_while_the_pod_still_runs_its_sidecars(self) -> None:
        status = terminated(3, report(exit_code=3)) | {"phase": "Running"}
        assert failure(**status).exit_code == 3

    @pytest.mark.parametrize(
        "message",
        [
            "",
            "Traceback (most recent call last):",
            "{",
            '{"v": 1, "cause": "UserError", "time": 17',
            "[1]",
            "{}",
            '{"level": "error", "time": 1}',
            '{"v": 1, "cause": ["UserError"]}',
            '{"v": 1, "cause": "UserError", "time": true}',
            '{"v": 1, "cause": "UserError", "time": 1e400}',
            '{"v": 1, "cause": "UserError", "time": -5}',
            '{"v": 1, "signal": 123456789012345678901234567890}',
            '{"v": 1, "signal": "SIGKILL"}',
            '{"v": 1, "error": {"text": "x"}}',
            '{"v": 1, "terminated": "yes"}',
            "{" * 2000,
        ],
    )
    def test_what_is_not_the_launchers_is_only_text(self, message: str) -> None:
        found = failure(**terminated(1, message, at=NOW))
        assert (found.cause, found.time, found.exit_code) == (Cause.USER_ERROR, NOW, 1)
        assert found.message == (message[:1024] or None)

    def test_a_cause_from_a_newer_launcher_is_an_error_of_the_program(self) -> None:
        at = NOW - timedelta(seconds=1)
        found = failure(**terminated(1, report("Sabotage", at=at)))
        assert (found.cause, found.time) == (Cause.USER_ERROR, at)

    @pytest.mark.parametrize("wrong", [timedelta(days=-9000), timedelta(hours=-2), timedelta(hours=1)])
    def test_a_time_at_which_the_container_did_not_run_is_not_believed(self, wrong: timedelta) -> None:
        status = terminated(1, report(at=NOW + wrong))
        status["containerStatuses"][0]["state"]["terminated"]["startedAt"] = stamp(NOW - timedelta(hours=1))
        assert failure(**status).time == NOW

    def test_the_time_is_the_hosts_to_the_microsecond_although_kubernetes_counts_seconds(self) -> None:
        at = NOW + timedelta(microseconds=999_999)
        assert failure(**terminated(1, report(at=at), at=NOW)).time == at


class TestKubelet:
    @pytest.mark.parametrize(
        ("code", "cause"),
        [
            (1, Cause.USER_ERROR),
            (64, Cause.LAUNCHER_ERROR),
            (69, Cause.STARTUP_TIMEOUT),
            (70, Cause.LAUNCHER_ERROR),
            (75, Cause.LAUNCHER_ERROR),
            (76, Cause.TPU_FAULT),
            (77, Cause.HANG),
            (137, Cause.USER_ERROR),
        ],
    )
    def test_exit_codes_of_the_launcher(self, code: int, cause: Cause) -> None:
        assert failure(**terminated(code)).cause == cause

    def test_the_launchers_exit_codes_mean_nothing_in_a_head(self) -> None:
        assert failure(component="head", **terminated(77)).cause == Cause.USER_ERROR

    def test_the_launchers_word_stands_against_its_exit_codes(self) -> None:
        assert failure(**terminated(77, report("UserError", 77))).cause == Cause.USER_ERROR

    def test_out_of_memory(self) -> None:
        found = failure(**terminated(137, reason="OOMKilled"))
        assert (found.cause, found.reason, found.time) == (Cause.OUT_OF_MEMORY, "OOMKilled", NOW)

    def test_a_signal_that_only_the_kubelet_knows_of(self) -> None:
        status = terminated(137)
        status["containerStatuses"][0]["state"]["terminated"]["signal"] = 9
        assert failure(**status).signal == 9

    def test_an_init_container_that_failed_is_named(self) -> None:
        init = [
            {"name": "first", "state": {"terminated": {"exitCode": 0, "finishedAt": stamp(EARLIER)}}},
            {"name": "fetch", "state": {"terminated": {"exitCode": 77, "finishedAt": stamp(NOW)}}},
        ]
        waiting = {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}
        found = failure(phase="Failed", initContainerStatuses=init, containerStatuses=[waiting])
        assert (found.container, found.exit_code, found.cause) == ("fetch", 77, Cause.USER_ERROR)
        assert found.time == NOW

    def test_a_pod_that_the_kubelet_would_not_admit(self) -> None:
        found = failure(phase="Failed", reason="UnexpectedAdmissionError", message="no healthy devices")
        assert (found.cause, found.reason) == (Cause.TPU_FAULT, "UnexpectedAdmissionError")
        assert (found.message, found.container, found.exit_code) == ("no healthy devices", None, None)
        assert found.time == LATER, "for want of anything better, when it was seen"

    def test_of_a_log_without_a_report_the_end_is_kept(self) -> None:
        log = "".join(f"line {number}\n" for number in range(500))
        found = failure(**terminated(1, message=log))
        assert found.message is not None
        assert found.message.endswith("line 498\nline 499")
        assert len(found.message) == 1024

    @pytest.mark.parametrize(
        ("log", "message"), [("", "killed by signal 9"), ("step 7\n", "killed by signal 9; step 7")]
    )
    def test_a_launcher_that_was_killed(self, log: str, message: str) -> None:
        assert failure(**terminated(137, log)).message == message

    def test_long_messages_are_cut(self) -> None:
        assert len(failure(**terminated(1, "x" * 5000)).message or "") == 1024


class TestTakenAway:
    @pytest.mark.parametrize(
        ("reason", "cause"),
        [
            ("PreemptionByScheduler", Cause.PREEMPTED),
            ("EvictionByEvictionAPI", Cause.EVICTED),
            ("TerminationByKubelet", Cause.EVICTED),
            ("DeletionByTaintManager", Cause.NODE_LOST),
            ("DeletionByPodGC", Cause.NODE_LOST),
            ("SomethingNew", Cause.POD_DELETED),
        ],
    )
    def test_disruptions_of_running_pods(self, reason: str, cause: Cause) -> None:
        found = failure(deleted=NOW, phase="Running", **disrupted(reason))
        assert (found.cause, found.reason, found.message) == (cause, reason, "made room")
        assert found.time == NOW

    def test_a_disruption_that_was_called_off(self) -> None:
        status = disrupted("PreemptionByScheduler", status="False")
        assert failure(deleted=NOW, phase="Running", **status).cause == Cause.POD_DELETED

    def test_eviction_by_the_kubelet(self) -> None:
        status = terminated(137) | {"reason": "Evicted", "message": "the node was low on memory"}
        found = failure(**status)
        assert (found.cause, found.reason) == (Cause.EVICTED, "Evicted")
        assert (found.message, found.time) == ("the node was low on memory", NOW)

    def test_a_node_that_shuts_down(self) -> None:
        status = stopped(LATER) | disrupted("TerminationByKubelet") | {"reason": "Terminated"}
        found = failure(**status)
        assert (found.cause, found.time) == (Cause.EVICTED, NOW)

    def test_a_pod_deleted_by_hand(self) -> None:
        found = failure(deleted=EARLIER, phase="Running")
        assert (found.cause, found.time) == (Cause.POD_DELETED, EARLIER)

    def test_a_pod_deleted_before_it_had_a_node(self) -> None:
        assert failure(deleted=NOW, phase="Pending").cause == Cause.POD_DELETED

    def test_a_program_that_was_told_to_stop(self) -> None:
        found = failure(deleted=EARLIER, **stopped())
        assert (found.cause, found.time, found.exit_code) == (Cause.POD_DELETED, EARLIER, 143)

    def test_a_program_without_launcher_that_ended_after_it_was_told_to(self) -> None:
        assert failure(deleted=EARLIER, **terminated(143)).cause == Cause.POD_DELETED
        assert failure(deleted=NOW, **terminated(143)).cause == Cause.POD_DELETED, "in the same second"

    def test_a_program_that_failed_before_it_was_told_to_stop(self) -> None:
        assert failure(deleted=LATER, **terminated(3)).cause == Cause.USER_ERROR
        assert failure(deleted=LATER, **terminated(3, report(exit_code=3))).cause == Cause.USER_ERROR

    def test_the_launcher_knows_better_than_the_clocks_whether_it_was_told(self) -> None:
        assert failure(deleted=EARLIER, **terminated(3, report(exit_code=3))).cause == Cause.USER_ERROR
        assert failure(deleted=LATER, **stopped(EARLIER)).cause == Cause.POD_DELETED

    def test_a_disruption_takes_effect_when_it_starts_not_when_the_program_has_ended(self) -> None:
        """Other hosts fail in between: they are the echo."""
        found = failure(deleted=NOW, **stopped(LATER) | disrupted("PreemptionByScheduler"))
        echo = failure(**terminated(1, report(at=NOW + timedelta(seconds=1)), at=NOW + timedelta(seconds=1)))
        assert failures.root([echo, found]) == found

    def test_a_program_that_failed_long_before_its_node_was_drained(self) -> None:
        status = terminated(3, at=EARLIER) | disrupted("EvictionByEvictionAPI")
        found = failure(deleted=NOW, **status)
        assert (found.cause, found.reason, found.time) == (Cause.USER_ERROR, "Error", EARLIER)

    def test_a_pod_that_was_lost_with_its_node_and_never_reported(self) -> None:
        found = failure(deleted=NOW, phase="Failed", **disrupted("DeletionByPodGC", at=None))
        assert (found.cause, found.time) == (Cause.NODE_LOST, NOW)

    def test_a_kill_that_nobody_asked_for_is_an_error_of_the_program(self) -> None:
        assert failure(**stopped()).cause == Cause.USER_ERROR


class TestRoot:
    def test_the_earliest_wins_whatever_the_order(self) -> None:
        first = Failure(cause=Cause.USER_ERROR, slice=1, host=3, time=NOW)
        second = Failure(cause=Cause.HANG, slice=0, host=0, time=LATER)
        assert failures.root([first, second]) == failures.root([second, first]) == first
        assert failures.earlier(first, second)
        assert not failures.earlier(second, first)

    def test_a_tie_goes_to_the_lowest_place(self) -> None:
        one, other = (Failure(cause=Cause.USER_ERROR, slice=0, host=host, time=NOW) for host in (2, 1))
        assert failures.root([one, other]) == other

    def test_a_failure_at_an_unknown_time_is_the_last(self) -> None:
        known = Failure(cause=Cause.USER_ERROR, time=datetime(2100, 1, 1, tzinfo=UTC))
        assert failures.root([Failure(cause=Cause.USER_ERROR), known]) == known

    def test_no_failure(self) -> None:
        assert failures.root([]) is None

    def test_a_pod_that_is_gone(self) -> None:
        gone = failures.missing("train-0-1", 0, 1, 2, NOW)
        assert (gone.cause, gone.attempt, gone.time) == (Cause.POD_DELETED, 2, NOW)
        assert "train-0-1" in (gone.message or "")


def test_failures_survive_the_wire() -> None:
    found = failure(**terminated(1, report(at=NOW + timedelta(microseconds=1))))
    assert Failure.parse(json.loads(json.dumps(found.wire()))) == found

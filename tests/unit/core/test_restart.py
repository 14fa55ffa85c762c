"""The failure policy: what a failure leads to and what it costs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.builders import NOW
from tpu_operator.api import Cause, Failure, FailurePolicy, Restarts, RuleAction
from tpu_operator.core import restart
from tpu_operator.core.failures import COUNTED

FREE = sorted(set(Cause) - COUNTED)


def failure(
    cause: Cause = Cause.USER_ERROR, exit_code: int | None = 1, message: str | None = None
) -> Failure:
    return Failure(cause=cause, exit_code=exit_code, message=message)


def policy(*rules: dict[str, Any], **fields: Any) -> FailurePolicy:
    return FailurePolicy.parse({"rules": list(rules)} | fields)


class TestDefaults:
    @pytest.mark.parametrize("cause", sorted(COUNTED))
    def test_what_the_job_did_itself_counts(self, cause: Cause) -> None:
        assert restart.action_for(failure(cause), policy()) is RuleAction.RESTART
        assert restart.counts(failure(cause), policy())

    @pytest.mark.parametrize("cause", FREE)
    def test_what_the_cluster_did_is_free(self, cause: Cause) -> None:
        assert restart.action_for(failure(cause), policy()) is RuleAction.RESTART_UNCOUNTED
        assert not restart.counts(failure(cause), policy())

    def test_the_contracts_list_of_counted_causes(self) -> None:
        assert {*COUNTED} == {"UserError", "OutOfMemory", "Hang", "StartupTimeout", "LauncherError"}


class TestRules:
    @pytest.mark.parametrize(
        ("rule", "matches"),
        [
            ({"onCauses": ["UserError"]}, True),
            ({"onCauses": ["Hang", "UserError"]}, True),
            ({"onCauses": ["Hang"]}, False),
            ({"onExitCodes": [3, 42]}, True),
            ({"onExitCodes": [3]}, False),
            ({"onMessage": "out of range"}, True),
            ({"onMessage": "OUT OF RANGE"}, False),
            ({"onCauses": ["UserError"], "onExitCodes": [42], "onMessage": "range"}, True),
            ({"onCauses": ["Hang"], "onExitCodes": [42], "onMessage": "range"}, False),
            ({"onCauses": ["UserError"], "onExitCodes": [3], "onMessage": "range"}, False),
            ({"onCauses": ["UserError"], "onExitCodes": [42], "onMessage": "no"}, False),
        ],
    )
    def test_case_31_all_that_a_rule_states_has_to_hold(self, rule: dict[str, Any], matches: bool) -> None:
        found = failure(exit_code=42, message="index out of range")
        action = restart.action_for(found, policy(rule | {"action": "FailJob"}))
        assert action is (RuleAction.FAIL_JOB if matches else RuleAction.RESTART)

    def test_case_31_the_first_match_wins(self) -> None:
        rules: list[dict[str, Any]] = [
            {"onExitCodes": [3], "action": "FailJob"},
            {"onExitCodes": [42], "action": "Ignore"},
            {"onCauses": ["UserError"], "action": "RestartUncounted"},
        ]
        assert restart.action_for(failure(exit_code=42), policy(*rules)) is RuleAction.IGNORE
        assert restart.action_for(failure(exit_code=1), policy(*rules)) is RuleAction.RESTART_UNCOUNTED
        assert (
            restart.action_for(failure(exit_code=3), policy(*reversed(rules))) is RuleAction.RESTART_UNCOUNTED
        )

    @pytest.mark.parametrize("rule", [{"onExitCodes": [1]}, {"onMessage": "x"}])
    def test_a_failure_without_code_and_message_matches_no_rule_about_them(
        self, rule: dict[str, Any]
    ) -> None:
        gone = failure(Cause.POD_DELETED, exit_code=None)
        action = restart.action_for(gone, policy(rule | {"action": "FailJob"}))
        assert action is RuleAction.RESTART_UNCOUNTED

    def test_a_rule_may_charge_what_is_free(self) -> None:
        charged = policy({"onCauses": ["Preempted"], "action": "Restart"})
        assert restart.counts(failure(Cause.PREEMPTED), charged)


class TestBudget:
    @pytest.mark.parametrize(
        ("used", "why"), [(0, ""), (1, ""), (2, restart.BY_BUDGET), (3, restart.BY_BUDGET)]
    )
    def test_case_27_the_limit(self, used: int, why: str) -> None:
        assert restart.fatal(failure(), policy(maxRestarts=2), Restarts(total=used, counted=used)) == why

    def test_case_26_no_budget(self) -> None:
        assert restart.fatal(failure(), policy(maxRestarts=0), Restarts()) == restart.BY_BUDGET

    def test_case_30_free_restarts_have_no_limit(self) -> None:
        rule = {"onCauses": ["UserError"], "action": "RestartUncounted"}
        used = Restarts()
        for _ in range(3):
            assert restart.fatal(failure(), policy(rule, maxRestarts=1), used) == ""
            used = restart.charge(used, failure(), policy(rule, maxRestarts=1), NOW)
        assert (used.total, used.counted, used.by_cause) == (3, 0, {Cause.USER_ERROR: 3})

    def test_a_rule_ends_the_job_whatever_is_left(self) -> None:
        rule = {"onExitCodes": [1], "action": "FailJob"}
        assert restart.fatal(failure(), policy(rule), Restarts()) == restart.BY_RULE


class TestCharge:
    def test_every_restart_is_counted_by_cause(self) -> None:
        used = Restarts()
        for cause in (Cause.USER_ERROR, Cause.PREEMPTED, Cause.USER_ERROR):
            used = restart.charge(used, failure(cause), policy(), NOW)
        assert (used.total, used.counted) == (3, 2)
        assert used.by_cause == {Cause.USER_ERROR: 2, Cause.PREEMPTED: 1}

    @pytest.mark.parametrize("cause", sorted(Cause))
    def test_a_refund_undoes_a_charge(self, cause: Cause) -> None:
        used = Restarts(total=2, counted=1, by_cause={Cause.USER_ERROR: 1, Cause.EVICTED: 1})
        charged = restart.charge(used, failure(cause), policy(), NOW)
        refunded = restart.refund(charged, failure(cause), policy())
        assert refunded.model_copy(update={"last_time": None}) == used

    @pytest.mark.parametrize("action", ["Restart", "RestartUncounted"])
    def test_rules_may_change_between_charge_and_refund(self, action: str) -> None:
        changed = policy({"onCauses": ["UserError", "Preempted"], "action": action})
        for cause in (Cause.USER_ERROR, Cause.PREEMPTED):
            used = restart.charge(Restarts(), failure(cause), policy(), NOW)
            refunded = restart.refund(used, failure(cause), changed)
            assert (refunded.total, refunded.counted, refunded.by_cause) == (0, 0, {})

    def test_a_refund_of_nothing(self) -> None:
        assert restart.refund(Restarts(), failure(), policy()) == Restarts()


class TestPause:
    @pytest.mark.parametrize(
        ("since_ready", "seconds"),
        [(0, 0), (1, 0), (2, 2), (3, 4), (8, 128), (9, 256), (10, 300), (10**9, 300)],
    )
    def test_restarts_in_a_row_wait_longer_and_longer(self, since_ready: int, seconds: float) -> None:
        used = Restarts(total=since_ready, since_ready=since_ready, last_time=NOW)
        assert restart.pause(used, NOW) == seconds
        assert restart.pause(used, NOW + timedelta(seconds=seconds)) == 0

    def test_a_clock_that_jumps_back_does_not_lengthen_it(self) -> None:
        used = Restarts(total=3, since_ready=3, last_time=NOW)
        assert restart.pause(used, NOW - timedelta(days=1)) == 4

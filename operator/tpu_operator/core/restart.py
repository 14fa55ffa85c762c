"""What a failure leads to: the failure policy, as pure functions of the failure and what was used up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpu_operator.api import RuleAction
from tpu_operator.core.failures import COUNTED

if TYPE_CHECKING:
    from datetime import datetime

    from tpu_operator.api import Failure, FailurePolicy, FailureRule, Restarts

BY_RULE: Final = "FailureRule"
BY_BUDGET: Final = "MaxRestartsReached"
LONGEST_PAUSE: Final = 300.0
"""Seconds; the kubelet's limit for containers that crash in a loop."""


def action_for(failure: Failure, policy: FailurePolicy) -> RuleAction:
    """The action of the first rule that matches, or else the default for the failure's cause."""
    for rule in policy.rules:
        if _matches(rule, failure):
            return rule.action
    return RuleAction.RESTART if failure.cause in COUNTED else RuleAction.RESTART_UNCOUNTED


def counts(failure: Failure, policy: FailurePolicy) -> bool:
    """Whether restarting after this failure uses up one of `maxRestarts`."""
    return action_for(failure, policy) is RuleAction.RESTART


def fatal(failure: Failure, policy: FailurePolicy, used: Restarts) -> str:
    """Why this failure ends the job, as the reason of its Failed condition; empty when it does not."""
    action = action_for(failure, policy)
    if action is RuleAction.FAIL_JOB:
        return BY_RULE
    if action is RuleAction.RESTART and used.counted >= policy.max_restarts:
        return BY_BUDGET
    return ""


def pause(used: Restarts, now: datetime) -> float:
    """Seconds to wait before the pods of the present attempt are made.

    The first restart is at once. Others that follow before all hosts were ready again wait twice as long as
    the one before: whatever makes a gang fail that fast is not cured by haste, and some causes count nothing.
    """
    if used.since_ready < 2 or used.last_time is None:  # noqa: PLR2004
        return 0.0
    wait = min(2.0 ** min(used.since_ready - 1, 16), LONGEST_PAUSE)
    return max(0.0, min(wait, (used.last_time - now).total_seconds() + wait))


def charge(used: Restarts, failure: Failure, policy: FailurePolicy, now: datetime) -> Restarts:
    """The restarts after one more."""
    counted = used.counted + int(counts(failure, policy))
    by_cause = used.by_cause | {failure.cause: used.by_cause.get(failure.cause, 0) + 1}
    update = {"total": used.total + 1, "counted": counted, "by_cause": by_cause}
    return uncharged(used.model_copy(update=update), now)


def uncharged(used: Restarts, now: datetime) -> Restarts:
    """The same restarts, after one more attempt that may have to wait."""
    return used.model_copy(update={"since_ready": used.since_ready + 1, "last_time": now})


def refund(used: Restarts, failure: Failure, policy: FailurePolicy) -> Restarts:
    """The restarts without the last one, which was charged for that failure."""
    total = max(0, used.total - 1)
    # The rules may have changed since the charge.
    counted = min(total, max(0, used.counted - int(counts(failure, policy))))
    by_cause = used.by_cause | {failure.cause: used.by_cause.get(failure.cause, 1) - 1}
    kept = {cause: count for cause, count in by_cause.items() if count > 0}
    update = {"total": total, "counted": counted, "by_cause": kept}
    update |= {"since_ready": max(0, used.since_ready - 1)}
    return used.model_copy(update=update)


def _matches(rule: FailureRule, failure: Failure) -> bool:
    """Whether every condition that the rule states holds."""
    return (
        (not rule.on_causes or failure.cause in rule.on_causes)
        and (not rule.on_exit_codes or failure.exit_code in rule.on_exit_codes)
        and (not rule.on_message or rule.on_message in (failure.message or ""))
    )

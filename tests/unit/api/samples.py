"""Objects that several tests look at."""

from datetime import UTC, datetime

from tpu_operator.api import (
    BlockedReason,
    Cause,
    Condition,
    ConditionStatus,
    Failure,
    Hosts,
    Pending,
    Phase,
    Restarts,
    SliceState,
    SliceStatus,
    TPUJobStatus,
)

NOON = datetime(2026, 11, 30, 12, 0, 0, 123456, UTC)


def full_status() -> TPUJobStatus:
    """Return a status with every field set."""
    failure = Failure(
        cause=Cause.USER_ERROR,
        attempt=1,
        pod="hello-0-2",
        slice=0,
        host=2,
        container="main",
        exit_code=1,
        signal=9,
        reason="Error",
        message="boom",
        time=NOON,
    )
    return TPUJobStatus(
        observed_generation=3,
        phase=Phase.RESTARTING,
        reason="UserError",
        message="host 2 of slice 0 exited with 1",
        conditions=[
            Condition(
                type="Ready",
                status=ConditionStatus.FALSE,
                reason="HostsNotReady",
                message="3/4",
                last_transition_time=NOON,
                observed_generation=3,
            )
        ],
        ready="3/4",
        hosts=Hosts(desired=4, ready=3),
        slices=[
            SliceStatus(
                index=0,
                attempt=1,
                restarts_in_place=1,
                in_place_since=NOON,
                state=SliceState.RESTARTING,
                ready="3/4",
                node_pool="pool-a",
                last_failure=failure,
            )
        ],
        restarts=Restarts(total=2, counted=1, by_cause={Cause.USER_ERROR: 1, Cause.PREEMPTED: 1}),
        last_failure=failure,
        pending=Pending(reason=BlockedReason.UNSCHEDULABLE, message="no nodes", since=NOON),
        start_time=NOON,
        completion_time=NOON,
    )

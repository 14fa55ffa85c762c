"""Leader election, on virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.engine.server import Direct, clock
from tpu_operator.engine.client import ApiError
from tpu_operator.engine.lease import DURATION, LONGEST, LOOK, RENEW, RENEW_DEADLINE, REQUEST, Elector

pytestmark = pytest.mark.looptime

OUTAGE = ApiError(503, "ServiceUnavailable", "starting")


def elector(api: Direct, identity: str) -> Elector:
    return Elector(api, "tpu-operator", "tpu-operator", identity, clock)


def spec(api: Direct) -> dict[str, Any]:
    (stored,) = api.server.all("leases")
    found: dict[str, Any] = stored.body["spec"]
    return found


def now() -> float:
    return asyncio.get_running_loop().time()


async def acquired(candidate: Elector) -> float:
    """Seconds until a candidate leads."""
    began = now()
    await candidate.acquire()
    return now() - began


async def test_the_first_one_leads_at_once() -> None:
    api = Direct()
    first = elector(api, "a")
    assert not first.held()
    assert await acquired(first) == 0
    assert first.held()
    assert spec(api)["holderIdentity"] == "a"
    assert spec(api)["leaseDurationSeconds"] == DURATION
    assert spec(api)["leaseTransitions"] == 0


async def test_nobody_else_leads_while_it_is_renewed() -> None:
    api = Direct()
    first, second = elector(api, "a"), elector(api, "b")
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(100):
            await second.acquire()
    assert first.held()
    assert not second.held()
    keeping.cancel()
    assert DURATION <= await acquired(second) <= DURATION + RENEW + 2 * LOOK


async def test_a_lease_that_runs_out_is_taken_over() -> None:
    api = Direct()
    first, second = elector(api, "a"), elector(api, "b")
    await first.acquire()
    assert DURATION < await acquired(second) <= DURATION + 2 * LOOK
    assert not first.held()
    assert spec(api)["leaseTransitions"] == 1


@pytest.mark.parametrize(("asked", "waited"), [(30, 30), (5, DURATION), (10**9, LONGEST), (None, DURATION)])
async def test_the_duration_is_the_holders_own(asked: int | None, waited: int) -> None:
    """The holder may be of another version of the operator."""
    api = Direct()
    await elector(api, "a").acquire()
    api.server.update(
        "leases",
        ("tpu-operator", "tpu-operator"),
        "a",
        lambda body: body["spec"].update(leaseDurationSeconds=asked),
    )
    assert waited < await acquired(elector(api, "b")) <= waited + 2 * LOOK


async def test_a_lease_that_is_let_go_of_is_taken_at_once() -> None:
    api = Direct()
    first, second = elector(api, "a"), elector(api, "b")
    await first.acquire()
    waiting = asyncio.create_task(acquired(second))
    await asyncio.sleep(5.5)
    await first.release()
    assert not first.held()
    assert await waiting <= 5.5 + LOOK
    assert spec(api)["leaseTransitions"] == 1, "a hand-over is one transition"


async def test_a_lease_that_somebody_deletes_has_no_second_holder() -> None:
    """Its holder learns of it only when it renews, and may write until then."""
    api = Direct()
    first, second = elector(api, "a"), elector(api, "b")
    await first.acquire()
    waiting = asyncio.create_task(acquired(second))
    await asyncio.sleep(5.5)
    keeping = asyncio.create_task(first.keep())
    api.server.delete("leases", ("tpu-operator", "tpu-operator"), "somebody")
    await asyncio.sleep(RENEW + LOOK)
    assert spec(api)["holderIdentity"] == "a"
    await asyncio.sleep(3 * DURATION)
    assert first.held()
    assert not second.held()
    keeping.cancel()
    api.server.delete("leases", ("tpu-operator", "tpu-operator"), "somebody")
    await waiting
    assert not first.left()


async def test_transitions_are_counted_as_far_as_the_api_counts() -> None:
    api = Direct()
    await elector(api, "a").acquire()
    most = (1 << 31) - 1
    key = ("tpu-operator", "tpu-operator")
    api.server.update("leases", key, "a", lambda body: body["spec"].update(leaseTransitions=most))
    await elector(api, "b").acquire()
    assert spec(api)["leaseTransitions"] == most


async def test_who_does_not_hold_it_lets_go_of_nothing() -> None:
    api = Direct()
    await elector(api, "a").acquire()
    await elector(api, "b").release()
    assert spec(api)["holderIdentity"] == "a"


async def test_a_holder_that_cannot_renew_stops_before_anybody_else_may_begin() -> None:
    api = Direct()
    first = elector(api, "a")
    await first.acquire()
    api.failures = [OUTAGE] * 100
    await first.keep()
    assert RENEW_DEADLINE <= now() < DURATION
    assert first.left() == 0


async def test_a_renewal_counts_from_before_it_was_sent() -> None:
    api = Direct(latency=1.0)
    first = elector(api, "a")
    assert await acquired(first) == 2
    assert first.left() == DURATION - 2


async def test_every_request_has_a_limit_that_the_server_keeps() -> None:
    api = Direct()
    first = elector(api, "a")
    await first.acquire()
    await first.acquire()
    await first.release()
    assert {sent.method for sent in api.sent} == {"GET", "POST", "PUT"}
    assert {sent.query.get("timeout") for sent in api.sent} == {f"{REQUEST:.3f}s"}

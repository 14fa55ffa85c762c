"""Answers that are lost, requests that arrive twice, events that are missed, copies that are behind.

As for crashes, the job has to end where it would have ended without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.cluster.faults import proxy
from tests.cluster.faults.lab import wait
from tests.cluster.faults.proxy import EventRule, Rule
from tests.cluster.faults.scenarios import SCENARIOS, case

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from tests.cluster.faults.lab import Replica
    from tests.cluster.faults.proxy import Action, Call
    from tests.cluster.faults.scenarios import Oracle

pytestmark = pytest.mark.timeout(900)
"""Seconds for all that run side by side, on a machine that has other things to do as well."""

ONCE: Final[dict[str, Action]] = {
    "request-lost": proxy.lose_request,
    "answer-lost": proxy.lose_answer,
    "sent-twice": proxy.twice,
    "conflict": proxy.answer(409),
    "too-many-requests": proxy.answer(429, retry_after=1),
    "internal-error": proxy.answer(500),
    "unavailable": proxy.answer(503),
}
"""What happens to every write, once."""
PLAIN: Final = [name for name, story in SCENARIOS.items() if story.interrupted is None]
WRITES: Final = [
    pytest.param(name, number, id=f"{name}-write-{number}")
    for name in ("create", "restart")
    for number in range(1, SCENARIOS[name].limit)
]
EVENTS: Final = [
    pytest.param(name, number, id=f"{name}-event-{number}")
    for name in ("create", "restart", "suspend", "fail")
    for number in range(1, SCENARIOS[name].events)
]
RESOURCES: Final = ("pods", "services", "tpujobs")
TAKEOVERS: Final = [
    pytest.param(name, number, id=f"{name}-write-{number}")
    for name in PLAIN
    for number in range(1, SCENARIOS[name].limit, 2)
]


@pytest.mark.parametrize("fault", ONCE)
@pytest.mark.parametrize("scenario", PLAIN)
def test_every_write_fails_once(side_by_side: Callable[..., None], scenario: str, fault: str) -> None:
    side_by_side(every_write_fails_once)


async def every_write_fails_once(oracle: Oracle, scenario: str, fault: str) -> None:
    seen: set[tuple[str, str, str]] = set()

    def first(call: Call) -> bool:
        key = (call.verb, call.path, call.name)
        known = key in seen
        seen.add(key)
        return call.is_write and not known

    async with case(oracle.lab) as job:
        replica = await job.replica()
        await SCENARIOS[scenario].prepare(job)
        replica.proxy.rules = [Rule(ONCE[fault], where=first)]
        await SCENARIOS[scenario].act(job)
        await job.settles(await oracle.end(scenario))


@pytest.mark.parametrize(("scenario", "number"), WRITES)
def test_one_answer_is_lost(side_by_side: Callable[..., None], scenario: str, number: int) -> None:
    side_by_side(one_answer_is_lost)


async def one_answer_is_lost(oracle: Oracle, scenario: str, number: int) -> None:
    async with case(oracle.lab) as job:
        replica = await job.replica()
        await SCENARIOS[scenario].prepare(job)
        lost = Rule(proxy.lose_answer, where=lambda call: call.is_write, skip=number - 1, times=1)
        replica.proxy.rules = [lost]
        await SCENARIOS[scenario].act(job)
        await job.settles(await oracle.end(scenario))


@pytest.mark.parametrize(("scenario", "number"), EVENTS)
def test_one_event_is_missed(side_by_side: Callable[..., None], scenario: str, number: int) -> None:
    """The replica goes on without it, until it lists again."""
    side_by_side(one_event_is_missed)


async def one_event_is_missed(oracle: Oracle, scenario: str, number: int) -> None:
    await events_are_missed(oracle, scenario, EventRule(skip=number - 1))


@pytest.mark.parametrize("resource", RESOURCES)
@pytest.mark.parametrize("scenario", PLAIN)
def test_all_events_are_missed(side_by_side: Callable[..., None], scenario: str, resource: str) -> None:
    """The replica hears nothing of one resource, until it lists again."""
    side_by_side(all_events_are_missed)


async def all_events_are_missed(oracle: Oracle, scenario: str, resource: str) -> None:
    await events_are_missed(oracle, scenario, EventRule(resource=resource, times=float("inf")))


async def events_are_missed(oracle: Oracle, scenario: str, rule: EventRule) -> None:
    end = await oracle.end(scenario)
    async with case(oracle.lab) as job:
        replica = await job.replica()
        await SCENARIOS[scenario].prepare(job)
        replica.proxy.event_rules = [rule]
        await SCENARIOS[scenario].act(job)

        async def missed_or_done() -> bool:
            return bool(rule.hits) or await job.is_in(end)

        await wait(missed_or_done, "an event to be missed")
        await wait(idle(replica), "the replica to have done what it can")
        replica.proxy.event_rules = []
        await replica.proxy.expire()
        await job.settles(end)


def idle(replica: Replica) -> Callable[[], Coroutine[Any, Any, bool]]:
    async def ask() -> bool:
        return replica.idle

    return ask


@pytest.mark.parametrize(("scenario", "number"), TAKEOVERS)
def test_a_standby_that_is_behind_takes_over(
    side_by_side: Callable[..., None], scenario: str, number: int
) -> None:
    """It has heard nothing since before it began, and hears nothing until it has done what it can."""
    side_by_side(a_standby_that_is_behind_takes_over)


async def a_standby_that_is_behind_takes_over(oracle: Oracle, scenario: str, number: int) -> None:
    end = await oracle.end(scenario)
    async with case(oracle.lab) as job:
        leader, standby = await job.replica(), await job.standby()
        await SCENARIOS[scenario].prepare(job)
        standby.proxy.freeze()
        leader.proxy.kill_at(number, "after", leader.kill)
        await SCENARIOS[scenario].act(job)

        async def killed_or_done() -> bool:
            return leader.proxy.killed or (
                leader.might_be(job.name, SCENARIOS[scenario].end) and await job.state() == end
            )

        await wait(killed_or_done, f"write {number}")
        if not leader.proxy.spare():
            leader.kill()
        await job.free_lease()
        await wait(idle(standby), "the standby to have done what it can")
        standby.proxy.thaw()
        await job.settles(end)

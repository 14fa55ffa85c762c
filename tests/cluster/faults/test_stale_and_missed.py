"""Answers that are lost, requests that arrive twice, events that are missed, copies that are behind.

As for crashes, the job has to end where it would have ended without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.cluster.faults import actions
from tests.cluster.faults.lab import wait
from tests.cluster.faults.proxy import EventRule, Rule
from tests.cluster.faults.scenarios import SCENARIOS, case
from tests.cluster.faults.together import together

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from tests.cluster.faults.lab import Replica
    from tests.cluster.faults.proxy import Call
    from tests.cluster.faults.scenarios import Oracle

PLAIN: Final = [name for name, story in SCENARIOS.items() if story.interrupted is None]
EVENTS: Final = [
    pytest.param(name, number, id=f"{name}-event-{number}")
    for name in ("create", "restart", "suspend")
    for number in range(1, SCENARIOS[name].events)
]
RESOURCES: Final = ("pods", "services", "tpujobs")
TAKEOVERS: Final = [
    pytest.param(name, number, id=f"{name}-write-{number}")
    for name in PLAIN
    for number in SCENARIOS[name].numbers
]


@together
@pytest.mark.parametrize("fault", actions.ONCE)
@pytest.mark.parametrize("scenario", PLAIN)
async def test_every_write_fails_once(oracle: Oracle, scenario: str, fault: str) -> None:
    seen: set[tuple[str, str, str]] = set()

    def first(call: Call) -> bool:
        key = (call.verb, call.path.partition("?")[0], call.name)
        known = key in seen
        seen.add(key)
        return call.is_write and not known

    async with case(oracle.lab) as job:
        replica = await job.replica()
        await SCENARIOS[scenario].prepare(job)
        replica.proxy.rules = [Rule(actions.ONCE[fault], where=first)]
        await SCENARIOS[scenario].act(job)
        await job.settles(await oracle.end(scenario))


@together
@pytest.mark.parametrize(("scenario", "number"), EVENTS)
async def test_one_event_is_missed(oracle: Oracle, scenario: str, number: int) -> None:
    """The replica goes on without it, until it lists again."""
    await events_are_missed(oracle, scenario, EventRule(skip=number - 1))


@together
@pytest.mark.parametrize("scenario", ["create", "restart", "suspend"])
async def test_every_event_comes_twice(oracle: Oracle, scenario: str) -> None:
    async with case(oracle.lab) as job:
        replica = await job.replica()
        await SCENARIOS[scenario].prepare(job)
        replica.proxy.event_rules = [EventRule(copies=2, times=float("inf"))]
        await SCENARIOS[scenario].act(job)
        await job.settles(await oracle.end(scenario))


@together
@pytest.mark.parametrize("resource", RESOURCES)
@pytest.mark.parametrize("scenario", PLAIN)
async def test_all_events_are_missed(oracle: Oracle, scenario: str, resource: str) -> None:
    """The replica hears nothing of one resource, until it lists again."""
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


@together
@pytest.mark.parametrize(("scenario", "number"), TAKEOVERS)
async def test_a_standby_that_is_behind_takes_over(oracle: Oracle, scenario: str, number: int) -> None:
    """It has heard nothing since before it began, and hears nothing until it has done what it can."""
    end = await oracle.end(scenario)
    async with case(oracle.lab) as job:
        leader, standby = await job.replica(), await job.standby()
        await SCENARIOS[scenario].prepare(job)
        standby.proxy.freeze()
        leader.proxy.kill_after(number, leader.kill)
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

"""The API server is away, overloaded, restarted, or talks nonsense: the operator waits, and goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.cluster.faults import actions
from tests.cluster.faults.lab import wait
from tests.cluster.faults.proxy import Rule
from tests.cluster.faults.scenarios import SCENARIOS, Case, case
from tests.cluster.faults.together import together
from tpu_operator.core import names
from tpu_operator.engine.informer import SILENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.cluster.faults.lab import Replica
    from tests.cluster.faults.proxy import Call
    from tests.cluster.faults.scenarios import Oracle

AT_ONCE: Final = 3
A_SECOND: Final = 1.75
"""Requests that may be sent for each informer to a server that is not well: at once, and from then on."""


async def fail_host_and_settle(oracle: Oracle, job: Case) -> None:
    """Show that the replica sees what happens, and acts on it."""
    await job.end_pod(1, exit_code=3)
    await job.settles(await oracle.end("restart"))


def of_jobs(call: Call, resource: str) -> bool:
    """Whether a request reads objects of that kind that belong to TPUJobs."""
    return call.resource == resource and _selector(call) == names.LABEL_JOB


def _selector(call: Call) -> str:
    return parse_qs(urlsplit(call.path).query).get("labelSelector", [""])[0]


def lists(replica: Replica, resource: str) -> list[Call]:
    return [call for call in replica.proxy.calls if call.verb == "list" and of_jobs(call, resource)]


def watched_after(replica: Replica, call: Call) -> bool:
    """Whether the resource of a request was watched after it."""
    return any(
        (c.verb, c.resource) == ("watch", call.resource) and c.at > call.at for c in replica.proxy.calls
    )


def until(what: Callable[[], object]) -> Callable[[], Coroutine[Any, Any, bool]]:
    async def ask() -> bool:
        return bool(what())

    return ask


class Pace:
    """How many requests come in a time."""

    def __init__(self, replica: Replica) -> None:
        self._proxy, self._informers = replica.proxy, len(replica.runner.informers)
        self._calls, self._since = len(replica.proxy.calls), asyncio.get_running_loop().time()

    def check(self) -> None:
        """Fail if it was more than a server that is not well should get."""
        calls = self._proxy.calls[self._calls :]
        seconds = asyncio.get_running_loop().time() - self._since
        text = "\n".join(f"  {call.at - self._since:.2f} {call}" for call in calls)
        allowed = self._informers * (AT_ONCE + A_SECOND * seconds)
        assert len(calls) <= allowed, f"{len(calls)} requests in {seconds:.1f} s:\n{text}"


@together
@pytest.mark.parametrize("fault", actions.OUTAGES)
async def test_nothing_works_for_a_while(oracle: Oracle, fault: str) -> None:
    async with case(oracle.lab) as job:
        replica = await job.replica()
        await SCENARIOS["restart"].prepare(job)
        pace = Pace(replica)
        outage = Rule(actions.OUTAGES[fault])
        replica.proxy.rules = [outage]
        replica.proxy.break_watches()
        await job.end_pod(1, exit_code=3)

        def tries() -> int:
            return sum(of_jobs(call, "pods") for call in outage.hits)

        await wait(until(lambda: tries() >= 5), "five tries to read the pods")
        pace.check()
        replica.proxy.rules = []
        await job.settles(await oracle.end("restart"))


@together
async def test_connections_are_refused_for_a_while(oracle: Oracle) -> None:
    async with case(oracle.lab) as job:
        replica = await job.replica()
        await SCENARIOS["restart"].prepare(job)
        await replica.proxy.refuse()
        await job.end_pod(1, exit_code=3)
        tries: set[float] = set()

        async def four() -> bool:
            tries.update(informer._tried for informer in replica.runner.informers)
            return len(tries) >= 4 * len(replica.runner.informers)

        await wait(four, "four tries of each")
        await replica.proxy.accept()
        await job.settles(await oracle.end("restart"))


@together
@pytest.mark.parametrize("code", [400, 403, 404, 410, 429, 500, 503, 504])
async def test_a_watch_ends_with_an_error_event(oracle: Oracle, code: int) -> None:
    async with case(oracle.lab) as job:
        replica = await job.replica()
        await SCENARIOS["restart"].prepare(job)
        listed = len(lists(replica, "pods"))
        for watch in list(replica.proxy.watches):
            await watch.fail(code)
        await fail_host_and_settle(oracle, job)
        assert len(lists(replica, "pods")) - listed == (1 if code == 410 else 0)


@together
@pytest.mark.parametrize("politely", [True, False])
async def test_a_watch_ends_in_the_middle_of_a_line(oracle: Oracle, politely: bool) -> None:
    async with case(oracle.lab) as job:
        replica = await job.replica()
        await SCENARIOS["restart"].prepare(job)
        for watch in list(replica.proxy.watches):
            await watch.truncate(politely=politely)
        await fail_host_and_settle(oracle, job)


@together
@pytest.mark.parametrize("fault", actions.BROKEN_WATCHES)
async def test_no_watch_stands(oracle: Oracle, fault: str) -> None:
    """Whatever comes of the lists meanwhile, the operator does not spin."""
    async with case(oracle.lab) as job:
        replica = await job.replica()
        await SCENARIOS["restart"].prepare(job)
        pace = Pace(replica)
        broken = Rule(actions.BROKEN_WATCHES[fault], verb="watch")
        replica.proxy.rules = [broken]
        replica.proxy.break_watches()
        await job.end_pod(1, exit_code=3)

        def tries() -> list[float]:
            return [call.at for call in broken.hits if of_jobs(call, "services")]

        await wait(until(lambda: len(tries()) >= 6), "six tries to watch")
        assert tries()[5] - tries()[4] > 2, "the pauses do not grow"
        pace.check()
        replica.proxy.rules = []
        await job.settles(await oracle.end("restart"))


@together
@pytest.mark.parametrize("verb", ["create", "list", "watch"])
async def test_retry_after_is_honoured(oracle: Oracle, verb: str) -> None:
    """Even if something happens meanwhile that would be worth a request."""
    async with case(oracle.lab) as job:
        replica = await job.replica()
        await SCENARIOS["restart"].prepare(job)
        full = Rule(actions.answer(429, retry_after=3), verb=verb, resource="pods", times=1, where=_of_job)
        replica.proxy.rules = [full]
        if verb != "create":
            await replica.proxy.expire()
        await job.end_pod(1, exit_code=3)
        await wait(until(lambda: full.hits), "the answer 429")
        (refused,) = full.hits
        await job.api.patch(job.path, {"metadata": {"annotations": {"touched": "yes"}}})
        await job.settles(await oracle.end("restart"))
        again = next(c for c in replica.proxy.calls if c.at > refused.at and _alike(c, refused))
        assert again.at - refused.at >= 3


def _of_job(call: Call) -> bool:
    return call.is_write or of_jobs(call, call.resource)


def _alike(call: Call, refused: Call) -> bool:
    """Whether a request asks the server for more of the same: of that job, or of that watch."""
    same = call.is_write and call.resource != "events" if refused.is_write else not call.is_write
    return same and (refused.is_write or of_jobs(call, refused.resource))


@together
async def test_retry_after_of_an_error_event_is_honoured(oracle: Oracle) -> None:
    async with case(oracle.lab) as job:
        replica = await job.replica()
        await SCENARIOS["restart"].prepare(job)
        pods = [watch for watch in replica.proxy.watches if of_jobs(watch.call, "pods")][-1]
        before, now = len(replica.proxy.calls), asyncio.get_running_loop().time()
        await pods.fail(429, retry_after=3)
        await fail_host_and_settle(oracle, job)
        again = next(call for call in replica.proxy.calls[before:] if of_jobs(call, "pods"))
        assert again.at - now >= 3


@together
@pytest.mark.parametrize("position", ["kept", "lost"])
async def test_a_pod_is_deleted_while_nobody_watches(oracle: Oracle, position: str) -> None:
    async with case(oracle.lab) as job:
        replica = await job.replica()
        await SCENARIOS["lost-pod"].prepare(job)
        away = Rule(actions.answer(503), where=lambda call: call.verb in {"list", "watch"})
        replica.proxy.rules = [away]
        replica.proxy.break_watches()
        await job.api.delete(job.pod_path(0), gracePeriodSeconds=0)
        await wait(until(lambda: any(call.resource == "pods" for call in away.hits)), "a try")
        lost = Rule(actions.answer(410), verb="watch", times=4)
        replica.proxy.rules = [lost] if position == "lost" else []
        await job.settles(await oracle.end("lost-pod"))


@together
async def test_a_list_expires_between_two_pages(oracle: Oracle) -> None:
    async with case(oracle.lab) as job:
        replica = await job.replica()
        await SCENARIOS["restart"].prepare(job)
        expired = Rule(actions.answer(410), verb="list", where=lambda c: "continue=" in c.path, times=2)
        replica.proxy.rules = [expired, Rule(actions.small_pages(5), verb="list")]
        await replica.proxy.expire()
        await fail_host_and_settle(oracle, job)
        await wait(until(lambda: len(expired.hits) == 2), "the lists to expire")
        await wait(until(lambda: watched_after(replica, expired.hits[1])), "the nodes to be watched")
        nodes = {node["metadata"]["name"] for node in await job.api.items("/api/v1/nodes")}
        assert {name for _, name in replica.runner._job_controllers[0].informers["Node"].keys()} == nodes  # noqa: SIM118


@together
async def test_watches_hang(oracle: Oracle) -> None:
    """As behind a load balancer that has forgotten the connection: no word, no end."""
    async with case(oracle.lab) as job:
        replica = await job.replica()
        await SCENARIOS["restart"].prepare(job)
        replica.proxy.hang()
        before = len(replica.proxy.calls)
        await job.end_pod(1, exit_code=3)

        def watched() -> set[str]:
            return {call.resource for call in replica.proxy.calls[before:] if call.verb == "watch"}

        again = until(lambda: {"pods", "tpujobs"} <= watched())
        await wait(again, "the watches to be given up for new ones", 3 * SILENCE)
        await job.settles(await oracle.end("restart"))


@together
@pytest.mark.parametrize("verb", ["create", "patch", "list"])
async def test_a_request_hangs(oracle: Oracle, verb: str) -> None:
    over = asyncio.Event()
    async with case(oracle.lab) as job:
        replica = await job.replica()
        await SCENARIOS["restart"].prepare(job)
        resource = "tpujobs" if verb == "patch" else "pods"
        hanging = Rule(actions.delay(over.wait), verb=verb, resource=resource, times=1)
        replica.proxy.rules = [hanging]
        if verb == "list":
            await replica.proxy.expire()
        await job.end_pod(1, exit_code=3)
        await job.settles(await oracle.end("restart"))
        assert hanging.hits
        over.set()


@together
async def test_a_status_that_the_server_refuses_is_told_in_an_event(oracle: Oracle) -> None:
    async with case(oracle.lab) as job:
        replica = await job.replica()
        replica.proxy.rules = [Rule(actions.answer(422), subresource="status")]
        await job.create()

        def told() -> bool:
            bodies = [c.body for c in replica.proxy.calls if (c.verb, c.resource) == ("create", "events")]
            return "StatusRefused" in {body["reason"] for body in bodies if body}

        await wait(until(told), "an event")
        replica.proxy.rules = []
        await job.reaches("Running")

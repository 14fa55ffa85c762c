"""Requests through the real Envoy and the real endpoint picker to engines that prefill and decode apart."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.kube import wait_for

if TYPE_CHECKING:
    from tests.cluster.routing.gateway import Gateway
    from tests.engines.completions import Outcome


async def test_a_stream_is_prefilled_by_one_replica_and_decoded_by_another(gateway: Gateway) -> None:
    await asyncio.to_thread(gateway.pair, "a")
    await asyncio.to_thread(gateway.wait_until_served)
    outcome = await gateway.ask(max_tokens=5)
    assert (outcome.prefilled_by, outcome.decoded_by) == ("qwen-prefill-a-0", "qwen-decode-a-0")
    assert (outcome.tokens, outcome.whole) == (5, True)


def test_case_pc08_without_a_decoder_the_answer_is_503_with_a_reason(gateway: Gateway) -> None:
    gateway.ready(gateway.replica("prefill", "a"))
    outcome = asyncio.run(gateway.ask())
    assert outcome.status == 503
    assert "no revision has a ready replica of every role" in outcome.text


async def test_case_pc06_no_request_is_shared_between_revisions(gateway: Gateway) -> None:
    await asyncio.to_thread(gateway.pair, "a")
    await asyncio.to_thread(gateway.pair, "b")
    await asyncio.to_thread(gateway.wait_until_served)
    served: set[tuple[str, str]] = set()

    def both() -> bool:
        return {pair[0] for pair in served} == {"a", "b"}

    while not both():
        for outcome in await asyncio.gather(*(gateway.ask(max_tokens=1) for _ in range(20))):
            assert outcome.status == 200, outcome
            served.add((revision(outcome.prefilled_by), revision(outcome.decoded_by)))
    assert served == {("a", "a"), ("b", "b")}


async def test_case_pc07_an_incomplete_revision_gets_nothing_until_it_is_complete(gateway: Gateway) -> None:
    await asyncio.to_thread(gateway.pair, "a")
    await asyncio.to_thread(gateway.wait_until_served)
    decoder = await asyncio.to_thread(gateway.replica, "decode", "b")
    await asyncio.to_thread(gateway.ready, decoder)
    outcomes = [await gateway.ask(max_tokens=1) for _ in range(30)]
    assert {outcome.decoded_by for outcome in outcomes} == {"qwen-decode-a-0"}
    prefiller = await asyncio.to_thread(gateway.replica, "prefill", "b")
    await asyncio.to_thread(gateway.ready, prefiller)
    assert await asyncio.to_thread(
        wait_for, lambda: asyncio.run(gateway.ask()).decoded_by.endswith("b-0"), "b"
    )


async def test_case_pc28_a_replica_without_its_model_gets_nothing(gateway: Gateway) -> None:
    await asyncio.to_thread(gateway.pair, "a")
    await asyncio.to_thread(gateway.wait_until_served)
    await asyncio.to_thread(gateway.replica, "decode", "a", 1, "--load-seconds=3600")
    assert {o.decoded_by for o in [await gateway.ask(max_tokens=1) for _ in range(20)]} == {"qwen-decode-a-0"}


async def test_a_stream_goes_on_while_its_replica_is_not_ready_any_more(gateway: Gateway) -> None:
    _, decoder = await asyncio.to_thread(gateway.pair, "a")
    await asyncio.to_thread(gateway.wait_until_served)
    under_way = asyncio.ensure_future(gateway.ask(max_tokens=200))
    running = "num_requests_running"
    await asyncio.to_thread(wait_for, lambda: decoder.engine.metric(running) == 1, "the stream to begin")
    decoder.set_ready(False)
    await asyncio.to_thread(wait_for, lambda: asyncio.run(gateway.ask()).status == 503, "it to be left alone")
    outcome = await under_way
    assert (outcome.tokens, outcome.whole) == (200, True)


async def test_a_dead_prefiller_is_an_error_and_no_answer_from_half_of_the_work(gateway: Gateway) -> None:
    prefiller, decoder = await asyncio.to_thread(gateway.pair, "a")
    await asyncio.to_thread(gateway.wait_until_served)
    done = decoder.engine.metric("request_success_total")
    prefiller.kill()
    outcome = await gateway.ask()
    assert outcome.status == 502
    assert decoder.engine.metric("request_success_total") == done
    second = await asyncio.to_thread(gateway.replica, "prefill", "a", 1)
    await asyncio.to_thread(gateway.ready, second)
    prefiller.set_ready(False)
    served: Outcome = await asyncio.to_thread(gateway.wait_until_served)
    assert served.prefilled_by == "qwen-prefill-a-1"


def revision(pod: str) -> str:
    """Revision in the name of a pod."""
    return pod.split("-")[2]

"""The engine and the sidecar that tests use in place of vLLM and llm-d's."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.engines import wire
from tests.engines.processes import DECODER, MODEL, Process, engine, running, sidecar
from tests.kube import wait_for
from tests.loopback import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PREFILLER = {"kv_connector": "TPUConnector", "kv_role": "kv_producer"}
PATH = "/v1/completions"


async def ask(
    to: Process, headers: Mapping[str, str] | None = None, **body: Any
) -> tuple[int, dict[str, Any]]:
    """Ask for a completion."""
    sent = json.dumps({"model": MODEL, "prompt": "one two three", "max_tokens": 3} | body).encode()
    async with wire.request(to.address, "POST", PATH, headers, sent) as answer:
        return answer.status, json.loads(await answer.body())


async def stream(to: Process, headers: Mapping[str, str] | None = None, **body: Any) -> list[dict[str, Any]]:
    """Ask for a streamed completion; its events, of which the last must have come."""
    sent = {"model": MODEL, "prompt": "one two three", "max_tokens": 3, "stream": True} | body
    async with wire.request(to.address, "POST", PATH, headers, json.dumps(sent).encode()) as answer:
        assert answer.status == 200
        events = (await answer.body()).decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


@pytest.fixture
def one() -> Iterator[Process]:
    """One engine."""
    made = engine("one")
    with running(made):
        yield made


async def test_a_completion_says_who_made_it(one: Process) -> None:
    status, answer = await ask(one)
    assert status == 200
    assert answer["choices"] == [{"index": 0, "finish_reason": "length", "text": " t0 t1 t2"}]
    assert answer["engine"] == {"prefilled_by": "one", "decoded_by": "one"}
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 3}


async def test_a_stream_comes_token_by_token(one: Process) -> None:
    events = await stream(one)
    assert [event["choices"][0]["text"] for event in events] == [" t0", " t1", " t2"]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, "length"]


async def test_another_model_and_a_broken_request_are_refused(one: Process) -> None:
    status, answer = await ask(one, model="other")
    assert (status, answer["error"]["message"]) == (404, "The model `other` does not exist.")
    async with wire.request(one.address, "POST", PATH, {}, b"[") as refused:
        assert refused.status == 400


async def test_metrics_have_vllms_names(one: Process) -> None:
    await ask(one)
    assert one.metric("request_success_total") == 1
    assert one.metric("num_requests_waiting") == 0
    assert one.metric("num_requests_running") == 0
    assert f'model_name="{MODEL}"' in one.get("/metrics")[1]


def test_case_pc28_it_is_alive_long_before_it_has_a_model() -> None:
    slow = engine("slow", "--load-seconds=3600").start()
    try:
        wait_for(lambda: slow.get("/health")[0] == 200, "the engine to live")
        assert slow.get("/v1/models")[0] == 503
        slow.signal(signal.SIGTERM)
        assert slow.wait() == 0
    finally:
        slow.kill()


async def test_told_to_stop_it_finishes_what_it_is_at_and_takes_no_more() -> None:
    made = engine("one", "--token-seconds=0.2", "--shutdown-timeout=30")
    with running(made):
        under_way = asyncio.ensure_future(stream(made, max_tokens=10))
        await asyncio.to_thread(wait_for, lambda: made.metric("num_requests_running") == 1, "the stream")
        made.signal(signal.SIGTERM)
        await asyncio.to_thread(wait_for, lambda: made.get("/health")[0] == 0, "it to take no more")
        assert len(await under_way) == 10
        assert made.wait() == 0


async def test_what_takes_longer_than_it_may_is_broken_off() -> None:
    made = engine("one", "--token-seconds=0.1", "--shutdown-timeout=0.2")
    with running(made):
        under_way = asyncio.ensure_future(stream(made, max_tokens=1000))
        await asyncio.to_thread(wait_for, lambda: made.metric("num_requests_running") == 1, "the stream")
        made.signal(signal.SIGTERM)
        with pytest.raises(EOFError):
            await under_way
        assert made.wait() == 0


class TestHandOver:
    @pytest.fixture
    def prefiller(self) -> Process:
        return engine("prefiller", kv=PREFILLER)

    @pytest.fixture
    def decoder(self) -> Process:
        return engine("decoder", kv=DECODER)

    async def test_prefill_is_done_by_one_engine_and_decode_by_the_other(
        self, prefiller: Process, decoder: Process
    ) -> None:
        proxy = sidecar(decoder)
        with running(prefiller, decoder, proxy):
            events = await stream(proxy, {"x-prefiller-host-port": prefiller.address})
            assert len(events) == 3
            assert {json.dumps(event["engine"]) for event in events} == {
                '{"prefilled_by": "prefiller", "decoded_by": "decoder"}'
            }
            assert decoder.metric("tpu_kv_pulls_total") == 1
            assert prefiller.metric("generation_tokens_total") == 1

    async def test_without_a_prefiller_the_decoder_does_all(self, decoder: Process) -> None:
        proxy = sidecar(decoder)
        with running(decoder, proxy):
            _, answer = await ask(proxy)
            assert answer["engine"] == {"prefilled_by": "decoder", "decoded_by": "decoder"}
            assert "kv_transfer_params" not in answer

    async def test_a_dead_prefiller_is_an_error_of_the_gateway(self, decoder: Process) -> None:
        proxy = sidecar(decoder, "--prefill-max-retries=1")
        with running(decoder, proxy):
            status, answer = await ask(proxy, {"x-prefiller-host-port": f"127.0.0.1:{free_port()}"})
            assert status == 502
            assert "prefiller" in answer["error"]["message"]
            assert decoder.metric("request_success_total") == 0

    async def test_kv_that_is_gone_is_computed_again_where_that_is_allowed(
        self, prefiller: Process, decoder: Process
    ) -> None:
        strict = engine("strict", kv={"kv_role": "kv_consumer"})
        with running(prefiller, decoder, strict):
            _, answer = await ask(prefiller, max_tokens=1, kv_transfer_params={"do_remote_decode": True})
            parameters = answer["kv_transfer_params"]
            prefiller.kill()
            _, decoded = await ask(decoder, kv_transfer_params=parameters)
            assert decoded["engine"]["prefilled_by"] == "decoder"
            assert decoder.metric("tpu_num_failed_transfers") == 1
            status, _ = await ask(strict, kv_transfer_params=parameters)
            assert status == 500

    async def test_case_pc35_kv_of_another_engine_at_the_same_address_is_not_taken(
        self, prefiller: Process, decoder: Process
    ) -> None:
        with running(prefiller, decoder):
            _, answer = await ask(prefiller, max_tokens=1, kv_transfer_params={"do_remote_decode": True})
            parameters = answer["kv_transfer_params"] | {"remote_engine_id": "an earlier one"}
            _, decoded = await ask(decoder, kv_transfer_params=parameters)
            assert decoded["engine"]["prefilled_by"] == "decoder"


class TestHosts:
    def hosts(self, *arguments: str) -> tuple[Process, Process]:
        """Two hosts of one engine."""
        head = engine("head", *arguments, "--node-rank=0")
        other = engine("other", *arguments, "--node-rank=1", "--headless")
        return head, other

    @pytest.mark.parametrize("mode", ["processes", "data parallel"])
    def test_they_serve_together_and_are_lost_together(self, mode: str) -> None:
        port = free_port()
        head, other = self.hosts(
            *(
                ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={port}"]
                if mode == "processes"
                else [
                    "--data-parallel-size=4",
                    "--data-parallel-size-local=2",
                    "--data-parallel-address=127.0.0.1",
                    f"--data-parallel-rpc-port={port}",
                ]
            )
        )
        head.start()
        try:
            wait_for(lambda: head.get("/health")[0] == 200, "the head to live")
            assert head.get("/v1/models")[0] == 503
            other.start()
            head.wait_ready()
            other.kill()
            assert head.wait() == 1
        finally:
            head.kill()

    def test_a_host_that_loses_the_first_ends(self) -> None:
        head, other = self.hosts("--nnodes=2", f"--master-port={free_port()}")
        head.start()
        other.start()
        try:
            head.wait_ready()
            head.kill()
            assert other.wait() == 1
        finally:
            other.kill()

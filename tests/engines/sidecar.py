"""A stand-in for llm-d's routing sidecar, by its protocol (llm-d-router 0.10, connector nixlv2).

A request with the header `x-prefiller-host-port` goes there first, for one token; what comes back of KV
parameters goes with the request to the engine beside the sidecar. An error of the prefiller is the answer,
after as many more tries as it is told to make. Without the header the engine beside does all of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from . import wire

if TYPE_CHECKING:
    from collections.abc import Sequence

PREFILLER: Final = "x-prefiller-host-port"
ASK: Final = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
HOP: Final = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}
"""Headers that are about one connection."""
WORTH_ANOTHER_TRY: Final = {502, 503, 504}
BACKOFF_SECONDS: Final = 0.2


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line: what of the sidecar's matters here."""
    parser = argparse.ArgumentParser(prog="pd-sidecar", allow_abbrev=False)
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--vllm-port", "--model-server-port", dest="engine_port", type=int, default=8200)
    parser.add_argument("--engine-host", default="127.0.0.1")
    parser.add_argument("--kv-connector", choices=["nixlv2"], default="nixlv2")
    parser.add_argument("--secure-serving", choices=["false"], required=True)
    parser.add_argument("--prefill-max-retries", type=int, default=0)
    return parser.parse_known_args(arguments)[0]


@dataclass(frozen=True)
class Sidecar:
    """Answers requests for the engine beside it."""

    engine: str
    retries: int = 0

    async def handle(self, request: wire.Request, reply: wire.Reply) -> None:
        """Have the prompt prefilled where the request says, then pass it on."""
        prefiller = request.headers.get(PREFILLER)
        body = request.body
        if prefiller and request.method == "POST":
            status, answer = await self._prefill(prefiller, request)
            if status >= 400:
                await reply.whole(status, answer)
                return
            parameters = json.loads(answer).get("kv_transfer_params")
            body = json.dumps(request.json() | {"kv_transfer_params": parameters}).encode()
        await self._pass_on(request, body, reply)

    async def _prefill(self, prefiller: str, request: wire.Request) -> tuple[int, bytes]:
        asked: dict[str, Any] = request.json() | {"kv_transfer_params": ASK, "max_tokens": 1, "stream": False}
        asked.pop("stream_options", None)
        if "max_completion_tokens" in asked:
            asked["max_completion_tokens"] = 1
        body = json.dumps(asked).encode()
        for attempt in range(self.retries + 1):
            if attempt:
                await asyncio.sleep(BACKOFF_SECONDS)
            status, answer = await _send(prefiller, request, body)
            if status not in WORTH_ANOTHER_TRY:
                break
        return status, answer

    async def _pass_on(self, request: wire.Request, body: bytes, reply: wire.Reply) -> None:
        try:
            async with wire.request(
                self.engine, request.method, request.path, _headers(request), body
            ) as answer:
                headers = {name: value for name, value in answer.headers.items() if name not in HOP}
                await reply.begin(answer.status, headers)
                async for chunk in answer.chunks():
                    await reply.chunk(chunk)
                await reply.end()
        except wire.BROKEN:
            if reply.started:
                raise
            await reply.json(502, {"error": {"message": "the engine does not answer"}})


async def _send(address: str, request: wire.Request, body: bytes) -> tuple[int, bytes]:
    """Status and body of an answer; 502 where there is none."""
    try:
        async with wire.request(address, request.method, request.path, _headers(request), body) as answer:
            return answer.status, await answer.body()
    except wire.BROKEN as error:
        return 502, json.dumps({"error": {"message": f"prefiller {address}: {error!r}"}}).encode()


def _headers(request: wire.Request) -> dict[str, str]:
    return {name: value for name, value in request.headers.items() if name not in HOP and name != PREFILLER}


async def run(known: argparse.Namespace) -> int:
    """Run a sidecar until it is told to stop."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = wire.Server(
        Sidecar(f"{known.engine_host}:{known.engine_port}", known.prefill_max_retries).handle
    )
    await server.start(known.host, known.port)
    await stop.wait()
    await server.stop(5)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(run(options(sys.argv[1:]))))

"""An engine for tests: vLLM as seen from outside, without a model.

It takes vLLM's command line (`vllm serve MODEL …`, unknown flags are ignored), forms one engine over several
hosts, hands KV caches over as vLLM's connectors do towards routers, streams completions, tells vLLM's
metrics, and ends as vLLM does. What it answers says which engine did what, so that tests can tell.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import sys
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from . import peers, wire

if TYPE_CHECKING:
    from collections.abc import Sequence

COMPLETIONS: Final = {"/v1/completions": "text_completion", "/v1/chat/completions": "chat.completion"}
KV_PATH: Final = "/kv/"
NO_PARAMETERS: Final = {
    "do_remote_prefill": False,
    "do_remote_decode": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line: what of vLLM's matters here, and how slow this engine is."""
    parser = argparse.ArgumentParser(prog="vllm", allow_abbrev=False)
    parser.add_argument("serve", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--served-model-name")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--kv-transfer-config", type=json.loads, default={})
    parser.add_argument("--shutdown-timeout", type=float, default=0.0)
    peers.add_options(parser)
    environment = os.environ.get
    parser.add_argument("--load-seconds", type=float, default=float(environment("ENGINE_LOAD_SECONDS", "0")))
    parser.add_argument(
        "--token-seconds", type=float, default=float(environment("ENGINE_TOKEN_SECONDS", "0.01"))
    )
    known, _ = parser.parse_known_args(arguments)
    known.served_model_name = known.served_model_name or known.model
    return known


@dataclass
class Counters:
    """What the metrics tell."""

    running: int = 0
    succeeded: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    fetched: int = 0
    recomputed: int = 0

    def text(self, model: str) -> str:
        """In the format of Prometheus, under vLLM's names."""
        values = {
            "num_requests_running": self.running,
            "num_requests_waiting": 0,
            "kv_cache_usage_perc": min(self.running / 100, 1.0),
            "request_success_total": self.succeeded,
            "prompt_tokens_total": self.prompt_tokens,
            "generation_tokens_total": self.generated_tokens,
            "tpu_kv_pulls_total": self.fetched,
            "tpu_num_failed_transfers": self.recomputed,
        }
        lines = []
        for name, value in values.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE vllm:{name} {kind}", f'vllm:{name}{{model_name="{model}"}} {value}']
        return "\n".join(lines) + "\n"


@dataclass
class Engine:
    """One engine.

    Args:
        options: its command line.
        name: what it calls itself: its pod's name.
        advertise: the address at which others fetch KV.
    """

    options: argparse.Namespace
    name: str
    advertise: str
    counters: Counters = field(default_factory=Counters)
    blocks: dict[str, dict[str, Any]] = field(default_factory=dict)
    loaded: bool = False
    port: int = 0

    def __post_init__(self) -> None:
        self.id = os.environ.get("TPU_RAIDEN_ENGINE_ID") or str(uuid.uuid4())
        self._numbers = itertools.count()

    @property
    def kv(self) -> dict[str, Any]:
        """Its KV transfer configuration; empty without one."""
        config: dict[str, Any] = self.options.kv_transfer_config
        return config

    async def load(self, hosts: peers.Hosts) -> None:
        """Become ready: all hosts are there, and the model is loaded and compiled."""
        await hosts.gathered()
        await asyncio.sleep(self.options.load_seconds)
        self.loaded = True

    async def handle(self, request: wire.Request, reply: wire.Reply) -> None:
        """Answer a request."""
        path = request.path.partition("?")[0]
        if path in {"/health", "/ping"}:
            await reply.whole(200, b"")
        elif path == "/metrics":
            await reply.whole(200, self.counters.text(self.options.served_model_name).encode())
        elif not self.loaded:
            await reply.json(503, {"error": {"message": "the model is not loaded yet"}})
        elif path == "/v1/models":
            models = [{"id": self.options.served_model_name, "object": "model", "owned_by": "vllm"}]
            await reply.json(200, {"object": "list", "data": models})
        elif path.startswith(KV_PATH):
            await self._hand_over(path.removeprefix(KV_PATH), reply)
        elif path in COMPLETIONS and request.method == "POST":
            await self._complete(request, COMPLETIONS[path], reply)
        else:
            await reply.json(404, {"error": {"message": f"no such path: {path}"}})

    async def _complete(self, request: wire.Request, kind: str, reply: wire.Reply) -> None:
        body = request.json()
        if (model := body.get("model")) != self.options.served_model_name:
            await reply.json(404, {"error": {"message": f"The model `{model}` does not exist."}})
            return
        self.counters.running += 1
        try:
            completion = Completion(self, body, kind)
            if error := await completion.prefill():
                await reply.json(500, {"error": {"message": error}})
                return
            await completion.send(reply)
            self.counters.succeeded += 1
        finally:
            self.counters.running -= 1

    async def _hand_over(self, block: str, reply: wire.Reply) -> None:
        """Give a decoder the KV of a prompt, once, as a lease that ends with it."""
        found = self.blocks.pop(block, None)
        if found is None:
            await reply.json(404, {"error": {"message": "no such block"}})
        else:
            await reply.json(200, found)

    def keep(self, prompt_tokens: int) -> dict[str, Any]:
        """Keep the KV of a prompt; the parameters by which a decoder finds it."""
        block = f"{self.id}-{next(self._numbers)}"
        self.blocks[block] = {"engine": self.id, "name": self.name, "tokens": prompt_tokens}
        return NO_PARAMETERS | {
            "do_remote_prefill": True,
            "remote_engine_id": self.id,
            "remote_block_ids": [block],
            "remote_host": self.advertise,
            "remote_port": self.port,
        }

    async def fetch(self, parameters: dict[str, Any]) -> str | None:
        """Fetch the KV of a prompt; the name of the engine that has prefilled it, None if it is gone."""
        address = f"{parameters['remote_host']}:{parameters['remote_port']}"
        (block,) = parameters["remote_block_ids"]
        try:
            async with wire.request(address, "GET", f"{KV_PATH}{block}") as answer:
                found = json.loads(await answer.body())
        except wire.BROKEN:
            return None
        if answer.status != 200 or found["engine"] != parameters["remote_engine_id"]:
            return None
        self.counters.fetched += 1
        return str(found["name"])


class Completion:
    """One completion.

    Args:
        engine: who makes it.
        body: the request.
        kind: `text_completion` or `chat.completion`.
    """

    def __init__(self, engine: Engine, body: dict[str, Any], kind: str) -> None:
        self._engine, self._kind = engine, kind
        self._stream = bool(body.get("stream"))
        self._parameters: dict[str, Any] = body.get("kv_transfer_params") or {}
        self._tokens = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        prompt = body.get("prompt") or json.dumps(body.get("messages", ""))
        self._prompt_tokens = len(str(prompt).split())
        self._id = f"cmpl-{uuid.uuid4()}"
        self._prefilled_by = engine.name

    @property
    def _for_others(self) -> bool:
        """Whether only the KV is wanted, for another engine to go on with."""
        return bool(self._parameters.get("do_remote_decode"))

    async def prefill(self) -> str:
        """Get the KV of the prompt, from its prefiller or by computing it; what went wrong, if anything."""
        self._engine.counters.prompt_tokens += self._prompt_tokens
        if not self._parameters.get("do_remote_prefill"):
            return ""
        if name := await self._engine.fetch(self._parameters):
            self._prefilled_by = name
            return ""
        self._engine.counters.recomputed += 1
        recompute = self._engine.kv.get("kv_load_failure_policy") == "recompute"
        return "" if recompute else "the KV of the prompt could not be loaded"

    async def send(self, reply: wire.Reply) -> None:
        """Generate, and answer."""
        headers = {"x-decoded-by": self._engine.name, "x-prefilled-by": self._prefilled_by}
        if not self._stream:
            await asyncio.sleep(self._engine.options.token_seconds * self._tokens)
            text = "".join(map(self._token, range(self._tokens)))
            await reply.json(200, self._message(text, "length", whole=True), headers)
        else:
            await reply.begin(200, {"content-type": "text/event-stream", **headers})
            for index in range(self._tokens):
                await asyncio.sleep(self._engine.options.token_seconds)
                last = index == self._tokens - 1
                message = self._message(self._token(index), "length" if last else None, whole=False)
                await reply.chunk(f"data: {json.dumps(message)}\n\n".encode())
            await reply.chunk(b"data: [DONE]\n\n")
            await reply.end()
        self._engine.counters.generated_tokens += self._tokens

    def _token(self, index: int) -> str:
        return f" t{index}"

    def _message(self, text: str, finish: str | None, *, whole: bool) -> dict[str, Any]:
        chat = self._kind == "chat.completion"
        content = {"role": "assistant", "content": text}
        part: dict[str, Any] = {"message" if whole else "delta": content} if chat else {"text": text}
        message: dict[str, Any] = {
            "id": self._id,
            "object": self._kind + (".chunk" if chat and not whole else ""),
            "created": int(time.time()),
            "model": self._engine.options.served_model_name,
            "choices": [{"index": 0, "finish_reason": finish, **part}],
            "engine": {"prefilled_by": self._prefilled_by, "decoded_by": self._engine.name},
        }
        if finish:
            message["usage"] = {"prompt_tokens": self._prompt_tokens, "completion_tokens": self._tokens}
        if self._for_others:
            message["kv_transfer_params"] = self._engine.keep(self._prompt_tokens)
        return message


async def run(known: argparse.Namespace) -> int:
    """Run an engine, or a host of one, until it is told to stop; the exit code."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with peers.Hosts(known) as hosts:
        lost = asyncio.ensure_future(hosts.lost())
        if not hosts.leads:
            return await _until(stop, lost)
        engine = Engine(known, _name(), os.environ.get("POD_IP", "127.0.0.1"))
        server = wire.Server(engine.handle)
        engine.port = await server.start(known.host, known.port)
        loading = asyncio.ensure_future(engine.load(hosts))
        code = await _until(stop, lost)
        loading.cancel()
        await server.stop(known.shutdown_timeout if code == 0 else 0)
        return code


async def _until(stop: asyncio.Event, lost: asyncio.Future[str]) -> int:
    """0 once it is told to stop, 1 once a host of the slice is lost, without which it cannot compute."""
    told = asyncio.ensure_future(stop.wait())
    both: list[asyncio.Future[Any]] = [told, lost]
    done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    for task in both:
        task.cancel()
    if told in done:
        return 0
    sys.stderr.write(f"vllm: {lost.result()}\n")
    return 1


def _name() -> str:
    return os.environ.get("ENGINE_NAME") or os.environ.get("HOSTNAME") or "engine"


if __name__ == "__main__":
    sys.exit(asyncio.run(run(options(sys.argv[1:]))))

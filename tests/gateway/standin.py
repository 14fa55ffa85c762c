"""A stand-in for what llm-d's endpoint picker has and that of the Gateway API inference extension lacks.

Two things: a profile for prefill, and the rollout screener, which keeps a request within one revision, shares
the traffic between revisions as their capacity does, and leaves revisions alone that lack a role. It narrows
down what the real picker then picks from (`x-gateway-destination-endpoint-subset`), and adds the prefiller.
The rules are those of llm-d-router 0.10.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.engines import wire
from tpu_operator.core import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tests.kube import Object

SUBSET: Final = "x-gateway-destination-endpoint-subset"
PREFILLER: Final = "x-prefiller-host-port"
REVISION: Final = "x-disagg-revision"
DECODERS: Final = ("decode", "prefill-decode")
Roles = dict[str, list[str]]


@dataclass(frozen=True)
class Choice:
    """What the real picker may pick from.

    Attributes:
        revision: of all of it.
        decoders: addresses, of which the picker picks one.
        prefiller: address of the engine that is to prefill; empty where no role does only that.
    """

    revision: str
    decoders: tuple[str, ...]
    prefiller: str = ""

    def headers(self) -> dict[str, str]:
        """As the gateway is told."""
        told = {REVISION: self.revision, SUBSET: ",".join(self.decoders)}
        return told | ({PREFILLER: self.prefiller} if self.prefiller else {})


def addresses(pods: Iterable[Object], port: int) -> dict[str, Roles]:
    """Addresses of ready pods, by revision and role."""
    found: dict[str, Roles] = defaultdict(lambda: defaultdict(list))
    for pod in pods:
        meta, status = pod["metadata"], pod.get("status", {})
        conditions = {each["type"]: each["status"] for each in status.get("conditions", ())}
        if conditions.get("Ready") != "True" or meta.get("deletionTimestamp") or not status.get("podIP"):
            continue
        labels = meta["labels"]
        revision, role = labels[names.LABEL_REVISION], labels[names.LABEL_LLMD_ROLE]
        found[revision][role].append(f"{status['podIP']}:{port}")
    return found


def weights(complete: Mapping[str, Roles], required: Sequence[str], mode: str = "max-role") -> dict[str, int]:
    """Share of each revision: its ready pods of the role that has most of all, or of all roles together."""
    if mode == "sum":
        return {name: sum(len(roles[role]) for role in required) for name, roles in complete.items()}
    totals = {role: sum(len(roles[role]) for roles in complete.values()) for role in required}
    largest = max(required, key=lambda role: totals[role])
    return {name: len(roles[largest]) for name, roles in complete.items()}


def choose(
    found: Mapping[str, Roles], required: Sequence[str], asked: str = "", luck: random.Random | None = None
) -> Choice | None:
    """Choose a revision, and in it a prefiller; None where no revision can serve.

    Args:
        found: addresses of ready pods, by revision and role.
        required: roles without which a revision serves nothing.
        asked: the only revision that will do; empty for any.
        luck: what decides between equals.
    """
    luck = luck or random.Random()
    complete = {
        name: roles
        for name, roles in found.items()
        if all(roles.get(role) for role in required) and asked in {"", name}
    }
    if not complete:
        return None
    shares = weights(complete, required)
    (revision,) = luck.choices(list(shares), list(shares.values()))
    roles = complete[revision]
    decoders = tuple(address for role in DECODERS for address in roles.get(role, ()))
    prefillers = roles.get("prefill") or [""]
    return Choice(revision, decoders, luck.choice(prefillers))


class StandIn:
    """Answers a gateway's question before the picker gets it.

    Args:
        pods: lists the pods that take requests.
        required: roles without which a revision serves nothing.
        port: where pods take requests.
        host: where to listen.
    """

    FRESH_SECONDS = 0.1

    def __init__(
        self, pods: Callable[[], list[Object]], required: Sequence[str], port: int, host: str = "127.0.0.1"
    ) -> None:
        self._list, self._required, self._target, self._host = pods, required, port, host
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._seen: tuple[float, dict[str, Roles]] = (0.0, {})
        self._looking = asyncio.Lock()
        self.port = 0

    def start(self) -> None:
        """Listen."""
        self._thread.start()
        assert self._started.wait(30)

    def stop(self) -> None:
        """Listen no more."""
        assert self._loop
        assert self._stop
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = wire.Server(self._answer)
        self.port = await server.start(self._host, 0)
        self._started.set()
        await self._stop.wait()
        await server.stop(0)

    async def _answer(self, request: wire.Request, reply: wire.Reply) -> None:
        choice = choose(await self._current(), self._required, request.headers.get(REVISION, ""))
        if choice is None:
            await reply.whole(503, b"no revision has a ready replica of every role\n")
        else:
            await reply.whole(200, b"", choice.headers())

    async def _current(self) -> dict[str, Roles]:
        async with self._looking:
            if time.monotonic() - self._seen[0] > self.FRESH_SECONDS:
                pods: Any = await asyncio.to_thread(self._list)
                self._seen = (time.monotonic(), addresses(pods, self._target))
        return self._seen[1]

"""Clients of engines: completions, and what came of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.engines import wire
from tests.engines.processes import MODEL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PATH: Final = "/v1/completions"
CHOSEN_DECODER: Final = "x-chosen-decoder"
CHOSEN_PREFILLER: Final = "x-chosen-prefiller"
"""Headers by which the gateway for tests says whom it has chosen, also where those do not answer."""


@dataclass(frozen=True)
class Outcome:
    """What came of a request for a streamed completion.

    Attributes:
        status: of the answer.
        prefilled_by: name of the pod that has prefilled.
        decoded_by: name of the pod that has decoded.
        tokens: how many came.
        whole: whether the stream came to its end.
        text: of an answer that is an error.
        sent_to: addresses of the decoder and the prefiller that the gateway has chosen, as far as it tells.
    """

    status: int
    prefilled_by: str = ""
    decoded_by: str = ""
    tokens: int = 0
    whole: bool = False
    text: str = ""
    sent_to: tuple[str, ...] = ()


async def complete(
    address: str,
    headers: Mapping[str, str] | None = None,
    began: Callable[[], None] | None = None,
    **body: Any,
) -> Outcome:
    """Ask for a streamed completion.

    Args:
        address: whom to ask.
        headers: of the request.
        began: called when the answer begins.
        body: fields of the request; four tokens are asked for unless it says otherwise.
    """
    sent = {"model": MODEL, "prompt": "one two three", "max_tokens": 4, "stream": True} | body
    told = {"content-type": "application/json", **(headers or {})}
    async with wire.request(address, "POST", PATH, told, json.dumps(sent).encode()) as answer:
        if answer.status != 200:
            text = (await answer.body()).decode()
            return Outcome(answer.status, text=text, sent_to=_sent_to(answer))
        if began:
            began()
        return await _received(answer)


async def _received(answer: wire.Answer) -> Outcome:
    data = b""
    try:
        async for chunk in answer.chunks():
            data += chunk
    except EOFError:
        pass
    events = data.decode().split("\n\n")
    return Outcome(
        answer.status,
        answer.headers.get("x-prefilled-by", ""),
        answer.headers.get("x-decoded-by", ""),
        sum('"text"' in event for event in events),
        "data: [DONE]" in events,
        sent_to=_sent_to(answer),
    )


def _sent_to(answer: wire.Answer) -> tuple[str, ...]:
    """A gateway that has chosen nobody says `-`."""
    told = (answer.headers.get(name, "-") for name in (CHOSEN_DECODER, CHOSEN_PREFILLER))
    return tuple(address for address in told if address != "-")

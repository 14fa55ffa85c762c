"""Queries to Prometheus, by its HTTP API: one number each, or words that say why there is none.

Whose address it is and what is asked comes from people who may not send requests from where the operator is.
So the address is one that the installation allows, no redirect is followed, no proxy of the environment is
used, and an answer is limited in time and size and becomes one number: nothing else of it is ever shown.

Source: https://prometheus.io/docs/prometheus/latest/querying/api/
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec

from tpu_operator.core.inquiry import Answer, Answers

if TYPE_CHECKING:
    from tpu_operator.core.inquiry import Inquiry

TIMEOUT: Final = 10.0
"""Seconds for an answer, from the connection on; Prometheus is told to give up earlier."""
SERVER_TIMEOUT: Final = "8s"
LARGEST: Final = 65536
"""Bytes of an answer: one number is some hundred."""
QUOTED: Final = 200
"""Characters of what Prometheus says about a query that are passed on."""
KNOWN_TYPES: Final = frozenset({"bad_data", "execution", "timeout", "canceled", "internal", "unavailable"})
PATH: Final = "/api/v1/query"


class _Data(msgspec.Struct):
    result_type: str = msgspec.field(name="resultType")
    result: list[Any]


class _Response(msgspec.Struct):
    status: str
    data: _Data | None = None
    error_type: str = msgspec.field(name="errorType", default="")
    error: str = ""


async def ask(inquiry: Inquiry) -> Answers:
    """Ask all queries of an inquiry side by side. Nothing that goes wrong is an exception."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
        address = inquiry.address.rstrip("/") + PATH
        answers = await asyncio.gather(*(_ask(session, address, query) for query in inquiry.queries.values()))
    return Answers(inquiry.name, dict(zip(inquiry.queries, answers, strict=True)))


async def _ask(session: aiohttp.ClientSession, address: str, query: str) -> Answer:
    form = {"query": query, "timeout": SERVER_TIMEOUT}
    try:
        async with session.post(address, data=form, allow_redirects=False) as response:
            body = await _read(response)
    except TimeoutError:
        return Answer(problem=f"Prometheus has not answered within {TIMEOUT:.0f} s")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Answer(problem=f"Prometheus cannot be asked: {type(error).__name__}")
    if body is None:
        return Answer(problem=f"the answer has more than {LARGEST} bytes: the query has to give one number")
    return read(response.status, body)


async def _read(response: aiohttp.ClientResponse) -> bytes | None:
    """The body; None if it is too large."""
    found = bytearray()
    async for chunk in response.content.iter_any():
        found += chunk
        if len(found) > LARGEST:
            return None
    return bytes(found)


def read(status: int, body: bytes) -> Answer:
    """The number in an answer of Prometheus.

    Args:
        status: HTTP status.
        body: what came with it.
    """
    try:
        found = msgspec.json.decode(body, type=_Response)
    except msgspec.MsgspecError:
        return Answer(problem=f"what is there is no Prometheus: it answers {status}")
    if found.status != "success" or found.data is None:
        kind = found.error_type if found.error_type in KNOWN_TYPES else "error"
        return Answer(problem=f"Prometheus says {kind}: {found.error[:QUOTED]}")
    return _number(found.data)


def _number(data: _Data) -> Answer:
    if data.result_type not in {"scalar", "vector"}:
        return Answer(problem=f"the query gives a {data.result_type[:QUOTED]}: it has to give one number")
    samples = [data.result] if data.result_type == "scalar" else [_sample(item) for item in data.result]
    if not samples:
        return Answer(problem="no data")
    if len(samples) > 1:
        return Answer(problem=f"{len(samples)} numbers where there has to be one: sum them up, for example")
    try:
        _, text = samples[0]
        return Answer(float(text))
    except (TypeError, ValueError):
        return Answer(problem="the query gives a histogram or no number at all: it has to give one number")


def _sample(item: Any) -> Any:
    return item.get("value") if isinstance(item, dict) else None

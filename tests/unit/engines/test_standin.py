"""The stand-in for what the inference extension's picker lacks of llm-d's."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.engines import wire
from tests.gateway.standin import Choice, Roles, StandIn, addresses, choose, weights

if TYPE_CHECKING:
    from tests.kube import Object

REQUIRED = ("prefill", "decode")


def revision(name: str, prefill: int, decode: int) -> Roles:
    """Ready pods of a revision."""
    return {
        "prefill": [f"p-{name}-{i}:8000" for i in range(prefill)],
        "decode": [f"d-{name}-{i}:8000" for i in range(decode)],
    }


def pod(ip: str, role: str, ready: bool = True, **metadata: Any) -> Object:
    labels = {"tpu-operator.dev/revision": "a", "llm-d.ai/role": role}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"labels": labels, **metadata},
        "status": {"podIP": ip, "conditions": conditions},
    }


def test_case_pc06_prefill_and_decode_are_always_of_one_revision() -> None:
    found = {"a": revision("a", 2, 2), "b": revision("b", 2, 2)}
    luck = random.Random(1)
    for _ in range(2000):
        choice = choose(found, REQUIRED, luck=luck)
        assert choice
        assert choice.prefiller.startswith(f"p-{choice.revision}-")
        assert {address.split("-")[1] for address in choice.decoders} == {choice.revision}


def test_case_pc07_a_revision_without_one_of_its_roles_gets_nothing() -> None:
    found = {"a": revision("a", 1, 1), "b": revision("b", 0, 9)}
    assert {choose(found, REQUIRED, luck=random.Random(i)) for i in range(50)} == {
        Choice("a", ("d-a-0:8000",), "p-a-0:8000")
    }


def test_case_pc08_without_a_complete_revision_there_is_no_choice() -> None:
    assert choose({"a": revision("a", 0, 1), "b": revision("b", 1, 0)}, REQUIRED) is None
    assert choose({}, REQUIRED) is None


def test_case_pc09_shares_follow_capacity() -> None:
    found = {"a": revision("a", 2, 9), "b": revision("b", 1, 1)}
    assert weights(found, REQUIRED) == {"a": 9, "b": 1}
    assert weights(found, REQUIRED, "sum") == {"a": 11, "b": 2}
    luck = random.Random(1)
    shares = Counter(c.revision for _ in range(5000) if (c := choose(found, REQUIRED, luck=luck)))
    assert shares["b"] / 5000 == pytest.approx(0.1, abs=0.03)


def test_a_revision_that_is_asked_for_is_the_only_one_that_will_do() -> None:
    found = {"a": revision("a", 1, 1), "b": revision("b", 1, 1)}
    choice = choose(found, REQUIRED, "b")
    assert choice
    assert choice.revision == "b"
    assert choose(found, REQUIRED, "c") is None


def test_pods_that_are_not_ready_or_on_their_way_out_take_no_requests() -> None:
    pods = [
        pod("10.0.0.1", "decode"),
        pod("10.0.0.2", "decode", ready=False),
        pod("10.0.0.3", "decode", deletionTimestamp="2026-11-30T12:00:00Z"),
        pod("", "prefill"),
    ]
    assert addresses(pods, 8000) == {"a": {"decode": ["10.0.0.1:8000"]}}


async def test_a_gateway_is_told_by_headers() -> None:
    pods = [pod("10.0.0.1", "decode"), pod("10.0.0.2", "prefill")]
    made = StandIn(lambda: pods, REQUIRED, 8000)
    made.start()
    try:
        async with wire.request(f"127.0.0.1:{made.port}", "GET", "/") as answer:
            assert answer.status == 200
            assert answer.headers["x-prefiller-host-port"] == "10.0.0.2:8000"
            assert answer.headers["x-gateway-destination-endpoint-subset"] == "10.0.0.1:8000"
        async with wire.request(
            f"127.0.0.1:{made.port}", "GET", "/", {"x-disagg-revision": "other"}
        ) as answer:
            assert answer.status == 503
    finally:
        made.stop()

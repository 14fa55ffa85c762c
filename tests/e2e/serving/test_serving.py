"""From apply to traffic: slices of two hosts behind the real Envoy and the real endpoint picker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.e2e.kube import wait_for
from tests.e2e.serving.model import Gateway, model, program, wait_serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hack.devcluster import Cluster
    from tests.e2e.kube import Kube

NAME = "qwen"
STREAMS = 20
OURS = f"tpu-operator.dev/inference={NAME},tpu-operator.dev/role"
KILL = "import os; os.kill(-1, 9)"
"""Ends all processes of a container but the first, which is the launcher."""


@pytest.fixture
def gateway(cluster: Cluster, kube: Kube, tmp_path: Path) -> Iterator[Gateway]:
    """Two replicas that prefill and one that decodes, all ready, and the way to them."""
    kube.apply(program(), model(NAME, prefill=2, decode=1))
    wait_serving(kube, NAME)
    kube.kubectl("rollout", "status", f"deployment/{NAME}-epp", "--timeout=120s")
    made = Gateway(cluster, kube, NAME, tmp_path)
    yield made
    made.stop()


async def test_a_stream_is_prefilled_by_one_slice_and_decoded_by_another(
    gateway: Gateway, kube: Kube
) -> None:
    await gateway.wait_served()
    outcomes = await asyncio.gather(*(gateway.ask(max_tokens=5) for _ in range(10)))
    pods = {pod["metadata"]["name"]: pod["metadata"]["labels"] for pod in kube.find("pods")}
    for outcome in outcomes:
        assert (outcome.status, outcome.tokens, outcome.whole) == (200, 5, True)
        prefilled, decoded = pods[outcome.prefilled_by], pods[outcome.decoded_by]
        assert (prefilled["llm-d.ai/role"], decoded["llm-d.ai/role"]) == ("prefill", "decode")
        assert {labels["tpu-operator.dev/host"] for labels in (prefilled, decoded)} == {"0"}
        assert prefilled["tpu-operator.dev/revision"] == decoded["tpu-operator.dev/revision"]


async def test_case_pc27_streams_come_to_their_end_while_their_slice_goes(
    gateway: Gateway, kube: Kube
) -> None:
    await gateway.wait_served()
    begun = asyncio.Semaphore(0)
    streams = [
        asyncio.ensure_future(gateway.ask(began=begun.release, max_tokens=150)) for _ in range(STREAMS)
    ]
    (head,) = kube.find("pods", "tpu-operator.dev/role=decode,tpu-operator.dev/host=0")
    for _ in streams:
        await begun.acquire()
    kube.kubectl("delete", "pod", head["metadata"]["name"], "--wait=false")
    outcomes = await asyncio.gather(*streams)
    assert [(outcome.status, outcome.tokens, outcome.whole) for outcome in outcomes] == [
        (200, 150, True)
    ] * STREAMS


async def test_case_pc13_a_process_that_dies_costs_its_replica_one_restart_and_others_nothing(
    gateway: Gateway, kube: Kube
) -> None:
    await gateway.wait_served()
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in kube.find("pods", OURS)}
    (victim,) = kube.find("pods", "tpu-operator.dev/role=decode,tpu-operator.dev/host=1")
    kube.kubectl("exec", victim["metadata"]["name"], "-c", "main", "--", "python3", "-c", KILL)
    wait_for("the replica starts anew", lambda: kube.get("tpuinference", NAME)["status"]["restarts"] == 1)
    wait_serving(kube, NAME)
    await gateway.wait_served()
    status = kube.get("tpuinference", NAME)["status"]
    assert (status["restarts"], status["lastFailure"]["exitCode"]) == (1, 137)
    after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in kube.find("pods", OURS)}
    assert after.keys() == before.keys()
    new = {name for name, uid in after.items() if uid != before[name]}
    assert new == {name for name in before if name.startswith(f"{NAME}-decode-")}
    assert len(new) == 2

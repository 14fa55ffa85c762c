"""The real API server goes away and comes back, without the history that watches go on from."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest

from tests.cluster.faults.lab import wait
from tests.cluster.faults.scenarios import SCENARIOS, case
from tests.cluster.faults.together import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hack.devcluster import Cluster
    from tests.cluster.faults.lab import Lab, Process
    from tests.cluster.faults.scenarios import Oracle

COMPACT: Final = """
import json, urllib.request

def ask(path, **body):
    url = "http://127.0.0.1:2379/v3/kv/" + path
    with urllib.request.urlopen(url, json.dumps(body).encode()) as answer:
        return json.load(answer)

ask("compaction", revision=ask("range", key="AA==")["header"]["revision"], physical=True)
"""


@pytest.mark.timeout(PATIENCE)
@pytest.mark.usefixtures("alone")
def test_a_deletion_is_found_out_after_restart_and_compaction(
    lab: Lab, oracle: Oracle, control_plane: Cluster
) -> None:
    """Only a new list can tell that a pod has gone; until it comes, the operator is alive and tries."""
    lab.run(a_deletion_is_found_out(oracle, control_plane))


async def a_deletion_is_found_out(oracle: Oracle, cluster: Cluster) -> None:
    end = await oracle.end("lost-pod")
    async with case(oracle.lab) as job:
        process = await job.process()
        await SCENARIOS["lost-pod"].prepare(job)
        listed = calls(process, "list")
        await process.proxy.refuse()
        await job.api.delete(job.pod_path(0), gracePeriodSeconds=0)
        await asyncio.to_thread(cluster.run_in_netns, [sys.executable, "-c", COMPACT], check=True)
        async with without_server(cluster):
            await process.proxy.accept()
            before = calls(process, "list", "watch")

            async def tried() -> bool:
                return calls(process, "list", "watch") >= before + 2

            await wait(tried, "tries to reach the API server")
            assert await process.health() == 200
        await job.settles(end)
        assert calls(process, "list") > listed


def calls(process: Process, *verbs: str) -> int:
    """How many requests about pods have come."""
    return sum(call.verb in verbs and call.resource == "pods" for call in process.proxy.calls)


@asynccontextmanager
async def without_server(cluster: Cluster) -> AsyncIterator[None]:
    """The API server is down meanwhile.

    The scheduler is as well: it ends by itself, where nobody starts it again, when it finds a pod of the same
    name on another node after an outage.
    """
    for component in ("kube-scheduler", "kube-apiserver"):
        await asyncio.to_thread(cluster.stop_component, component)
    try:
        yield
    finally:
        for component in ("kube-apiserver", "kube-scheduler"):
            await asyncio.to_thread(cluster.start_component, component)

"""`kubectl tpu mcp` against a real API server with the operator beside it, by the SDK's own client."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client, StdioServerParameters

from tests.cluster.operator.jobs import Jobs

if TYPE_CHECKING:
    from hack.devcluster import Cluster
    from tests.kube import Kube

pytestmark = pytest.mark.usefixtures("operator")

PROGRAM = Path(sys.executable).with_name("kubectl-tpu")


async def answer(client: Client, tool: str, **arguments: Any) -> Any:
    """What a tool answers."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content["answer"]


async def test_an_agent_looks_at_a_job_and_restarts_it(
    control_plane: Cluster, kube: Kube, namespace: str
) -> None:
    jobs = Jobs(kube, namespace)
    jobs.create()
    jobs.reaches("Running")
    where = ["--kubeconfig", str(control_plane.kubeconfig), "--namespace", namespace]
    server = StdioServerParameters(command=str(PROGRAM), args=["mcp", *where, "--allow-writes"])
    async with Client(server) as client:
        (listed,) = await answer(client, "list_workloads")
        assert (listed["namespace"], listed["name"], listed["phase"]) == (namespace, "train", "Running")
        shown = await answer(client, "status", name="train")
        assert [host["state"] for host in shown["slices"][0]["hosts"]] == ["Running"] * 4
        assert (await answer(client, "why", name="train"))["well"]
        reasons = {one["reason"] for one in await answer(client, "events", name="train")}
        assert "AllHostsReady" in reasons
        assert "nothing is charged to maxRestarts" in await answer(client, "restart", name="train")
        jobs.reaches("Running", restarts=1)
        assert (await answer(client, "status", name="train"))["restarts"]["byCause"] == {"PodDeleted": 1}
        await answer(client, "suspend", name="train")
        jobs.reaches("Suspended")
        told = await answer(client, "why", name="train")
        assert not told["well"]
        assert "`kubectl tpu resume train`" in " ".join(told["remedies"])

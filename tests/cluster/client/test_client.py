"""The SDK against a real API server with the operator beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.accounts import account
from tests.cluster.operator.jobs import Jobs
from tpu_operator.client import AsyncClient, Client, OutOfReachError, RefusedError

if TYPE_CHECKING:
    from pathlib import Path

    from hack.devcluster import Cluster
    from tests.kube import Kube

pytestmark = pytest.mark.usefixtures("operator")

SPEC: dict[str, Any] = {"tpu": {"accelerator": "v5e", "topology": "4x4"}, "run": {"command": ["true"]}}


def test_a_job_to_its_end(kube: Kube, namespace: str, control_plane: Cluster) -> None:
    jobs = Jobs(kube, namespace)
    with Client(namespace, kubeconfig=str(control_plane.kubeconfig)) as client:
        client.jobs.create({"metadata": {"name": "train", "labels": {"team": "vision"}}, "spec": SPEC})
        assert [job.metadata.name for job in client.jobs.list("team=vision")] == ["train"]
        assert client.jobs.list("team=other") == []
        client.jobs.wait("train", "running", timeout=180)
        assert client.jobs.watch("train").__next__().metadata.labels["team"] == "vision"
        with pytest.raises(RefusedError, match="already exists"):
            client.jobs.create({"metadata": {"name": "train"}, "spec": SPEC})
        for pod in jobs.pods():
            jobs.end_pod(pod, 0)
        assert client.jobs.wait("train", "succeeded", timeout=180).status.completion_time
        with pytest.raises(OutOfReachError):
            client.jobs.wait("train", "failed")
        client.jobs.delete("train", wait=True)
        assert client.jobs.list() == []


async def test_who_may_not_watch_is_told_so(
    kube: Kube, namespace: str, control_plane: Cluster, tmp_path: Path
) -> None:
    """A watch that is refused would be tried again for ever."""
    Jobs(kube, namespace).create(suspend=True)
    file = account(control_plane, kube, namespace, {"tpujobs": ["get"]}, tmp_path / "reader.yaml")
    async with await AsyncClient.connect(kubeconfig=str(file)) as client:
        assert client.namespace == namespace
        assert (await client.jobs.get("train")).spec.suspend
        with pytest.raises(RefusedError, match="ask for the role `view`") as error:
            await client.jobs.wait("train", "suspended")
    assert error.value.about == f"TPUJob {namespace}/train"

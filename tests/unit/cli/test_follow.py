"""A job and its pods, as the informers show them."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.builders import UID
from tests.streams import stream_reader
from tpu_operator.cli.command import Place
from tpu_operator.cli.follow import follow
from tpu_operator.cli.server import Server
from tpu_operator.engine.client import ApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from aiohttp import StreamReader

pytestmark = pytest.mark.looptime

JOB: dict[str, Any] = {
    "apiVersion": "tpu-operator.dev/v1alpha1",
    "kind": "TPUJob",
    "metadata": {"name": "train", "namespace": "team-a", "uid": UID, "generation": 2, "resourceVersion": "1"},
    "spec": {
        "tpu": {"accelerator": "v5e", "topology": "4x4"},
        "run": {"command": ["python", "train.py"]},
        "template": {"spec": {"nodeSelector": {"a": "b"}}},
    },
    "status": {"observedGeneration": 2, "phase": "Running", "conditions": [], "ready": "4/4"},
}


def pod(name: str, owner: str) -> dict[str, Any]:
    owners = [{"uid": owner, "controller": True}]
    meta = {"name": name, "namespace": "team-a", "resourceVersion": "1", "ownerReferences": owners}
    return {"metadata": meta}


class Watched(ApiServer):
    """A server with some objects, whose watches of jobs bring some events."""

    def __init__(self, jobs: list[Any], *events: Mapping[str, Any]) -> None:
        self._jobs = jobs
        self._events = b"".join(json.dumps(event).encode() + b"\n" for event in events)

    async def get(self, path: str, **query: str) -> bytes:
        pods = [pod("train-0-0", UID), pod("train-0-1", "of another job")]
        items = self._jobs if path.endswith("tpujobs") else pods
        return json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], silence: float
    ) -> AsyncIterator[StreamReader]:
        reader = stream_reader()
        if path.endswith("tpujobs"):
            reader.feed_data(self._events)
        yield reader


async def test_a_job_with_all_of_its_spec_and_its_own_pods() -> None:
    server = Server(Watched([JOB]), "team-a", Place())
    async with follow(server, "train") as follower:
        seen = await follower.next()
        assert seen is not None
        assert seen.job.spec.template == {"spec": {"nodeSelector": {"a": "b"}}}
        assert (seen.job.metadata.generation, seen.job.status.phase) == (2, "Running")
        assert [one.name for one in seen.pods] == ["train-0-0"]
        with pytest.raises(TimeoutError):
            await follower.next(within=5)


async def test_changes_and_the_end() -> None:
    changed = JOB | {"metadata": JOB["metadata"] | {"resourceVersion": "2"}}
    gone = {"type": "DELETED", "object": changed}
    server = Server(Watched([JOB], {"type": "MODIFIED", "object": changed}, gone), "team-a", Place())
    async with follow(server, "train", pods=False) as follower:
        assert await follower.next() is None
    async with follow(Server(Watched([]), "team-a", Place()), "train") as follower:
        assert await follower.next() is None

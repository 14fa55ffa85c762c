"""Reading, waiting and logs, by a server that has two hosts; the rest is in tests/cluster/client."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.builders import UID
from tests.unit.cli.test_follow import JOB, Watched
from tpu_operator.cli.command import Place
from tpu_operator.cli.server import Server
from tpu_operator.client import (
    AsyncInferences,
    AsyncJobs,
    ClientError,
    NotFoundError,
    OutOfReachError,
    WaitTimeoutError,
)
from tpu_operator.engine.client import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from aiohttp import StreamReader

pytestmark = pytest.mark.looptime

LABELS = {"role": "decode", "revision": "abc", "replica": "0"}
MODEL: dict[str, Any] = {
    "metadata": {"name": "qwen", "namespace": "team-a", "uid": UID, "generation": 1},
    "spec": {
        "model": {"name": "m"},
        "engine": {"type": "vllm"},
        "roles": [{"name": "decode", "type": "decode", "tpu": {"accelerator": "v5e", "topology": "4x4"}}],
    },
}


class Cluster(Watched):
    """A server that also knows single objects, and the logs of pods."""

    def __init__(self, *events: Mapping[str, Any], logs: Mapping[str, str] | None = None) -> None:
        super().__init__([JOB], *events)
        self.logs = logs or {}
        self.deleted: list[str] = []

    async def get(self, path: str, **query: str) -> bytes:
        if path.endswith(("/tpujobs/train", "/tpuinferences/qwen")):
            return json.dumps(JOB if path.endswith("train") else MODEL).encode()
        if "/tpujobs/" in path or "/tpuinferences/" in path:
            raise ApiError(404, "NotFound", "not found")
        if path.endswith("/tpuinferences"):
            return json.dumps({"metadata": {"resourceVersion": "1"}, "items": [MODEL]}).encode()
        found = json.loads(await super().get(path, **query))
        for item in found["items"] if path.endswith("/pods") else ():
            item["metadata"]["labels"] = {f"tpu-operator.dev/{key}": value for key, value in LABELS.items()}
            item["status"] = {"containerStatuses": [{"name": "main", "state": {"running": {}}}]}
        return json.dumps(found).encode()

    async def delete(
        self, resource: Any, namespace: str, name: str, uid: str, grace_seconds: Any = None
    ) -> bytes:
        self.deleted.append(name)
        return b"{}"

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], silence: float
    ) -> AsyncIterator[StreamReader]:
        async with super().stream(path, query, silence) as reader:
            if path.endswith("/log"):
                pod = path.split("/")[-2]
                if pod not in self.logs:
                    raise ApiError(400, "BadRequest", "container is waiting to start")
                reader.feed_data(self.logs[pod].encode())
                reader.feed_eof()
            yield reader


def jobs(*events: Mapping[str, Any], **logs: str) -> AsyncJobs:
    return AsyncJobs(Server(Cluster(*events, logs=logs), "team-a", Place()))


def changed(phase: str, version: int) -> dict[str, Any]:
    meta = JOB["metadata"] | {"resourceVersion": str(version)}
    return {
        "type": "MODIFIED",
        "object": JOB | {"metadata": meta, "status": JOB["status"] | {"phase": phase}},
    }


async def test_names_that_are_near() -> None:
    with pytest.raises(NotFoundError, match="did you mean train") as error:
        await jobs().get("trian")
    assert error.value.about == "TPUJob team-a/trian"


@pytest.mark.parametrize("name", ["", "a/b", "..", "a?b", "A", "x%2fy"])
async def test_what_is_no_name_is_no_part_of_a_path(name: str) -> None:
    with pytest.raises(ClientError, match="that is no name"):
        await jobs().get(name)


async def test_wait_returns_the_job_at_the_goal() -> None:
    job = await jobs(changed("Restarting", 2), changed("Succeeded", 3)).wait("train", "succeeded")
    assert job.status.phase == "Succeeded"


async def test_wait_for_what_can_never_be() -> None:
    with pytest.raises(OutOfReachError, match="it is Failed, and will never be succeeded"):
        await jobs(changed("Failed", 2)).wait("train", "succeeded")
    gone = jobs({"type": "DELETED", "object": JOB})
    with pytest.raises(OutOfReachError, match="it is deleted"):
        await gone.wait("train", "succeeded")


async def test_wait_until_time_is_up() -> None:
    with pytest.raises(WaitTimeoutError, match="time is up: it is Running"):
        await jobs().wait("train", "succeeded", timeout=60)


async def test_a_watch_ends_with_the_job() -> None:
    found = [job.status.phase async for job in jobs({"type": "DELETED", "object": JOB}).watch("train")]
    assert found in (["Running"], [])


async def test_logs_in_the_order_of_time() -> None:
    text = "2026-11-30T12:00:02Z second\n2026-11-30T12:00:01Z first\n"
    there = jobs(**{"train-0-0": text})
    found = [(line.pod, line.text) async for line in there.logs("train")]
    assert found == [("train-0-0", "second"), ("train-0-0", "first")]


async def test_logs_that_are_not_there() -> None:
    found = [line async for line in jobs().logs("train")]
    assert [(line.time, line.text) for line in found] == [("", "(no log: container is waiting to start)")]
    with pytest.raises(NotFoundError, match="there are no pods of these hosts"):
        _ = [line async for line in jobs().logs("train", ranks=[3])]
    with pytest.raises(ClientError, match="ranks 9: TPUJob train has ranks 0 to 3"):
        _ = [line async for line in jobs().logs("train", ranks=[9])]


async def test_replicas_of_a_model() -> None:
    cluster = Cluster(logs={"train-0-0": "2026-11-30T12:00:01Z hi\n"})
    there = AsyncInferences(Server(cluster, "team-a", Place()))
    assert [line.text async for line in there.logs("qwen", role="decode")] == ["hi"]
    assert [line.text async for line in there.logs("qwen", replica="decode-abc-0")] == ["hi"]
    with pytest.raises(NotFoundError):
        _ = [line async for line in there.logs("qwen", role="prefill")]
    following = there.logs("qwen", role="decode", follow=True)
    assert (await anext(following)).text == "hi"
    await following.aclose()
    assert await there.restart("qwen", "decode-abc-0") == "train-0-0"
    assert cluster.deleted == ["train-0-0"]
    with pytest.raises(NotFoundError, match="those that have: decode-abc-0"):
        await there.restart("qwen", "decode-abc-7")

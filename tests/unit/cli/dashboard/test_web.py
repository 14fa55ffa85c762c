"""The pages over real sockets: who gets in, what is said, and how changes come."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import StreamReader
from yarl import URL

from tests.inference import InferenceWorld
from tests.streams import stream_reader
from tests.unit.cli.test_follow import JOB, pod
from tpu_operator.cli.command import CommandError, Place
from tpu_operator.cli.dashboard import command
from tpu_operator.cli.dashboard.board import Board, watching
from tpu_operator.cli.dashboard.web import HEADERS
from tpu_operator.cli.server import Server
from tpu_operator.engine.client import ApiError, ApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

MODEL = InferenceWorld().run().inference.wire()
MODEL["metadata"] |= {"namespace": "team-a", "resourceVersion": "1"}
JOB_PAGE = "/jobs/team-a/train"
MODEL_PAGE = "/inferences/team-a/qwen"


class Cluster(ApiServer):
    """A server with a job and a model, of which a test makes what is to happen."""

    def __init__(self, *denied: str) -> None:
        self.denied = denied
        self.objects: dict[str, list[Any]] = {
            "tpujobs": [JOB],
            "tpuinferences": [MODEL],
            "pods": [pod("train-0-0", JOB["metadata"]["uid"])],
            "events": [],
            "controllerrevisions": [],
        }
        self._watches: dict[str, list[StreamReader]] = {}
        self.asked: list[str] = []
        self.down = False

    async def get(self, path: str, **query: str) -> bytes:
        self.asked.append(path)
        if self.down:
            raise ApiError(0, "TimeoutError", "")
        parts = path.split("/")
        kind = next(part for part in parts if part in self.objects)
        if kind in self.denied:
            raise ApiError(403, "Forbidden", f"{kind} is forbidden")
        items = self.objects[kind]
        if parts[-1] == kind:
            return json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()
        found = next((item for item in items if item["metadata"]["name"] == parts[-1]), None)
        if found is None:
            raise ApiError(404, "NotFound", "not found")
        return json.dumps(found).encode()

    async def write(self, *_: Any, **__: Any) -> bytes:
        raise AssertionError("the page writes")

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], silence: float
    ) -> AsyncIterator[StreamReader]:
        reader = stream_reader()
        self._watches.setdefault(path.rpartition("/")[2], []).append(reader)
        yield reader

    def tell(self, kind: str, item: dict[str, Any], *, gone: bool = False, **status: Any) -> None:
        """An object has changed, or is gone."""
        version = str(int(item["metadata"]["resourceVersion"]) + 1)
        new = item | {"metadata": item["metadata"] | {"resourceVersion": version}}
        new["status"] = item["status"] | status
        line = json.dumps({"type": "DELETED" if gone else "MODIFIED", "object": new}).encode() + b"\n"
        for reader in self._watches[kind]:
            reader.feed_data(line)


class Browser:
    """A browser that was given an address, or not."""

    def __init__(self, session: aiohttp.ClientSession, address: str) -> None:
        self.address = URL(address)
        self._session = session

    async def get(self, path: str, **options: Any) -> tuple[int, str]:
        async with self._session.get(self.address.join(URL(path)), **options) as answer:
            return answer.status, await answer.text()

    @asynccontextmanager
    async def stream(self, path: str) -> AsyncIterator[Stream]:
        url = self.address.join(URL(f"/stream{path}"))
        async with self._session.get(url) as answer:
            assert answer.headers["Content-Type"] == "text/event-stream"
            assert answer.headers["Content-Security-Policy"] == HEADERS["Content-Security-Policy"]
            yield Stream(answer.content)


class Stream:
    """Server-sent events."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    async def next(self) -> tuple[str, str]:
        """Name and text of the next event."""
        kind = ""
        async with asyncio.timeout(60):
            while True:
                line = (await self._content.readline()).decode()
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ").strip()
                if line.startswith("data: "):
                    return kind, json.loads(line.removeprefix("data: "))

    async def rest(self) -> bytes:
        """What comes until the server ends it."""
        async with asyncio.timeout(60):
            return (await self._content.read()).strip()

    async def until(self, text: str) -> str:
        """The first state that has a text in it."""
        while text not in (found := (await self.next())[1]):
            pass
        return found


@asynccontextmanager
async def opened(cluster: Cluster, *, everywhere: bool = False) -> AsyncIterator[Browser]:
    """A browser that has opened the address, with cookies as browsers keep them for an address."""
    board = Board(Server(cluster, "team-a", Place()), everywhere=everywhere)
    jar = aiohttp.CookieJar(unsafe=True)
    async with (
        watching(board),
        command.serving(board) as address,
        aiohttp.ClientSession(cookie_jar=jar) as session,
    ):
        browser = Browser(session, address)
        status, _ = await browser.get(address)
        assert status == 200
        yield browser


async def test_the_first_page_leads_to_the_others() -> None:
    async with opened(Cluster()) as browser:
        status, text = await browser.get("/")
        assert status == 200
        assert f'href="{JOB_PAGE}"' in text
        assert f'href="{MODEL_PAGE}"' in text
        assert "Namespace team-a" in text
        assert "?token" not in text
        for path in (JOB_PAGE, MODEL_PAGE, "/static/page.js", "/static/page.css", "/static/icon.svg"):
            status, text = await browser.get(path)
            assert (status, bool(text)) == (200, True), path


async def test_the_token_ends_in_a_cookie_that_no_script_and_no_other_site_gets() -> None:
    board = Board(Server(Cluster(), "team-a", Place()))
    async with (
        watching(board),
        command.serving(board) as address,
        aiohttp.ClientSession() as session,
        session.get(address, allow_redirects=False) as answer,
    ):
        assert answer.status == 303
        assert answer.headers["Location"] == "/"
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie


@pytest.mark.parametrize(
    "path", ["/", JOB_PAGE, f"/stream{JOB_PAGE}", "/static/page.js", "/?token=", "/?token=x"]
)
async def test_without_the_token_there_is_nothing(path: str) -> None:
    board = Board(Server(Cluster(), "team-a", Place()))
    async with watching(board), command.serving(board) as address, aiohttp.ClientSession() as session:
        status, text = await Browser(session, address).get(path)
        assert (status, "has printed" in text) == (401, True)


@pytest.mark.parametrize(
    "host", ["example.com", "example.com:{port}", "127.0.0.1", "127.0.0.1:1", "10.0.0.1:{port}"]
)
async def test_names_that_were_made_to_point_here_are_refused(host: str) -> None:
    """A site whose name suddenly resolves to loopback sends its own name as the host."""
    async with opened(Cluster()) as browser:
        headers = {"Host": host.format(port=browser.address.port)}
        assert (await browser.get(str(browser.address), headers=headers))[0] == 403
        assert (await browser.get("/", headers=headers))[0] == 403
        named = {"Host": f"localhost:{browser.address.port}"}
        assert (await browser.get("/", headers=named))[0] == 200


async def test_every_answer_has_the_policy() -> None:
    async with opened(Cluster()) as browser, aiohttp.ClientSession() as stranger:
        for path in ("/", "/nothing", "/jobs/team-a/none"):
            for session in (browser._session, stranger):
                async with session.get(browser.address.join(URL(path))) as answer:
                    assert HEADERS.items() <= dict(answer.headers).items(), path
        policy = HEADERS["Content-Security-Policy"]
        assert "unsafe" not in policy
        assert policy.startswith("default-src 'none';")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_there_is_nothing_but_reading(method: str) -> None:
    async with opened(Cluster()) as browser:
        for path in ("/", JOB_PAGE, MODEL_PAGE):
            async with browser._session.request(method, browser.address.join(URL(path))) as answer:
                assert answer.status == 405


async def test_what_is_not_there() -> None:
    async with opened(Cluster()) as browser:
        status, text = await browser.get("/jobs/team-a/trian")
        assert (status, "did you mean team-a/train" in text) == (404, True)
        status, text = await browser.get("/inferences/team-a/%3Cscript%3E")
        assert (status, "TPUInference team-a/&lt;script&gt;" in text) == (404, True)
        for path in ("/pods/team-a/train", "/static/../web.py", "/static/web.py", "/jobs/team-a"):
            assert (await browser.get(path))[0] == 404


@pytest.mark.parametrize("path", ["/jobs/team-b/train", "/inferences/team-b/qwen"])
async def test_other_namespaces_are_not_shown(path: str) -> None:
    cluster = Cluster()
    async with opened(cluster) as browser:
        cluster.asked.clear()
        status, text = await browser.get(path)
        assert (status, "--all-namespaces" in text) == (404, True)
        assert cluster.asked == []


@pytest.mark.parametrize(
    "path", ["/jobs/team-a/..%2F..%2Fnodes%2Fa", "/jobs/..%2Fkube-system/x", "/jobs/a%3Fb/x"]
)
async def test_names_are_no_paths(path: str) -> None:
    cluster = Cluster()
    async with opened(cluster, everywhere=True) as browser:
        cluster.asked.clear()
        assert (await browser.get(path))[0] == 404
        assert cluster.asked == []


async def test_changes_come_by_themselves() -> None:
    cluster = Cluster()
    async with opened(cluster) as browser, browser.stream("/") as overview, browser.stream(JOB_PAGE) as job:
        assert "Running" in (await overview.next())[1]
        assert "team-a/train" in (await job.next())[1]
        cluster.tell("tpujobs", JOB, phase="Restarting")
        await overview.until("Restarting")
        await job.until("Restarting")
        cluster.tell("tpujobs", JOB, gone=True)
        while (event := await job.next())[0] != "end":
            pass
        assert "It is deleted." in event[1]
        await overview.until("Models")


async def test_changes_of_a_model() -> None:
    cluster = Cluster()
    async with opened(cluster) as browser, browser.stream(MODEL_PAGE) as model:
        assert "Serving" in (await model.next())[1]
        cluster.tell("tpuinferences", MODEL, phase="Degraded")
        await model.until("Degraded")
        cluster.tell("tpuinferences", MODEL, gone=True)
        while (await model.next())[0] != "end":
            pass


async def _forget(browser: Browser, cluster: Cluster) -> None:
    """Delete the job, and wait until the board knows."""
    async with browser.stream("/") as overview:
        cluster.tell("tpujobs", JOB, gone=True)
        while JOB_PAGE in (await overview.next())[1]:
            pass


async def test_a_page_whose_object_went_before_it_listened_says_so() -> None:
    cluster = Cluster()
    async with opened(cluster) as browser:
        assert (await browser.get(JOB_PAGE))[0] == 200
        await _forget(browser, cluster)
        async with browser.stream(JOB_PAGE) as job:
            assert await job.next() == ("end", '<p class="empty">It is deleted.</p>')


async def test_a_browser_asks_again_once_the_api_server_is_back() -> None:
    """For an EventSource, any status but 200 is the end."""
    cluster = Cluster()
    async with opened(cluster) as browser:
        cluster.down = True
        async with browser.stream(JOB_PAGE) as job:
            kind, text = await job.next()
            assert (kind, "the API server does not answer" in text) == ("", True)
            assert await job.rest() == b""
        cluster.down = False
        async with browser.stream(JOB_PAGE) as job:
            assert "team-a/train" in (await job.next())[1]


@pytest.mark.parametrize(("path", "listens"), [(JOB_PAGE, True), ("/jobs/team-a/trian", False)])
async def test_a_page_without_an_object_does_not_wait_for_its_next_state(path: str, listens: bool) -> None:
    async with opened(Cluster()) as browser:
        assert ("page.js" in (await browser.get(path))[1]) is listens


async def test_rights_that_are_missing() -> None:
    async with opened(Cluster("tpuinferences", "events")) as browser:
        status, text = await browser.get("/")
        assert status == 200
        assert "TPUInferences are not shown: tpuinferences is forbidden" in text
        assert "team-a/train" in text
        assert (await browser.get(JOB_PAGE))[0] == 200
    with pytest.raises(ApiError, match="forbidden"):
        async with opened(Cluster("tpuinferences", "tpujobs")):
            raise AssertionError("nothing can be shown")


async def test_pods_that_may_not_be_read_are_told() -> None:
    async with opened(Cluster("pods")) as browser:
        status, text = await browser.get(JOB_PAGE)
        assert (status, "pods is forbidden" in text) == (403, True)


async def test_a_port_that_is_taken() -> None:
    board = Board(Server(Cluster(), "team-a", Place()))
    async with command.serving(board) as address:
        port = URL(address).port
        assert port is not None
        with pytest.raises(CommandError, match=f"port {port} of 127.0.0.1 cannot be had"):
            async with command.serving(board, port):
                raise AssertionError("two listen at one port")
    with pytest.raises(CommandError, match="cannot be had"):
        command._listen(70000)

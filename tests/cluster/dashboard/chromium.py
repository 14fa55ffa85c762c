"""A real Chromium without a window, driven by its own protocol (Chrome DevTools) over a web socket."""

from __future__ import annotations

import asyncio
import base64
import itertools
import re
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root, for whom it has no sandbox
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--no-proxy-server",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
PATIENCE = 120.0
"""Seconds; a loaded machine is no bug of the page's."""
SIZE = {"width": 1240, "height": 800, "deviceScaleFactor": 1, "mobile": False}


class Page:
    """One page.

    Args:
        socket: the way to the browser.

    Attributes:
        problems: errors that it has reported, of scripts, the policy and the network.
        requests: addresses that it has asked for.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._session = ""
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.problems: list[str] = []
        self.requests: list[str] = []

    async def open(self) -> None:
        """Make the page, and ask to be told of all that happens in it."""
        target = (await self.ask("Target.createTarget", url="about:blank"))["targetId"]
        attached = await self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.ask(f"{domain}.enable")
        await self.ask("Emulation.setDeviceMetricsOverride", **SIZE)

    async def listen(self) -> None:
        """Take in what the browser says."""
        async for message in self._socket:
            said = message.json()
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            else:
                self._take(said["method"], said.get("params", {}))

    def _take(self, event: str, told: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.problems.append(str(told["exceptionDetails"]))
        if event == "Log.entryAdded" and told["entry"]["level"] in {"error", "warning"}:
            self.problems.append(told["entry"]["text"])
        if event == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command; returns its result."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        session = {"sessionId": self._session} if self._session else {}
        await self._socket.send_json({"id": number, "method": method, "params": parameters} | session)
        said = await asyncio.wait_for(answer, PATIENCE)
        assert "error" not in said, said
        found: dict[str, Any] = said["result"]
        return found

    async def close(self) -> None:
        """End the browser."""
        self._session = ""
        await self.ask("Browser.close")

    async def goto(self, address: str) -> None:
        """Open an address, and wait until the document is there."""
        await self.ask("Page.navigate", url=address)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript."""
        found = await self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait for an expression to be true."""
        looking = f"const look = () => ({expression}) ? done() : setTimeout(look, 50); look();"
        waiting = f"new Promise((done) => {{ {looking} }})"
        try:
            await self.ask("Runtime.evaluate", expression=waiting, awaitPromise=True)
        except TimeoutError:
            text = await self.evaluate("document.body.innerText")
            raise AssertionError(f"waited for {expression}; the page says:\n{text}") from None

    async def shows(self, text: str) -> None:
        """Wait for a text."""
        await self.until(f"document.body.innerText.includes({text!r})")

    async def picture(self, file: Path) -> None:
        """A picture of the whole page."""
        size = (await self.ask("Page.getLayoutMetrics"))["cssContentSize"]
        shot = await self.ask(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=size | {"scale": 1}
        )
        await asyncio.to_thread(file.write_bytes, base64.b64decode(shot["data"]))


@asynccontextmanager
async def chromium(profile: Path) -> AsyncIterator[Page]:
    """A page of a browser of its own."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium here: on Debian, `apt-get install chromium`")
    process = await asyncio.create_subprocess_exec(
        program,
        *ARGUMENTS,
        f"--user-data-dir={profile}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        address = await asyncio.wait_for(_address(process), PATIENCE)
        async with aiohttp.ClientSession() as http, http.ws_connect(address, max_msg_size=0) as socket:
            page = Page(socket)
            listening = asyncio.create_task(page.listen())
            await page.open()
            yield page
            await page.close()
            await listening
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _address(process: asyncio.subprocess.Process) -> str:
    """Where the browser listens, which it says once it does."""
    assert process.stderr is not None
    said = b""
    async for line in process.stderr:
        said += line
        if found := re.search(rb"ws://\S+", line):
            return found[0].decode()
    raise AssertionError(f"Chromium has ended: {said.decode(errors='replace')}")

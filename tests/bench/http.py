"""The bare client that the floor is measured with: raw JSON over aiohttp, so many requests at a time."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterable
    from pathlib import Path

Object = dict[str, Any]

IN_FLIGHT: Final = 32
MERGE: Final = "application/merge-patch+json"
TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"
"""Rows of columns, as kubectl prints them: a fraction of the bytes of the objects."""
MISSING: Final = 404
REFUSED: Final = 400


class Http:
    """Requests to one API server, under one name.

    Args:
        kubeconfig: how to reach it.
        agent: user agent, by which the audit log tells clients apart.
    """

    def __init__(self, kubeconfig: Path, agent: str) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self._server = cluster["server"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=authority)
        token = config["users"][0]["user"]["token"]
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers={"Authorization": f"Bearer {token}", "User-Agent": agent},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=600),
        )
        self._slots = asyncio.Semaphore(IN_FLIGHT)

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        kind: str = "application/json",
        *,
        answered: bool = False,
    ) -> Object:
        """Send a request; an object that is not there is an empty one.

        Args:
            method: of HTTP.
            path: what it is about.
            body: its content.
            kind: the content's type.
            answered: whether the answer to a write is of interest.

        Raises:
            RuntimeError: the server refused.
        """
        data = None if body is None else msgspec.json.encode(body)
        async with (
            self._slots,
            self._session.request(
                method, self._server + path, data=data, ssl=self._tls, headers={"Content-Type": kind}
            ) as answer,
        ):
            content = await answer.read()
        if answer.status == MISSING and method != "POST":
            return {}
        if answer.status >= REFUSED:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:500].decode(errors='replace')}")
        # Few read what they have written, and decoding it takes time.
        return msgspec.json.decode(content, type=Object) if method == "GET" or answered else {}

    async def table(self, path: str) -> Object:
        """A collection as rows of columns, by default each with the metadata of its object."""
        headers = {"Accept": TABLE}
        async with self._session.get(self._server + path, ssl=self._tls, headers=headers) as answer:
            found: Object = msgspec.json.decode(await answer.read(), type=Object)
        if answer.status >= REFUSED:
            raise RuntimeError(f"GET {path}: {answer.status} {found}")
        return found

    async def watch(self, path: str, version: str) -> AsyncIterator[Object]:
        """Events of a collection as rows of columns, until the caller has enough."""
        url = f"{self._server}{path}?watch=1&includeObject=None&resourceVersion={version}"
        async with self._session.get(url, ssl=self._tls, headers={"Accept": TABLE}) as answer:
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield msgspec.json.decode(line, type=Object)


async def all_of(calls: Iterable[Awaitable[Any]]) -> None:
    """Await everything, and raise the first error."""
    await asyncio.gather(*calls)

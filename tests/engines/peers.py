"""The hosts of one engine, as vLLM's own processes or its data-parallel ranks make it up.

The first one waits for the others at the port that vLLM waits at; who loses the others is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    import argparse

RETRY_SECONDS: Final = 0.1


def add_options(parser: argparse.ArgumentParser) -> None:
    """The part of vLLM's command line that is about hosts."""
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", type=int, default=29501)
    parser.add_argument("--data-parallel-size", type=int, default=1)
    parser.add_argument("--data-parallel-size-local", type=int)
    parser.add_argument("--data-parallel-address")
    parser.add_argument("--data-parallel-rpc-port", type=int, default=29550)


class Hosts:
    """What one host knows of the others.

    Args:
        options: its command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.leads = not options.headless
        local = options.data_parallel_size_local or options.data_parallel_size
        if options.data_parallel_address and options.data_parallel_size > local:
            self._count = options.data_parallel_size // local
            self._address = (options.data_parallel_address, options.data_parallel_rpc_port)
        else:
            self._count = options.nnodes
            self._address = (options.master_addr, options.master_port)
        self._all = asyncio.Event()
        self._gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._joining: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        if self._count == 1:
            self._all.set()
        elif self.leads:
            self._server = await asyncio.start_server(self._joined, port=self._address[1])
        else:
            self._joining = asyncio.ensure_future(self._join())
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._server:
            self._server.close()
        if self._joining:
            self._joining.cancel()
        for writer in self._writers:
            writer.close()

    async def gathered(self) -> None:
        """Wait for all hosts."""
        await self._all.wait()

    async def lost(self) -> str:
        """Wait until one of them is gone, and say so."""
        return await asyncio.shield(self._gone)

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        if len(self._writers) == self._count - 1:
            self._all.set()
        await self._watch(reader, "a host of this engine is gone")

    async def _join(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(*self._address)
                break
            await asyncio.sleep(RETRY_SECONDS)
        self._writers.add(writer)
        self._all.set()
        await self._watch(reader, "the first host of this engine is gone")

    async def _watch(self, reader: asyncio.StreamReader, text: str) -> None:
        with contextlib.suppress(OSError):
            await reader.read(1)
        if not self._gone.done():
            self._gone.set_result(text)

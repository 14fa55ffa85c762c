"""Bodies of responses that a test writes itself."""

from __future__ import annotations

import asyncio

from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol


def stream_reader() -> StreamReader:
    """What an open watch is read from; to be fed."""
    loop = asyncio.get_running_loop()
    protocol = BaseProtocol(loop)
    protocol.connection_made(asyncio.Transport())
    return StreamReader(protocol, 2**16, loop=loop)

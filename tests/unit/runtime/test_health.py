"""The launcher's HTTP port."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from tests.unit.runtime.harness import get, until, variables
from tpu_runtime import http

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.runtime.conftest import Launch


def test_probes_metrics_and_stacks(launch: Launch, port: int) -> None:
    command = ("sh", "-c", "echo up; trap 'exit 0' TERM; while :; do sleep 0.05; done")
    launcher = launch(variables(TPU_LAUNCH_PORT=str(port)), *command)
    launcher.wait_for("up")
    until(lambda: get(port, "/readyz")[0] == 200, "readiness")
    assert get(port, "/healthz") == (200, "ok\n")
    status, metrics = get(port, "/metrics")
    assert status == 200
    values = dict(line.split() for line in metrics.splitlines() if not line.startswith("#"))
    assert values["tpu_launch_gate_passed"] == "1"
    assert values["tpu_launch_processes_running"] == "1"
    assert values["tpu_launch_process_restarts_total"] == "0"
    assert float(values["tpu_launch_gate_seconds"]) < 60
    assert float(values["tpu_launch_heartbeat_age_seconds"]) < 60
    assert get(port, "/stacks") == (
        200,
        "no process has started JAX or TorchTPU, or called tpu_runtime.heartbeat(), yet\n",
    )
    assert get(port, "/") == (404, "there is nothing at /; try /healthz, /readyz, /metrics, /stacks\n")
    assert get(port, "/gate/join") == (405, "/gate/join wants POST\n")
    launcher.signal(signal.SIGTERM)
    assert launcher.code() == 0


async def echo(request: http.Request) -> http.Response:
    return http.json_response(200, [request.method, request.path, request.body.decode()])


@pytest.fixture
async def server() -> AsyncIterator[http.Server]:
    started = http.Server(echo)
    await started.start(0)
    yield started
    await started.close()


async def exchange(server: http.Server, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data)
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"200 OK"),
        (b"GET /healthz?verbose=1 HTTP/1.0\r\nHost: x\r\n\r\n", b"200 OK"),
        (b"\x16\x03\x01\r\n\r\n", b"400 Bad Request"),
        (b"GET /\r\n\r\n", b"400 Bad Request"),
        (b"GET / SPDY/3\r\n\r\n", b"505 HTTP Version Not Supported"),
        (b"POST / HTTP/1.1\r\nContent-Length: 999999\r\n\r\n", b"413 Request Entity Too Large"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", b"431 Request Header Fields Too Large"),
    ],
)
async def test_requests_good_and_bad(server: http.Server, data: bytes, status: bytes) -> None:
    assert (await exchange(server, data)).startswith(b"HTTP/1.1 " + status)


async def test_a_body_comes_whole_however_it_is_cut(server: http.Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for part in (b"POST /a HTTP/1.1\r\ncontent-LENGTH: 6\r\n", b"\r\nab", b"cdef"):
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.01)
    assert (await reader.read()).endswith(b'["POST", "/a", "abcdef"]')
    writer.close()


async def test_idle_connections_neither_delay_the_end_nor_leave_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = http.Server(echo)
    await server.start(0)
    idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
    async with asyncio.timeout(3):
        await server.close()
    for reader, writer in idle:
        assert await reader.read() == b""
        writer.close()
    assert caplog.records == []


async def test_a_request_that_the_handler_cannot_cope_with(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: http.Request) -> http.Response:
        raise ZeroDivisionError("by whom?")

    server = http.Server(fail)
    await server.start(0)
    answer = await exchange(server, b"GET / HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"by whom?" in answer
    assert caplog.records == []
    await server.close()


async def test_who_hangs_up_is_forgotten(server: http.Server) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET / HT")
    writer.close()
    await writer.wait_closed()
    assert (await exchange(server, b"GET / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_the_client_speaks_with_the_server(server: http.Server) -> None:
    assert await http.post_json(("127.0.0.1", server.port), "/p", {"a": 1}, 60) == (
        200,
        ["POST", "/p", '{"a": 1}'],
    )

"""The shell of the operator's process."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import subprocess
import sys
from asyncio import sslproto
from typing import TYPE_CHECKING

import pytest

from tpu_operator import app
from tpu_operator.app import TLS_BUFFER, setup_logging
from tpu_operator.settings import parse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOISY = ("kopf", "aiohttp.access")


@pytest.fixture
def loggers() -> Iterator[None]:
    """Loggers are global: put them back."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in NOISY}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, old in levels.items():
        logging.getLogger(name).setLevel(old)


@pytest.mark.usefixtures("loggers")
def test_probes_do_not_fill_the_log() -> None:
    setup_logging("info", "json")
    assert logging.getLogger("tpu_operator").isEnabledFor(logging.INFO)
    assert not any(logging.getLogger(name).isEnabledFor(logging.INFO) for name in NOISY)


IMAGES = ("--runtime-image=example/runtime:1", "--launcher-image=example/operator:1")
ARGUMENTS = [*IMAGES, "--own-namespace=tpu-operator", "--health-port=0"]
BROKEN = f"""
from tpu_operator import app, settings

async def connect():
    pass

def broken(*_):
    raise RuntimeError("boom")

app.ApiServer.connect, app.Runner = connect, broken
raise SystemExit(app.run(settings.parse({ARGUMENTS})))
"""


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A process that has to end by itself."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_start_that_fails_is_not_tried_for_ever() -> None:
    done = run("-c", BROKEN)
    assert done.returncode == 1
    assert "boom" in done.stderr


def test_without_a_way_to_the_api_server_it_ends_and_says_what_to_do(tmp_path: Path) -> None:
    done = run("-m", "tpu_operator", "run", *ARGUMENTS, KUBECONFIG=str(tmp_path / "none"))
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if "tpu_operator" in line)
    assert "set KUBECONFIG to a file that has a current context" in line
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("loggers")
def test_a_tls_connection_has_a_small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no other way to say so; a Python that ignores it would cost 10 MiB."""
    sizes: list[int] = []

    async def connect(_: app.App) -> int:
        loop = asyncio.get_running_loop()
        context = ssl.create_default_context()
        ready = loop.create_future()
        connection = sslproto.SSLProtocol(
            loop, asyncio.Protocol(), context, ready, server_hostname="localhost"
        )
        sizes.append(len(connection.get_buffer(-1)))
        connection.connection_lost(None)
        return 0

    monkeypatch.setattr(sslproto.SSLProtocol, "max_size", sslproto.SSLProtocol.max_size)
    monkeypatch.setattr(app.App, "run", connect)
    assert app.run(parse(ARGUMENTS)) == 0
    assert sizes == [TLS_BUFFER]


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("prometheus:9090", "write a URL such as"),
        ("file:///etc/passwd", "write a URL such as"),
        ("http://", "write a URL such as"),
        ("http://prometheus.test/?query=up", "write a URL such as"),
        ("http://me:secret@prometheus.test", "credentials in a URL would be shown"),
    ],
)
def test_a_prometheus_is_a_plain_url(url: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([*ARGUMENTS, f"--prometheus={url}"])
    assert complaint in capsys.readouterr().err


def test_the_first_prometheus_is_the_one_for_analyses_that_name_none() -> None:
    urls = ("https://b.test/team", "http://a.test:9090")
    assert parse([*ARGUMENTS, *(f"--prometheus={url}" for url in urls)]).prometheus == urls

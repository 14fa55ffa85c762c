"""The real Prometheus, of Debian's package, on loopback, and what it scrapes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hack.devcluster import binaries
from tests.kube import wait_for
from tests.loopback import fetch, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = "prometheus"
SCRAPES = "200ms"


def binary() -> Path:
    """The program: installed, or unpacked from Debian's package into our cache, which installs nothing."""
    if found := shutil.which(PACKAGE):
        return Path(found)
    program = binaries.cache() / PACKAGE / "usr/bin/prometheus"
    if program.exists():
        return program
    if not shutil.which("apt-get"):
        pytest.skip("install Prometheus: Debian's package of it is where this test has it from otherwise")
    binaries.cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=binaries.cache()) as scratch:
        _download(Path(scratch))
        (package,) = Path(scratch).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, Path(scratch) / PACKAGE], check=True)
        shutil.rmtree(binaries.cache() / PACKAGE, ignore_errors=True)
        (Path(scratch) / PACKAGE).rename(binaries.cache() / PACKAGE)
    return program


def _download(directory: Path) -> None:
    """Fetch the package; apt's lists may be old, or absent."""
    directory.chmod(0o755)
    download = ["apt-get", "download", "--quiet", PACKAGE]
    if subprocess.run(download, cwd=directory, check=False).returncode:
        subprocess.run(["apt-get", "update", "--quiet"], check=True)
        subprocess.run(download, cwd=directory, check=True)


class Figures:
    """Metrics that a test sets, at an address to be scraped."""

    def __init__(self) -> None:
        self._lines: dict[str, float] = {}
        figures = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = "".join(f"{name} {value}\n" for name, value in dict(figures._lines).items())
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def set(self, name: str, value: float, **labels: str) -> None:
        """A metric from now on."""
        inner = ",".join(f"{key}={json.dumps(text)}" for key, text in labels.items())
        self._lines[f"{name}{{{inner}}}"] = value

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.server_address[1]}"


@contextmanager
def figures() -> Iterator[Figures]:
    """Metrics to be scraped, until the end of the context."""
    found = Figures()
    thread = threading.Thread(target=found.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.server.shutdown()
        found.server.server_close()
        thread.join(timeout=10)


@contextmanager
def running(target: str, directory: Path) -> Iterator[str]:
    """URL of a Prometheus that scrapes one address, until the end of the context."""
    config = {
        "global": {"scrape_interval": SCRAPES, "scrape_timeout": SCRAPES},
        "scrape_configs": [{"job_name": "engines", "static_configs": [{"targets": [target]}]}],
    }
    (directory / "prometheus.yml").write_text(json.dumps(config))
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        str(binary()),
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
    ]
    with (directory / "prometheus.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={"PATH": os.environ["PATH"]})
    try:
        wait_for(lambda: fetch(f"{url}/-/ready")[0] == 200, f"Prometheus, see {log.name}")
        yield url
    finally:
        process.terminate()
        process.wait(timeout=30)

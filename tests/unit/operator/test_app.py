"""The shell of the operator's process."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tpu_operator.app import setup_logging

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


def test_without_a_way_to_the_api_server_it_ends_and_says_what_to_do(tmp_path: Path) -> None:
    images = ("--runtime-image=example/runtime:1", "--launcher-image=example/operator:1")
    done = subprocess.run(
        [sys.executable, "-m", "tpu_operator", "run", *images, "--own-namespace=tpu-operator"],
        env=os.environ | {"KUBECONFIG": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if "tpu_operator" in line)
    assert "set KUBECONFIG to a file that has a current context" in line
    assert "Traceback" not in done.stderr

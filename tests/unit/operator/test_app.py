"""The shell of the operator's process."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from tpu_operator.app import setup_logging

if TYPE_CHECKING:
    from collections.abc import Iterator

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

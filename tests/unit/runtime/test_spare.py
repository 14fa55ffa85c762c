"""A spare slice's host: answers probes, and goes when it is told to."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.unit.runtime.harness import PYTHON, get, until

if TYPE_CHECKING:
    from tests.unit.runtime.conftest import Launch

SPARE = [*PYTHON, "-m", "tpu_runtime", "--spare"]


def test_a_spare_is_ready_at_once_and_ends_well_on_sigterm(launch: Launch, port: int) -> None:
    launcher = launch({"TPU_LAUNCH_PORT": str(port)}, prefix=SPARE)
    until(lambda: get(port, "/readyz")[0] == 200, "readiness")
    assert get(port, "/healthz")[0] == 200
    assert get(port, "/metrics")[0] == 404
    launcher.signal(signal.SIGTERM)
    assert launcher.code() == 0
    assert launcher.message is None


def test_a_port_that_is_none(launch: Launch) -> None:
    launcher = launch({"TPU_LAUNCH_PORT": "http"}, prefix=SPARE)
    assert launcher.code() == 64
    assert "TPU_LAUNCH_PORT='http'" in launcher.stderr

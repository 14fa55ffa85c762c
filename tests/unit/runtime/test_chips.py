"""What `/metrics` has of libtpu.

The module that is asked here is a fake of the documented interface, as there are no TPUs: the real one gives
empty lists without them.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.unit.runtime.harness import RUNTIME, get, variables
from tpu_runtime import libtpu

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.runtime.conftest import Launch

FAKE = """
import pathlib, sys
print("libtpu talks", flush=True)
with pathlib.Path(__file__).with_name("asked").open("a") as log:
    log.write("x")

class Metric:
    def __init__(self, rows):
        self.rows = rows
    def data(self):
        return self.rows

class tpumonitoring:
    def get_metric(name):
        if name == "tensorcore_util":
            raise RuntimeError("no such metric")
        return Metric(["12.50", "0.00"] if name == "duty_cycle_pct" else [])
"""
LIVE = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)")


@pytest.mark.parametrize(
    ("name", "rows", "expected"),
    [
        ("duty_cycle_pct", ["0.00", "20.00"], ['{of="0"} 0', '{of="1"} 20']),
        ("hbm_capacity_total", ["33550229504"], ['{of="0"} 33550229504']),
        (
            "hlo_queue_size",
            ["tensorcore_0: 0", "tensorcore_1: 10"],
            ['{of="tensorcore_0"} 0', '{of="tensorcore_1"} 10'],
        ),
        ("ici_link_health", ["tray1.chip3.ici0.int: 10"], ['{of="tray1.chip3.ici0.int"} 10']),
        ("tpu_throttle_score", ["0-0", "1-10"], ['{of="0"} 0', '{of="1"} 10']),
        (
            "collective_e2e_latency",
            ["2MB+-ALL_REDUCE, 100.00, 200.00, 300.00, 400.00, 500.00"],
            [
                f'{{of="2MB+-ALL_REDUCE",statistic="{statistic}"}} {value}'
                for statistic, value in zip(
                    ("mean", "p50", "p90", "p95", "p99.9"), range(100, 600, 100), strict=True
                )
            ],
        ),
        (
            "tcp_min_rtt",
            ["1.00, 2.00, 3.00, 4.00, 5.50"],
            [
                f'{{statistic="{statistic}"}} {value}'
                for statistic, value in zip(
                    ("mean", "p50", "p90", "p95", "p99.9"), (1, 2, 3, 4, 5.5), strict=True
                )
            ],
        ),
    ],
)
def test_rows_of_the_documented_formats(name: str, rows: list[str], expected: list[str]) -> None:
    full = f"tpu_launch_libtpu_{name}"
    text = "".join(libtpu.lines(name, rows)).splitlines()
    assert text[1:] == [f"# TYPE {full} gauge", *(f"{full}{row}" for row in expected)]
    assert text[0].startswith(f"# HELP {full} ")


@pytest.mark.parametrize("row", ["", "idle", "a: b", "1, 2", "x, 1, 2, 3, 4", "a, b, 1, 2, 3, 4, 5"])
def test_rows_of_other_formats_are_left_out(row: str) -> None:
    assert not list(libtpu.lines("hlo_queue_size", [row]))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A fake libtpu."""
    found = tmp_path / "packages" / "libtpu"
    found.mkdir(parents=True)
    (found / "__init__.py").touch()
    (found / "sdk.py").write_text(FAKE)
    return found


def started(launch: Launch, port: int, package: Path, emulate: str = "") -> None:
    """Start a launcher whose processes find the fake."""
    path = f"{package.parent}:{RUNTIME}"
    env = variables(TPU_OPERATOR_EMULATE=emulate, TPU_LAUNCH_PORT=str(port), PYTHONPATH=path)
    launch(env, *LIVE).wait_for("up", 20)


def of_chips(port: int) -> list[str]:
    status, text = get(port, "/metrics")
    assert status == 200
    assert "tpu_launch_processes_running 1\n" in text
    return [line for line in text.splitlines() if "libtpu" in line and not line.startswith("#")]


def test_libtpu_is_asked_in_the_jobs_environment_and_not_at_every_scrape(
    launch: Launch, port: int, package: Path
) -> None:
    started(launch, port, package)
    expected = ["12.5", "0"]
    for _ in range(2):
        figures = [f'tpu_launch_libtpu_duty_cycle_pct{{of="{i}"}} {each}' for i, each in enumerate(expected)]
        assert of_chips(port) == figures
    assert (package / "asked").read_text() == "x"


@pytest.mark.parametrize("source", ["raise ImportError", "import os; os.abort()"])
def test_a_libtpu_that_fails_fails_alone(launch: Launch, port: int, package: Path, source: str) -> None:
    (package / "sdk.py").write_text(source)
    started(launch, port, package)
    assert of_chips(port) == []


def test_a_libtpu_that_does_not_answer_is_not_waited_for(launch: Launch, port: int, package: Path) -> None:
    (package / "sdk.py").write_text("import time; time.sleep(600)")
    started(launch, port, package)
    began = time.monotonic()
    assert of_chips(port) == []
    assert time.monotonic() - began < 60


def test_where_tpus_are_emulated_libtpu_is_not_asked(launch: Launch, port: int, package: Path) -> None:
    started(launch, port, package, emulate="cpu")
    assert of_chips(port) == []
    assert not (package / "asked").exists()

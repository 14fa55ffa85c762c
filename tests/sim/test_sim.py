"""Lives of a cluster, one for each seed: docs/testing.md says how to replay one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.sim.world import run


def seeds() -> range:
    """The seeds to run: `SIM_SEED` is one number, or a first and a last one."""
    first, _, last = os.environ.get("SIM_SEED", "0-199").partition("-")
    return range(int(first), int(last or first) + 1)


@pytest.mark.parametrize("seed", seeds())
def test_seed(seed: int) -> None:
    run(seed)


def test_a_seed_replays_exactly() -> None:
    code = "from tests.sim.world import run; print(run(3).digest())"
    other = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run(3).digest() == run(3).digest() == other.stdout.strip()
    assert run(3).digest() != run(4).digest()

"""A few lives under random faults, or for as long as SOAK_SECONDS says (`make soak`)."""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from tests.cluster.conftest import Operator
from tests.cluster.faults.lab import Process
from tests.cluster.faults.scenarios import case
from tests.cluster.faults.soak import Soak
from tests.cluster.faults.together import PATIENCE, together

if TYPE_CHECKING:
    from tests.cluster.faults.scenarios import Oracle

SECONDS: Final = float(os.environ.get("SOAK_SECONDS", "15"))
SEED: Final = int(os.environ.get("SOAK_SEED", "0"))
ROUND: Final = 60.0
PEOPLE: Final = 4
WARM_UP: Final = 2
"""Rounds, after which memory may grow no more."""
GROWTH: Final = 1.05


@together
@pytest.mark.timeout(PATIENCE + 2 * SECONDS)
async def test_soak(oracle: Oracle) -> None:
    async with case(oracle.lab) as job:
        process = await job.lead(Process(oracle.lab, job.namespace, kind=Operator))
        soak = Soak(oracle.lab, process, job.namespace, Random(SEED))
        for _ in range(max(1, round(SECONDS / ROUND))):
            await soak.round(min(SECONDS, ROUND), PEOPLE)
        assert not job.duplicates(), job.duplicates()
        if len(soak.samples) > WARM_UP:
            assert soak.samples[-1] <= soak.samples[WARM_UP - 1] * GROWTH, soak.samples

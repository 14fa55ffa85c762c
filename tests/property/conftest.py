"""Profiles of hypothesis: the same examples every day, and `--hypothesis-profile=deep` to look for more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import pytest

COMMON = settings(
    deadline=None,
    print_blob=True,
    # A busy machine is no fault of the code.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
# What is red here is red everywhere.
settings.register_profile("daily", COMMON, derandomize=True, max_examples=100, stateful_step_count=40)
settings.register_profile("deep", COMMON, max_examples=500, stateful_step_count=60)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile(config.getoption("--hypothesis-profile") or "daily")

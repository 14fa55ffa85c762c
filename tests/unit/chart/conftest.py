"""Fixtures of the chart's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from hack.devcluster import binaries
from tests.unit.chart import promtool, rendering
from tests.unit.chart.rendering import CHART, Manifest, Render, Template

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path


@pytest.fixture(scope="session")
def helm() -> Path:
    return binaries.ensure(["helm"])["helm"]


@pytest.fixture(scope="session")
def prometheus() -> Path:
    """promtool, in which Prometheus' own engine evaluates rules."""
    return promtool.ensure()


@pytest.fixture
def template(helm: Path, tmp_path: Path) -> Template:
    def run(values: Manifest | None = None, chart: Path = CHART) -> subprocess.CompletedProcess[str]:
        return rendering.template(helm, values or {}, chart, tmp_path)

    return run


@pytest.fixture
def render(template: Template) -> Render:
    def run(values: Manifest | None = None, chart: Path = CHART) -> list[Manifest]:
        done = template(values, chart)
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]

    return run

"""What a release is made of."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PARTS = ("hack/release.sh", "pyproject.toml", "charts/tpu-operator/Chart.yaml")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What a release is decided by."""
    for part in PARTS:
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / part, tmp_path / part)
    (tmp_path / "CHANGELOG.md").write_text("## Unreleased\n")
    return tmp_path


def refusal(tree: Path) -> str:
    command: list[str | Path] = [tree / "hack" / "release.sh", "false", "bin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr


def test_a_version_that_the_changelog_does_not_have_is_refused(tree: Path) -> None:
    """And with it the versions of the project and its chart are the same."""
    assert "CHANGELOG.md has no section" in refusal(tree)


def test_versions_that_differ_are_refused(tree: Path) -> None:
    chart = tree / "charts" / "tpu-operator" / "Chart.yaml"
    chart.write_text(chart.read_text().replace("appVersion: ", "appVersion: 9."))
    assert "make them the same" in refusal(tree)

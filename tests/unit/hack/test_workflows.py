"""What the workflows of GitHub run is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_they_have_no_more_rights_than_to_read(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    assert "secrets." not in path.read_text()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_targets_and_files_that_they_name_exist(path: Path) -> None:
    lines = [step["run"] for step in steps(path) if "run" in step]
    targets = {
        target
        for line in lines
        for match in re.findall(r"\bmake ([a-z -]+)", line)
        for target in match.split()
    }
    assert targets <= TARGETS
    for named in re.findall(r"(?:tests|hack)/[\w./-]*\w", path.read_text()):
        assert (ROOT / named).exists(), named


def test_every_job_has_a_limit() -> None:
    assert len(WORKFLOWS) == 3
    for path in WORKFLOWS:
        assert all("timeout-minutes" in job for job in yaml.safe_load(path.read_text())["jobs"].values())

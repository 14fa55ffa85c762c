"""What helm makes of the chart, as Python objects."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHART = Path(__file__).parents[3] / "charts" / "tpu-operator"

Manifest = dict[str, Any]
Template = Callable[..., "subprocess.CompletedProcess[str]"]
"""Runs `helm template` with values, and perhaps another chart."""
Render = Callable[..., list[Manifest]]
"""The objects that helm makes of values, and perhaps of another chart."""


def template(helm: Path, values: Manifest, chart: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run `helm template`, with values in a file of a directory."""
    file = directory / "values.json"
    file.write_text(json.dumps(values))
    name = "tpu-operator"
    command: list[str | Path] = [helm, "template", name, chart, "--namespace", name, "--values", file]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def of_kind(objects: list[Manifest], kind: str) -> dict[str, Manifest]:
    """The objects of one kind, by namespace and name."""
    found = [each for each in objects if each["kind"] == kind]
    return {f"{o['metadata'].get('namespace', '')}/{o['metadata']['name']}": o for o in found}

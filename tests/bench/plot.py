"""The headline as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bench.results import Results

HEIGHT: Final = 0.28
"""Inches a bar."""


def draw(results: Results, path: Path, rates: str = "raised") -> None:
    """Draw the seconds until all hosts are ready, by scenario and subject, as SVG."""
    keys = [key for key in results.runs if key[2:] == (rates, "ready")]
    scenarios = list(dict.fromkeys(key[0] for key in keys))
    rows = sum(len([key for key in keys if key[0] == scenario]) + 2 for scenario in scenarios)
    figure = Figure(figsize=(8, 1 + rows * HEIGHT), layout="constrained")
    axes = figure.subplots(len(scenarios), squeeze=False)
    for scenario, (axis,) in zip(scenarios, axes, strict=True):
        subjects = [key[1] for key in keys if key[0] == scenario][::-1]
        times = [results.median(scenario, subject, rates, "ready") or 0.0 for subject in subjects]
        axis.bar_label(axis.barh(subjects, times), fmt="%.2f s", padding=3)
        axis.set_title(scenario, loc="left", fontsize="medium")
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.12)
    figure.suptitle(f"Seconds until all hosts are ready ({rates} rates)")
    figure.savefig(path, format="svg", metadata={"Date": None})

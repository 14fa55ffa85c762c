"""Figures: rows of what was measured, kept as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

UNITS: Final = {
    "cpu": "s",
    "rss": "MiB",
    "idle cpu": "% of a core",
    "writes": "calls",
    "idle writes": "calls",
    "pods touched": "calls",
    "status writes": "calls",
    "writes per status change": "calls",
    "writes per job": "calls",
}
"""Units of metrics; all others are times, or numbers of calls."""

Key = tuple[str, str, str, str]
"""Scenario, subject, rates, metric."""


@dataclass
class Results:
    """All runs of all metrics."""

    runs: dict[Key, list[float]] = field(default_factory=dict)

    def add(self, scenario: str, subject: str, rates: str, metrics: Mapping[str, float]) -> None:
        """Add one run."""
        for metric, value in metrics.items():
            self.runs.setdefault((scenario, subject, rates, metric), []).append(round(value, 3))

    def median(self, scenario: str, subject: str, rates: str, metric: str) -> float | None:
        """The median of a metric, None if it was not measured."""
        runs = self.runs.get((scenario, subject, rates, metric))
        return median(runs) if runs else None

    def replace(self, other: Results) -> Results:
        """These, but all that is measured anew in `other` from there."""
        measured = {key[:3] for key in other.runs}
        kept = {key: runs for key, runs in self.runs.items() if key[:3] not in measured}
        return Results(kept | other.runs)

    def save(self, path: Path) -> None:
        """Write them, a row a line."""
        rows = ",\n".join(f" {json.dumps(row)}" for row in self._rows())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[\n{rows}\n]\n")

    def _rows(self) -> Iterable[dict[str, object]]:
        for (scenario, subject, rates, metric), runs in self.runs.items():
            yield {
                "scenario": scenario,
                "subject": subject,
                "rates": rates,
                "metric": metric,
                "unit": unit(metric),
                "median": round(median(runs), 3),
                "runs": runs,
            }

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read what `save` wrote; nothing if there is no file."""
        found = cls()
        for row in json.loads(path.read_text()) if path.exists() else ():
            found.runs[row["scenario"], row["subject"], row["rates"], row["metric"]] = row["runs"]
        return found


def unit(metric: str) -> str:
    """The unit of a metric."""
    return UNITS.get(metric, "calls" if metric.startswith("calls: ") else "s")

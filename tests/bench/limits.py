"""What the operator has to keep, by issue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.results import Results

OPERATOR: Final = "tpu-operator"
FLOOR: Final = "floor"
RATES: Final = "raised"


@dataclass(frozen=True)
class Limit:
    """A metric of the operator, and the most that it may be."""

    scenario: str
    metric: str
    most: float
    of_floor: bool = False
    """Whether the limit is a multiple of the floor's figure."""


@dataclass(frozen=True)
class Verdict:
    """A limit and what was measured."""

    limit: Limit
    measured: float

    @property
    def kept(self) -> bool:
        """Whether it was kept."""
        return self.measured <= self.limit.most


LIMITS: Final = (
    Limit("create-256", "ready", 1.25, of_floor=True),
    Limit("create-1024", "ready", 1.25, of_floor=True),
    Limit("restart-256", "ready", 1.3, of_floor=True),
    Limit("create-16", "writes", 16 + 4),
    Limit("create-256", "writes", 256 + 4),
    Limit("create-1024", "writes", 1024 + 4),
    Limit("create-256", "writes per status change", 2),
    Limit("restart-256", "writes per status change", 2),
    Limit("create-256", "cpu", 1.0),
    Limit("create-256", "rss", 90),
    Limit("jobs-1000x4", "rss", 150),
    Limit("jobs-1000x4", "writes per job", 4 + 4),
    Limit("jobs-1000x4", "idle cpu", 1.0),
    Limit("jobs-1000x4", "idle writes", 0),
    Limit("operator-restart", "ready", 5.0),
    Limit("operator-restart", "pods touched", 0),
    Limit("operator-restart", "status writes", 0),
    Limit("finished-10000", "rss", 250),
)


def verdicts(results: Results) -> Iterator[Verdict]:
    """What was measured beside each limit, as far as it was."""
    for limit in LIMITS:
        measured = results.median(limit.scenario, OPERATOR, RATES, limit.metric)
        floor = results.median(limit.scenario, FLOOR, RATES, limit.metric) if limit.of_floor else 1.0
        if measured is not None and floor:
            yield Verdict(limit, measured / floor)

"""What jobs have cost: chips times seconds, by what the chips were doing (contract A6).

Added up in this process from every change of a job, not from the moments of scrapes. A replica that starts
anew starts at zero, which Prometheus' functions over counters allow for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tpu_operator import catalog
from tpu_operator.api import SliceState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from tpu_operator.core.snapshot import Custom
    from tpu_operator.engine.clock import Clock
    from tpu_operator.engine.informer import Informer, Key

STATES: Final = {
    SliceState.PENDING: "pending",
    SliceState.STARTING: "starting",
    SliceState.RUNNING: "running",
    SliceState.RESTARTING: "restarting",
    SliceState.SUCCEEDED: "idle",
}
"""What the chips of a slice do; those of a slice that is done wait for the others of its job."""


@dataclass(slots=True)
class _Account:
    """One incarnation of a job."""

    uid: str
    since: datetime
    chips: Counter[str] = field(default_factory=Counter)
    """Chips in each state, since then."""
    spent: Counter[str] = field(default_factory=Counter)
    """Chip-seconds before that."""

    def settle(self, now: datetime) -> None:
        elapsed = max(0.0, (now - self.since).total_seconds())
        for state, chips in self.chips.items():
            self.spent[state] += chips * elapsed  # type: ignore[assignment]
        self.since = max(self.since, now)


class ChipSeconds:
    """Keeps the accounts of all jobs.

    Args:
        clock: the time of day.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._accounts: dict[Key, _Account] = {}

    def follow(self, jobs: Informer[Custom]) -> None:
        """Keep accounts of an informer's jobs."""
        jobs.listen(lambda key, _, job: self.update(key, job))

    def update(self, key: Key, job: Custom | None) -> None:
        """Take note of what has become of a job."""
        if job is None:
            self._accounts.pop(key, None)
            return
        now = self._clock()
        account = self._accounts.get(key)
        if account is None or account.uid != job.metadata.uid:
            account = self._accounts[key] = _Account(job.metadata.uid, now)
        account.settle(now)
        account.chips = _chips_by_state(job)

    def totals(self) -> Iterator[tuple[Key, str, float]]:
        """Job, state and chip-seconds up to now."""
        now = self._clock()
        for key, account in self._accounts.items():
            account.settle(now)
            for state, seconds in account.spent.items():
                yield key, state, seconds


def slice_chips(job: Custom) -> int:
    """Chips of each of a job's slices; 0 when they cannot be told."""
    tpu = job.spec.get("tpu", {})
    try:
        return catalog.resolve(tpu["accelerator"], tpu["topology"], tpu.get("chipsPerHost")).chips
    except (catalog.CatalogError, KeyError):
        return 0


def _chips_by_state(job: Custom) -> Counter[str]:
    found: Counter[str] = Counter()
    if job.status.get("completionTime"):
        return found
    size = slice_chips(job)
    for each in job.status.get("slices", ()):
        if state := STATES.get(each.get("state")):
            found[state] += size
    return found

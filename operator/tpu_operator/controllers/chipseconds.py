"""What jobs have cost: chips times seconds, by what the chips were doing (contract A6).

Added up in this process from every change of a job, not from the moments of scrapes. A replica that begins
to lead starts at zero, which Prometheus' functions over counters allow for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tpu_operator import catalog
from tpu_operator.api import SliceState
from tpu_operator.engine.metrics import METRIC_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
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
SPARES: Final = {SliceState.STARTING: "idle", SliceState.SPARE: "idle"}
"""What those of a spare slice do; one without nodes has none."""

KEEP: Final = 3600.0
"""Seconds for which a job that is over is still reported, so that every scraper gets its last value."""


@dataclass(frozen=True, slots=True)
class _Account:
    """One incarnation of a job.

    Attributes:
        uid: of the job.
        since: when `spent` was added up.
        chips: chips in each state, since then.
        spent: chip-seconds in each state before that.
        ended: whether the job is over.
    """

    uid: str
    since: datetime
    chips: Mapping[str, int] = field(default_factory=dict)
    spent: Mapping[str, float] = field(default_factory=dict)
    ended: bool = False

    def at(self, now: datetime) -> Mapping[str, float]:
        """Chip-seconds in each state up to a time."""
        elapsed = max(0.0, (now - self.since).total_seconds())
        states = self.spent.keys() | self.chips.keys()
        return {s: self.spent.get(s, 0.0) + self.chips.get(s, 0) * elapsed for s in sorted(states)}


class ChipSeconds:
    """Keeps the accounts of all jobs, while this replica leads.

    Args:
        clock: the time of day.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._accounts: dict[Key, _Account] = {}
        self._open = False

    def start(self, jobs: Iterable[Custom]) -> None:
        """Begin to count, with empty accounts: what another leader has counted is not counted again."""
        self.stop()
        self._open = True
        for job in jobs:
            self.update((job.metadata.namespace, job.metadata.name), job)

    def stop(self) -> None:
        """Count no more: somebody else may."""
        self._open = False
        self._accounts.clear()

    def follow(self, jobs: Informer[Custom]) -> None:
        """Keep accounts of an informer's jobs."""
        jobs.listen(lambda key, _, job: self.update(key, job))

    def update(self, key: Key, job: Custom | None) -> None:
        """Take note of what has become of a job."""
        account = self._accounts.pop(key, None)
        if job is None or not self._open:
            return
        now = self._clock()
        ended = bool(job.status.get("completionTime"))
        if account is None or account.uid != job.metadata.uid:
            if ended:
                # There is nothing to tell of it, and there may be ten thousand of them.
                return
            account = _Account(job.metadata.uid, now)
        if not account.ended:
            account = _Account(account.uid, max(account.since, now), _chips(job), account.at(now), ended)
        self._accounts[key] = account

    def totals(self) -> Iterator[tuple[Key, str, float]]:
        """Job, state and chip-seconds up to now; jobs that ended a while ago are left out."""
        now = self._clock()
        for key, account in list(self._accounts.items()):
            if account.ended and (now - account.since).total_seconds() > KEEP:
                del self._accounts[key]
                continue
            for state, seconds in account.at(now).items():
                yield key, state, seconds


def slice_chips(job: Custom) -> int:
    """Chips of each of a job's slices; 0 when they cannot be told."""
    try:
        tpu = job.tpu
        return _chips_of(tpu["accelerator"], tpu["topology"], tpu.get("chipsPerHost"))
    except (catalog.CatalogError, KeyError, TypeError, AttributeError):
        # A spec is whatever was stored when the CRD was another one: a null, a number.
        return 0


@lru_cache
def _chips_of(accelerator: str, topology: str, chips_per_host: int | None) -> int:
    # Ten thousand jobs are of a few shapes, and each scrape asks for all.
    return catalog.resolve(accelerator, topology, chips_per_host).chips


def _chips(job: Custom) -> Mapping[str, int]:
    """Chips in each state; none of a job that makes no sense, which must not keep others from being led."""
    try:
        return _count(job)
    except (TypeError, AttributeError):
        METRIC_ERRORS.inc()
        return {}


def _count(job: Custom) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    if not job.status.get("completionTime"):
        size = slice_chips(job)
        tpu = job.tpu
        spares = tpu.get("slices", 1) if tpu.get("spareSlices") else catalog.MAX_HOSTS
        for each in job.status.get("slices") or ():
            states = STATES if each.get("index", 0) < spares else SPARES
            if state := states.get(each.get("state")):
                found[state] += size
    return found

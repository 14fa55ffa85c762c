"""Metrics about TPUJobs (contract A6), read off their statuses at each scrape.

But for chip-seconds, nothing is kept that a restart would lose: what a counter counts is in the status of
the job. Only the leader reports, so that sums over replicas are right.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tpu_operator.api import Phase, SliceState
from tpu_operator.controllers.chipseconds import slice_chips
from tpu_operator.engine.metrics import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client.core import Metric

    from tpu_operator.controllers.chipseconds import ChipSeconds
    from tpu_operator.core.snapshot import Custom

NAMED: Final = ["namespace", "name"]


class JobMetrics(Collector):
    """Collects from the jobs that an informer holds.

    Args:
        jobs: the jobs, as they are now.
        spent: what they have cost.
        reports: whether this replica is the one to report.
    """

    def __init__(
        self, jobs: Callable[[], Iterable[Custom]], spent: ChipSeconds, reports: Callable[[], bool]
    ) -> None:
        self._jobs = jobs
        self._spent = spent
        self._reports = reports

    def collect(self) -> Iterable[Metric]:
        """All metrics, with the values of this moment."""
        reports = self._reports()
        jobs = list(self._jobs()) if reports else []
        yield _phases(jobs)
        yield _restarts(jobs)
        yield _pending(jobs, datetime.now(UTC))
        yield _chips(jobs)
        yield _chip_seconds(self._spent if reports else None)

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are known without collecting, and collecting needs an informer."""
        return []


def _labels(job: Custom) -> list[str]:
    return [job.metadata.namespace, job.metadata.name]


def _phases(jobs: Iterable[Custom]) -> Metric:
    family = GaugeMetricFamily(PREFIX + "job_phase", "1 for the phase of each job.", labels=[*NAMED, "phase"])
    for job in jobs:
        family.add_metric([*_labels(job), str(job.status.get("phase", Phase.PENDING))], 1)
    return family


def _restarts(jobs: Iterable[Custom]) -> Metric:
    family = CounterMetricFamily(PREFIX + "job_restarts", "Restarts of each job.", labels=[*NAMED, "cause"])
    for job in jobs:
        for cause, count in _at(job.status, "restarts", "byCause").items():
            family.add_metric([*_labels(job), cause], count)
    return family


def _pending(jobs: Iterable[Custom], now: datetime) -> Metric:
    family = GaugeMetricFamily(
        PREFIX + "job_pending_seconds",
        "How long each job has been waiting, and for what.",
        labels=[*NAMED, "reason"],
    )
    for job in jobs:
        pending = _at(job.status, "pending")
        if since := pending.get("since"):
            waited = (now - datetime.fromisoformat(since)).total_seconds()
            family.add_metric([*_labels(job), pending.get("reason", "")], max(0.0, waited))
    return family


def _chips(jobs: Iterable[Custom]) -> Metric:
    family = GaugeMetricFamily(
        PREFIX + "slice_chips", "Chips of all slices, by the state of the slice.", labels=["state"]
    )
    chips: Counter[str] = Counter({state.value: 0 for state in SliceState})
    for job in jobs:
        size = slice_chips(job)
        for each in job.status.get("slices", ()):
            chips[each.get("state", SliceState.PENDING)] += size
    for state, count in chips.items():
        family.add_metric([state], count)
    return family


def _chip_seconds(spent: ChipSeconds | None) -> Metric:
    family = CounterMetricFamily(
        PREFIX + "job_chip_seconds",
        "Chips of each job times seconds, by what they did.",
        labels=[*NAMED, "state"],
    )
    for key, state, seconds in spent.totals() if spent else ():
        family.add_metric([*key, state], seconds)
    return family


def _at(status: dict[str, Any], *path: str) -> dict[str, Any]:
    """An object inside a status, empty when it is not there."""
    found: Any = status
    for key in path:
        found = found.get(key, {}) if isinstance(found, dict) else {}
    return found if isinstance(found, dict) else {}

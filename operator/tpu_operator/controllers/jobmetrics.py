"""Metrics about TPUJobs (contract A6), read off their statuses at each scrape.

But for chip-seconds, nothing is kept that a restart would lose: what a counter counts is in the status of
the job. Only the leader reports, so that sums over replicas are right.
"""

from __future__ import annotations

import logging
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tpu_operator.api import Phase, SliceState
from tpu_operator.controllers.chipseconds import slice_chips
from tpu_operator.engine.clock import wall_clock
from tpu_operator.engine.metrics import METRIC_ERRORS, PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client.core import Metric

    from tpu_operator.controllers.chipseconds import ChipSeconds
    from tpu_operator.core.snapshot import Custom
    from tpu_operator.engine.clock import Clock
    from tpu_operator.engine.informer import Key

    Sample = tuple[Sequence[Any], Any]
    """Values of the labels, and the value."""

log = logging.getLogger(__name__)

NAMED: Final = ("namespace", "name")


class JobMetrics(Collector):
    """Collects from the jobs that an informer holds.

    Args:
        jobs: the jobs, as they are now.
        spent: what they have cost.
        reports: whether this replica is the one to report.
        clock: the time of day.
    """

    def __init__(
        self,
        jobs: Callable[[], Iterable[Custom]],
        spent: ChipSeconds,
        reports: Callable[[], bool],
        clock: Clock = wall_clock,
    ) -> None:
        self._clock = clock
        self._jobs = jobs
        self._spent = spent
        self._reports = reports

    def collect(self) -> Iterable[Metric]:
        """All metrics, with the values of this moment."""
        reports = self._reports()
        jobs = list(self._jobs()) if reports else []
        now = self._clock()
        for family, samples in (
            (_gauge("job_phase", "1 for the phase of each job.", *NAMED, "phase"), _phase),
            (_counter("job_restarts", "Restarts of each job.", *NAMED, "cause"), _restarts),
            (
                _gauge("job_pending_seconds", "How long each job waits, and for what.", *NAMED, "reason"),
                partial(_pending, now=now),
            ),
        ):
            for job in jobs:
                for labels, value in _each(job, samples):
                    family.add_metric([*_name(job), *labels], value)
            yield family
        yield _chips(jobs)
        yield _chip_seconds(self._spent.totals() if reports else ())

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are known without collecting, and collecting needs an informer."""
        return []


def _gauge(name: str, documentation: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, documentation, labels=labels)


def _counter(name: str, documentation: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, documentation, labels=labels)


def _name(job: Custom) -> tuple[str, str]:
    return job.metadata.namespace, job.metadata.name


def _each(job: Custom, samples: Callable[[Custom], Iterable[Sample]]) -> list[Sample]:
    """What a job has to tell; one whose status makes no sense must not take the metrics of all with it."""
    try:
        return [([str(label) for label in labels], float(value)) for labels, value in samples(job)]
    except Exception as error:  # noqa: BLE001 - a status is whatever somebody has stored
        METRIC_ERRORS.inc()
        log.warning("TPUJob %s/%s: no metrics from its status: %r", *_name(job), error)
        return []


def _phase(job: Custom) -> Iterator[Sample]:
    yield [job.status.get("phase", Phase.PENDING)], 1


def _restarts(job: Custom) -> Iterator[Sample]:
    for cause, count in _at(job.status, "restarts", "byCause").items():
        yield [cause], count


def _pending(job: Custom, now: datetime) -> Iterator[Sample]:
    pending = _at(job.status, "pending")
    if since := pending.get("since"):
        waited = (now - datetime.fromisoformat(since)).total_seconds()
        yield [pending.get("reason", "")], max(0.0, waited)


def _slices(job: Custom) -> Iterator[Sample]:
    size = slice_chips(job)
    for each in job.status.get("slices") or ():
        yield [each.get("state", SliceState.PENDING)], size


def _chips(jobs: Iterable[Custom]) -> Metric:
    family = _gauge("slice_chips", "Chips of all slices, by the state of the slice.", "state")
    chips = dict.fromkeys((state.value for state in SliceState), 0.0)
    for job in jobs:
        for (state,), size in _each(job, _slices):
            chips[state] = chips.get(state, 0.0) + size
    for state, count in chips.items():
        family.add_metric([state], count)
    return family


def _chip_seconds(totals: Iterable[tuple[Key, str, float]]) -> Metric:
    family = _counter(
        "job_chip_seconds", "Chips of each job times seconds, by what they did.", *NAMED, "state"
    )
    for key, state, seconds in totals:
        family.add_metric([*key, state], seconds)
    return family


def _at(status: dict[str, Any], *path: str) -> dict[str, Any]:
    """An object inside a status, empty when it is not there."""
    found: Any = status
    for key in path:
        found = found.get(key, {}) if isinstance(found, dict) else {}
    return found if isinstance(found, dict) else {}

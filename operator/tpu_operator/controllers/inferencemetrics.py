"""Metrics about TPUInferences (contract A6), read off their statuses at each scrape."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tpu_operator.engine.metrics import METRIC_ERRORS, PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client.core import Metric

    from tpu_operator.core.snapshot import Custom
    from tpu_operator.engine.clock import Clock

log = logging.getLogger(__name__)

NAMED: Final = ("namespace", "name")
Sample = tuple[list[str], float]


class InferenceMetrics(Collector):
    """Reports on every TPUInference.

    Args:
        inferences: returns them all.
        reports: whether this replica does; only one may, or sums would be wrong.
        clock: the time of day.
    """

    def __init__(
        self, inferences: Callable[[], Iterable[Custom]], reports: Callable[[], bool], clock: Clock
    ) -> None:
        self._inferences = inferences
        self._reports = reports
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """All metrics, with the values of this moment."""
        now = self._clock()
        families = (
            _gauge("inference_phase", "1 for the phase of each TPUInference.", "phase"),
            _gauge("inference_replicas", "Replicas of each role.", "role", "state"),
            _gauge("inference_rollout_step", "Ready replicas of the newest revision.", "role"),
            _gauge("inference_rollout_held_seconds", "How long a rollout has been held, and where.", "gate"),
        )
        samples = (_phase, _replicas, _step, lambda each: _held(each, now))
        for each in self._inferences() if self._reports() else ():
            meta = each.metadata
            for family, read in zip(families, samples, strict=True):
                for labels, value in _safely(each, read):
                    family.add_metric([meta.namespace, meta.name, *labels], value)
        return families

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are known without collecting, and collecting needs an informer."""
        return []


def _gauge(name: str, documentation: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, documentation, labels=(*NAMED, *labels))


def _safely(each: Custom, read: Callable[[Custom], Iterable[Sample]]) -> list[Sample]:
    """What an object has to tell; a status that makes no sense must not take the metrics of all with it."""
    try:
        return list(read(each))
    except Exception as error:  # noqa: BLE001 - a status is whatever somebody has stored
        METRIC_ERRORS.inc()
        meta = each.metadata
        log.warning("TPUInference %s/%s: no metrics from its status: %r", meta.namespace, meta.name, error)
        return []


def _phase(each: Custom) -> Iterator[Sample]:
    yield [str(each.status.get("phase", "Pending"))], 1.0


def _replicas(each: Custom) -> Iterator[Sample]:
    for role in each.status.get("roles") or ():
        for state in ("desired", "replicas", "ready", "updated", "available"):
            yield [str(role["name"]), state], float(role.get(state, 0))


def _step(each: Custom) -> Iterator[Sample]:
    """How far the newest revision has come; its name would be a new series with every rollout."""
    newest = each.status.get("updatedRevision")
    revisions: list[dict[str, Any]] = each.status.get("revisions") or []
    for revision in revisions:
        if revision.get("name") == newest:
            for role in revision.get("roles") or ():
                yield [str(role["name"])], float(role.get("ready", 0))


def _held(each: Custom, now: datetime) -> Iterator[Sample]:
    hold = (each.status.get("rollout") or {}).get("hold") or {}
    if since := hold.get("since"):
        waited = (now - datetime.fromisoformat(since)).total_seconds()
        yield [str(hold.get("gate", ""))], max(0.0, waited)

"""What there is to ask Prometheus for: the metrics of the operator and of the launcher, with their labels."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from tests.builders import NOW, stamp
from tpu_operator.api import BlockedReason, Cause, HoldGate, InferencePhase, Phase, SliceState
from tpu_operator.controllers.chipseconds import SPARES, STATES, ChipSeconds
from tpu_operator.controllers.inferencemetrics import InferenceMetrics
from tpu_operator.controllers.jobmetrics import JobMetrics
from tpu_operator.core.snapshot import Custom
from tpu_operator.engine import metrics
from tpu_runtime.health import Health

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.core import Metric

    from tpu_runtime.processes import Group

Exposed = dict[str, frozenset[str]]
"""Labels of the samples of each name."""

TARGET: Final = frozenset({"namespace", "pod", "job", "instance", "container", "endpoint"})
"""Labels that Prometheus adds to all that it scrapes from a pod."""
PREFIX: Final = metrics.PREFIX
VALUES: Final[dict[tuple[str, str], frozenset[str]]] = {
    (f"{PREFIX}job_phase", "phase"): frozenset(Phase),
    (f"{PREFIX}job_pending_seconds", "reason"): frozenset(BlockedReason),
    (f"{PREFIX}job_restarts_total", "cause"): frozenset(Cause),
    (f"{PREFIX}gang_restart_seconds_bucket", "cause"): frozenset(Cause),
    (f"{PREFIX}slice_chips", "state"): frozenset(SliceState),
    (f"{PREFIX}job_chip_seconds_total", "state"): frozenset({*STATES.values(), *SPARES.values()}),
    (f"{PREFIX}inference_phase", "phase"): frozenset(InferencePhase),
    (f"{PREFIX}inference_rollout_held_seconds", "gate"): frozenset(HoldGate),
    (f"{PREFIX}inference_replicas", "state"): frozenset(
        {"desired", "replicas", "ready", "updated", "available"}
    ),
}
"""What labels can say, where that is a closed set."""

SUFFIXES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "gauge": {"": ()},
    "counter": {"_total": ()},
    "histogram": {"_bucket": ("le",), "_sum": (), "_count": ()},
}
SINCE: Final = stamp(NOW - timedelta(minutes=1))
JOB: Final[dict[str, Any]] = {
    "metadata": {"name": "train", "namespace": "team", "uid": "1"},
    "spec": {"tpu": {"accelerator": "v5e", "topology": "4x4"}},
    "status": {
        "phase": "Restarting",
        "restarts": {"byCause": {"TPUFault": 1}},
        "slices": [{"index": 0, "state": "Restarting"}],
        "pending": {"reason": "CapacityInUse", "since": SINCE},
    },
}
INFERENCE: Final[dict[str, Any]] = {
    "metadata": {"name": "qwen", "namespace": "team", "uid": "2"},
    "status": {
        "phase": "Rolling",
        "updatedRevision": "new",
        "revisions": [{"name": "new", "roles": [{"name": "decode", "ready": 1}]}],
        "roles": [{"name": "decode", "desired": 4}],
        "rollout": {"hold": {"gate": "Capacity", "since": SINCE}},
    },
}


@cache
def everything() -> Exposed:
    """All names, those of target labels included."""
    samples = [*_declared(), *_samples(_collected()), *_samples(_launcher())]
    return {name: frozenset(labels) | TARGET for name, labels in samples}


def _declared() -> Iterator[tuple[str, Iterable[str]]]:
    """Metrics that the operator counts by itself, also those that have no sample before something happens."""
    for metric in (*vars(metrics).values(), *metrics.OBSERVED.values()):
        if isinstance(metric, MetricWrapperBase):
            (family,) = metric.describe()
            for suffix, more in SUFFIXES[family.type].items():
                yield family.name + suffix, (*metric._labelnames, *more)


def _collected() -> Iterator[Metric]:
    """Metrics that are read off statuses."""
    job, inference = (
        msgspec.json.decode(msgspec.json.encode(each), type=Custom) for each in (JOB, INFERENCE)
    )
    spent = ChipSeconds(lambda: NOW)
    spent.start([job])
    yield from JobMetrics(lambda: [job], spent, lambda: True, lambda: NOW).collect()
    yield from InferenceMetrics(lambda: [inference], lambda: True, lambda: NOW).collect()


def _launcher() -> Iterator[Metric]:
    group = cast("Group", SimpleNamespace(running=[], last_output=time.monotonic()))
    loop = asyncio.new_event_loop()
    text = loop.run_until_complete(Health(None, time.monotonic(), group)._metrics()).body.decode()
    loop.close()
    yield from text_string_to_metric_families(text)


def _samples(families: Iterable[Metric]) -> Iterator[tuple[str, Iterable[str]]]:
    for family in families:
        assert family.samples, f"{family.name}: the example above has nothing for it"
        for sample in family.samples:
            yield sample.name, sample.labels

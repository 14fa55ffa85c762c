"""What jobs have cost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.builders import NOW
from tpu_operator.controllers.chipseconds import ChipSeconds
from tpu_operator.controllers.jobmetrics import JobMetrics
from tpu_operator.core.snapshot import Custom

KEY = ("default", "train")


@dataclass
class Ledger:
    """Accounts, and a clock that the test moves."""

    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.accounts = ChipSeconds(lambda: NOW + timedelta(seconds=self.seconds))
        self.accounts.start([])

    def spent(self) -> dict[str, float]:
        return {state: seconds for _, state, seconds in self.accounts.totals()}

    def see(self, *states: str, uid: str = "u", **status: Any) -> None:
        slices = [{"index": index, "state": state} for index, state in enumerate(states)]
        self.accounts.update(KEY, job(uid, slices=slices, **status))


def job(uid: str = "u", topology: Any = "4x4", **status: Any) -> Custom:
    """A job of slices with 16 chips."""
    wire = {
        "metadata": {"name": "train", "namespace": "default", "uid": uid},
        "spec": {"tpu": {"accelerator": "v5e", "topology": topology}},
        "status": status,
    }
    return msgspec.json.decode(msgspec.json.encode(wire), type=Custom)


def with_spec(item: Custom, spec: Any) -> Custom:
    return msgspec.structs.replace(item, spec=msgspec.Raw(msgspec.json.encode(spec)))


def test_chips_times_seconds_by_state() -> None:
    ledger = Ledger()
    ledger.see("Pending")
    ledger.seconds = 10
    ledger.see("Running")
    ledger.seconds = 25
    assert ledger.spent() == {"pending": 160, "running": 240}
    assert ledger.spent() == {"pending": 160, "running": 240}, "a scrape adds nothing"


@pytest.mark.parametrize(
    ("spec", "slices"),
    [
        ({"tpu": None}, [{"index": 0, "state": "Running"}]),
        ({}, [None]),
        ({}, [{"index": None, "state": "Running"}]),
        ({}, [{"index": 0, "state": ["Running"]}]),
        ({}, 5),
    ],
)
def test_a_job_that_makes_no_sense_keeps_nobody_from_counting(spec: Any, slices: Any) -> None:
    """It was stored while the CRD was another one."""
    odd = msgspec.structs.replace(with_spec(job("odd"), spec), status={"slices": slices})
    ledger = Ledger()
    ledger.accounts.start([odd, job(slices=[{"index": 0, "state": "Running"}])])
    ledger.seconds = 10
    assert ledger.spent() == {"running": 160}


def test_slices_that_are_done_wait_for_the_others() -> None:
    ledger = Ledger()
    ledger.see("Succeeded", "Restarting", "Starting")
    ledger.seconds = 1
    assert ledger.spent() == {"idle": 16, "restarting": 16, "starting": 16}


@pytest.mark.parametrize("state", ["Suspended", "Failed"])
def test_what_holds_no_chips_costs_nothing(state: str) -> None:
    ledger = Ledger()
    ledger.see(state)
    ledger.seconds = 5
    assert ledger.spent() == {}


def test_spares_are_idle_where_they_hold_nodes() -> None:
    ledger = Ledger()
    states = ["Running", "Spare", "Starting", "Pending", "Suspended"]
    slices = [{"index": index, "state": state} for index, state in enumerate(states)]
    wire = job(slices=slices)
    ledger.accounts.update(KEY, with_spec(wire, {"tpu": wire.tpu | {"spareSlices": 4}}))
    ledger.seconds = 1
    assert ledger.spent() == {"running": 16, "idle": 32}


def test_a_finished_job_costs_nothing_more() -> None:
    ledger = Ledger()
    ledger.see("Running")
    ledger.seconds = 1
    ledger.see("Succeeded", completionTime="2026-11-30T12:00:01Z")
    ledger.seconds = 100
    assert ledger.spent() == {"running": 16}


def test_a_job_of_the_same_name_starts_anew() -> None:
    ledger = Ledger()
    ledger.see("Running")
    ledger.seconds = 1
    ledger.see("Pending", uid="v")
    ledger.seconds = 2
    assert ledger.spent() == {"pending": 16}
    ledger.accounts.update(KEY, None)
    assert ledger.spent() == {}


def test_a_clock_that_goes_back() -> None:
    ledger = Ledger(seconds=10)
    ledger.see("Running")
    ledger.seconds = 5
    assert ledger.spent() == {"running": 0}
    ledger.seconds = 12
    assert ledger.spent() == {"running": 32}


def test_the_last_value_of_a_job_that_is_over_can_be_had_for_an_hour() -> None:
    ledger = Ledger()
    ledger.see("Running")
    ledger.seconds = 1
    ledger.see("Succeeded", completionTime="2026-11-30T12:00:01Z")
    ledger.seconds = 3601
    ledger.see("Succeeded", completionTime="2026-11-30T12:00:01Z")
    assert ledger.spent() == {"running": 16}
    ledger.seconds = 3602
    assert ledger.spent() == {}


def test_jobs_that_were_over_already_have_no_account() -> None:
    ledger = Ledger()
    ledger.see("Succeeded", completionTime="2026-11-30T12:00:01Z")
    assert not ledger.accounts._accounts


def test_each_leader_counts_its_own_time() -> None:
    """What another leader has counted meanwhile must not be counted again."""
    ledger = Ledger()
    ledger.see("Running")
    ledger.seconds = 10
    ledger.accounts.stop()
    ledger.seconds = 100
    ledger.see("Running")
    assert ledger.spent() == {}
    ledger.accounts.start([job(slices=[{"index": 0, "state": "Running"}])])
    assert ledger.spent() == {"running": 0}
    ledger.seconds = 101
    assert ledger.spent() == {"running": 16}


@pytest.mark.parametrize("topology", ["nonsense", None, 4, {}, []])
def test_a_shape_that_the_catalog_does_not_know(topology: Any) -> None:
    ledger = Ledger()
    ledger.accounts.update(KEY, job(topology=topology, slices=[{"index": 0, "state": "Running"}]))
    ledger.seconds = 1
    assert ledger.spent() == {"running": 0}


@pytest.mark.parametrize("leads", [True, False])
def test_only_the_leader_reports_it(leads: bool) -> None:
    ledger = Ledger()
    ledger.see("Running")
    ledger.seconds = 1
    metrics = JobMetrics(list, ledger.accounts, lambda: leads).collect()
    samples = [s for m in metrics if m.name == "tpu_operator_job_chip_seconds" for s in m.samples]
    labels = {"namespace": "default", "name": "train", "state": "running"}
    assert [(s.name, s.labels, s.value) for s in samples] == (
        [("tpu_operator_job_chip_seconds_total", labels, 16)] if leads else []
    )


ODD = [
    {"pending": {"since": "yesterday"}},
    {"pending": {"since": 7}},
    {"pending": {"since": "2026-11-30T12:00:00"}},
    {"pending": []},
    {"restarts": {"byCause": {"UserError": "many"}}},
    {"restarts": None},
    {"slices": [None]},
    {"slices": 4},
    {"slices": [{"state": []}]},
]


@pytest.mark.parametrize("status", ODD, ids=str)
def test_a_status_that_makes_no_sense_takes_no_other_jobs_metrics_with_it(status: dict[str, Any]) -> None:
    good = {"phase": "Running", "restarts": {"byCause": {"UserError": 2}}, "slices": [{"state": "Running"}]}
    pending = {"since": "2026-11-30T11:59:00Z", "reason": "CapacityInUse"}
    jobs = [job("odd", **status), job("good", **good, pending=pending)]
    registry = CollectorRegistry()
    registry.register(JobMetrics(lambda: jobs, Ledger().accounts, lambda: True, lambda: NOW))
    text = generate_latest(registry).decode()
    assert 'tpu_operator_job_phase{name="train",namespace="default",phase="Running"} 1.0' in text
    assert 'cause="UserError",name="train",namespace="default"} 2.0' in text
    assert 'reason="CapacityInUse"} 60.0' in text
    assert 'tpu_operator_slice_chips{state="Running"} 16.0' in text

"""Each alert, fired by Prometheus' own engine, and silent when it should be."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from promql_parser import VectorSelector, parse

from tests.unit.chart.exposed import everything
from tests.unit.chart.rendering import CHART

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RULES = CHART / "files" / "alerts.yaml"
P = "tpu_operator_"

Series = dict[str, str]
"""Values a minute apart by selector, in promtool's shorthand: `3+2x4` is 3, 5, 7, 9, 11."""


@dataclass(frozen=True)
class Story:
    """What Prometheus has seen, and when an alert is looked for.

    Attributes:
        alert: which.
        minutes: when.
        series: what Prometheus has scraped by then.
        fires: labels of the alerts that are to fire, by which they differ.
    """

    alert: str
    minutes: int
    series: Series
    fires: list[Mapping[str, str]] = field(default_factory=list)


def pending(reason: str, start: int) -> Series:
    name = f'{P}job_pending_seconds{{namespace="a", name="j", reason="{reason}"}}'
    return {name: f"{start}+60x20"}


def replicas(desired: int, available: int) -> Series:
    labels = 'namespace="a", name="q", role="decode"'
    return {
        f'{P}inference_replicas{{{labels}, state="desired"}}': f"{desired}x40",
        f'{P}inference_replicas{{{labels}, state="available"}}': f"{available}x40",
    }


def answers(**rates: int) -> Series:
    return {
        f'{P}api_requests_total{{verb="GET", resource="pods", code="{code[1:]}"}}': f"0+{rate}x40"
        for code, rate in rates.items()
    }


def chips(restarting: int, running: int) -> Series:
    labels = 'namespace="a", name="j"'
    return {
        f'{P}job_chip_seconds_total{{{labels}, state="restarting"}}': f"0+{restarting}x130",
        f'{P}job_chip_seconds_total{{{labels}, state="running"}}': f"0+{running}x130",
        f'{P}job_chip_seconds_total{{{labels}, state="pending"}}': "0+900x130",
    }


JOB = {"namespace": "a", "name": "j"}
RESTARTS = f'{P}job_restarts_total{{namespace="a", name="j", cause="%s"}}'
FORBIDDEN = f'{P}api_requests_total{{verb="POST", resource="%s", code="403"}}'

STORIES = [
    Story("TPUOperatorNoLeader", 5, {f'{P}leader{{pod="x"}}': "1x10", f'{P}leader{{pod="y"}}': "0x10"}),
    Story("TPUOperatorNoLeader", 5, {f'{P}leader{{pod="x"}}': "0x10", f'{P}leader{{pod="y"}}': "0x10"}, [{}]),
    Story("TPUOperatorNoLeader", 5, {}, [{}]),
    Story("TPUOperatorNoLeader", 5, {f'{P}leader{{pod="x"}}': "1 1 1 0 1 1"}),
    Story("TPUOperatorWatchSilent", 10, {f'{P}watch_age_seconds{{resource="pods", pod="x"}}': "55x20"}),
    Story(
        "TPUOperatorWatchSilent",
        10,
        {f'{P}watch_age_seconds{{resource="pods", pod="x"}}': "100+60x20"},
        [{"resource": "pods", "pod": "x"}],
    ),
    Story("TPUOperatorReconcileErrors", 30, {f'{P}reconcile_errors_total{{kind="TPUJob"}}': "0+1x40"}),
    Story(
        "TPUOperatorReconcileErrors",
        30,
        {f'{P}reconcile_errors_total{{kind="TPUJob"}}': "0+6x40"},
        [{"kind": "TPUJob"}],
    ),
    Story("TPUOperatorQueueStuck", 8, {f'{P}queue_oldest_seconds{{queue="TPUJob"}}': "2x10"}),
    Story(
        "TPUOperatorQueueStuck",
        8,
        {f'{P}queue_oldest_seconds{{queue="TPUJob"}}': "61x10"},
        [{"queue": "TPUJob"}],
    ),
    Story("TPUOperatorAPIErrors", 30, answers(c200=95, c404=50, c409=50, c500=5)),
    Story("TPUOperatorAPIErrors", 30, answers(c200=80, c429=10, c503=5, c0=5), [{}]),
    Story("TPUOperatorForbidden", 30, {FORBIDDEN % "pods": "0+5x40"}),
    Story(
        "TPUOperatorForbidden",
        30,
        {FORBIDDEN % "services": "0+5x40"},
        [{"verb": "POST", "resource": "services"}],
    ),
    Story("TPUOperatorLoopLags", 8, {f'{P}loop_lag_seconds{{pod="x"}}': "1 8 1 1 8 1 1 1 1"}),
    Story("TPUOperatorLoopLags", 8, {f'{P}loop_lag_seconds{{pod="x"}}': "6x10"}, [{"pod": "x"}]),
    Story("TPUOperatorBug", 10, {f"{P}metric_errors_total": "7x20"}),
    Story("TPUOperatorBug", 10, {f"{P}metric_errors_total": "0 0 1x20"}, [{}]),
    Story("TPUOperatorBug", 10, {f'{P}listener_errors_total{{resource="pods"}}': "1 1 2x20"}, [{}]),
    Story("TPUJobNeedsAttention", 1, pending("CreateRefused", 60)),
    Story("TPUJobNeedsAttention", 9, pending("QuotaExceeded", 60)),
    Story("TPUJobNeedsAttention", 9, pending("CreateRefused", 60), [JOB | {"reason": "CreateRefused"}]),
    Story("TPUJobWaitsForCapacity", 9, pending("AwaitingAdmission", 9000)),
    Story("TPUJobWaitsForCapacity", 9, pending("CapacityInUse", 2000)),
    Story("TPUJobWaitsForCapacity", 9, pending("CapacityInUse", 3200), [JOB | {"reason": "CapacityInUse"}]),
    Story("TPUJobOldPodsStay", 9, pending("WaitingForOldPods", 60)),
    Story("TPUJobOldPodsStay", 9, pending("WaitingForOldPods", 800), [JOB]),
    Story("TPUJobRestartsOften", 60, {RESTARTS % "Preempted": "1x30 2x40"}),
    Story("TPUJobRestartsOften", 60, {RESTARTS % "UserError": "1+1x5 6x60"}, [JOB]),
    Story("TPUFaults", 60, {RESTARTS % "TPUFault": "1x70"}),
    Story("TPUFaults", 60, {RESTARTS % "Preempted": "1x10 2x60"}),
    Story("TPUFaults", 60, {RESTARTS % "TPUFault": "1x10 2x60"}, [JOB]),
    Story("TPUChipsLostToRestarts", 125, chips(restarting=10, running=90)),
    Story("TPUChipsLostToRestarts", 125, chips(restarting=40, running=60), [{}]),
    Story(
        "TPUInferenceUnavailable",
        5,
        {f'{P}inference_phase{{namespace="a", name="q", phase="Degraded"}}': "1x10"},
    ),
    Story(
        "TPUInferenceUnavailable",
        5,
        {f'{P}inference_phase{{namespace="a", name="q", phase="Unavailable"}}': "1x10"},
        [{"namespace": "a", "name": "q"}],
    ),
    Story("TPUInferenceShort", 35, replicas(4, 4)),
    Story("TPUInferenceShort", 20, replicas(4, 3)),
    Story("TPUInferenceShort", 35, replicas(4, 3), [{"namespace": "a", "name": "q", "role": "decode"}]),
    Story(
        "TPUInferenceRolloutHeld",
        5,
        {f'{P}inference_rollout_held_seconds{{namespace="a", name="q", gate="Pause"}}': "9000x10"},
    ),
    Story(
        "TPUInferenceRolloutHeld",
        5,
        {f'{P}inference_rollout_held_seconds{{namespace="a", name="q", gate="Capacity"}}': "1801x10"},
        [{"namespace": "a", "name": "q", "gate": "Capacity"}],
    ),
]


def severity(alert: str) -> str:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    (found,) = (
        rule["labels"]["severity"] for group in groups for rule in group["rules"] if rule["alert"] == alert
    )
    return str(found)


def case(number: int, story: Story) -> dict[str, Any]:
    """A story as promtool takes it."""
    common = {"alertname": story.alert, "alertstate": "firing", "severity": severity(story.alert)}
    fires = [common | dict(labels) for labels in story.fires]
    return {
        "name": f"{story.alert} {number}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in story.series.items()],
        "promql_expr_test": [
            {
                "expr": f'ALERTS{{alertname="{story.alert}", alertstate="firing"}}',
                "eval_time": f"{story.minutes}m",
                "exp_samples": [{"labels": _selector("ALERTS", labels), "value": 1} for labels in fires],
            }
        ],
    }


def _selector(name: str, labels: Mapping[str, str]) -> str:
    return f"{name}{{{', '.join(f'{key}={value!r}' for key, value in labels.items())}}}".replace("'", '"')


def promtool(prometheus: Path, tmp_path: Path, stories: list[Story]) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "stories.yaml"
    tests = [case(number, story) for number, story in enumerate(stories)]
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    command: list[str | Path] = [prometheus, "test", "rules", file]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_each_alert_fires_when_it_should(prometheus: Path, tmp_path: Path) -> None:
    done = promtool(prometheus, tmp_path, STORIES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_alert_that_does_not_fire_would_be_noticed(prometheus: Path, tmp_path: Path) -> None:
    done = promtool(prometheus, tmp_path, [Story("TPUFaults", 60, {RESTARTS % "TPUFault": "1x70"}, [JOB])])
    assert done.returncode != 0
    assert "TPUFaults" in done.stdout + done.stderr


def test_every_alert_has_a_story_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    alerts = {
        rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    }
    assert {story.alert for story in STORIES if story.fires} == alerts
    assert {story.alert for story in STORIES if not story.fires} == alerts


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.alert)
def test_stories_are_made_of_what_is_exposed(story: Story) -> None:
    exposed = everything()
    for series in story.series:
        selector = parse(series)
        assert isinstance(selector, VectorSelector)
        assert {matcher.name for matcher in selector.matchers.matchers} <= exposed[selector.name or ""]


def test_rules_are_as_prometheus_wants_them(prometheus: Path) -> None:
    done = subprocess.run([prometheus, "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

"""The parts of the benchmark that need no cluster, so that it does not rot between runs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.bench import report, usage
from tests.bench.__main__ import main
from tests.bench.gangs import GANGS
from tests.bench.limits import verdicts
from tests.bench.results import Results
from tests.bench.usage import AuditLog

if TYPE_CHECKING:
    from pathlib import Path


def entry(
    agent: str, verb: str, resource: str, subresource: str = "", stage: str = "ResponseComplete"
) -> str:
    ref = {"resource": resource, "subresource": subresource}
    line = {"stage": stage, "verb": verb, "userAgent": agent, "objectRef": ref}
    return json.dumps(line, separators=(",", ":")) + "\n"


@pytest.fixture
def results() -> Results:
    made = Results()
    for floor, ours in ((1.0, 1.2), (1.1, 1.4), (1.2, 1.3)):
        made.add("create-256", "floor", "raised", {"ready": floor, "writes": 257})
        made.add("create-256", "tpu-operator", "raised", {"ready": ours, "writes": 262, "rss": 80})
    return made


@pytest.mark.parametrize("hosts", GANGS)
def test_a_gang_has_a_node_for_every_pod(hosts: int) -> None:
    gang = GANGS[hosts]
    nodes = list(gang.nodes())
    assert len(gang.pods) == len(nodes) == hosts
    assert [child["kind"] for child in gang.others].count("Service") == 1
    selector = gang.pods[0]["spec"]["nodeSelector"]
    assert all(selector.items() <= node["metadata"]["labels"].items() for node in nodes)


def test_calls_are_counted_by_client(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_text(entry("tpu-operator", "create", "pods"))
    log = AuditLog(path)
    mark = log.mark()
    with path.open("a") as lines:
        lines.write(entry("tpu-operator", "create", "pods"))
        lines.write(entry("tpu-operator", "patch", "tpujobs", "status"))
        lines.write(entry("tpu-operator", "update", "leases"))
        lines.write(entry("tpu-operator", "watch", "pods", stage="ResponseStarted"))
        lines.write(entry("tpu-operator", "watch", "pods"))
        lines.write(entry("floor", "create", "pods"))
    # The server renames a full file and begins another.
    path.rename(tmp_path / "audit-2026.log")
    path.write_text(entry("tpu-operator", "delete", "pods"))
    counted = log.calls(mark, "tpu-operator")
    assert counted == {"create pods": 1, "patch tpujobs/status": 1, "watch pods": 1, "delete pods": 1}
    assert usage.writes(counted) == 3


def test_use_of_a_process_is_read() -> None:
    assert usage.cpu_seconds(os.getpid()) > 0
    assert 10 < usage.rss_mib(os.getpid()) < 10_000


def test_results_survive_a_file(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results.save(path)
    rows = {(row["subject"], row["metric"]): row for row in json.loads(path.read_text())}
    assert rows["tpu-operator", "ready"]["median"] == 1.3
    assert rows["tpu-operator", "ready"]["runs"] == [1.2, 1.4, 1.3]
    assert rows["tpu-operator", "rss"]["unit"] == "MiB"
    assert Results.load(path).runs == results.runs


def test_what_is_measured_anew_replaces_what_was(results: Results) -> None:
    anew = Results()
    anew.add("create-256", "floor", "raised", {"ready": 9.0})
    merged = results.replace(anew)
    assert merged.median("create-256", "floor", "raised", "ready") == 9.0
    assert merged.median("create-256", "floor", "raised", "writes") is None
    assert merged.median("create-256", "tpu-operator", "raised", "ready") == 1.3


def test_limits_are_compared_with_the_floor(results: Results) -> None:
    found = {(v.limit.metric, v.limit.scenario): v for v in verdicts(results)}
    ratio = found["ready", "create-256"]
    assert ratio.measured == pytest.approx(1.3 / 1.1)
    assert ratio.kept
    assert not found["writes", "create-256"].kept


def test_the_report_replaces_its_part_of_the_document(results: Results, tmp_path: Path) -> None:
    results.save(tmp_path / "results.json")
    readme = tmp_path / "README.md"
    readme.write_text(f"# Before\n\n{report.BEGIN}\nold\n{report.END}\n\nafter\n")
    assert main(["--report-only", "--output", str(tmp_path)]) == 0
    text = readme.read_text()
    assert "old" not in text
    assert text.startswith("# Before\n")
    assert text.endswith("\n\nafter\n")
    assert "| create-256 | raised | 1.1 (1.00 x) | 1.3 (1.18 x) |" in text
    assert "<svg" in (tmp_path / "ready.svg").read_text()

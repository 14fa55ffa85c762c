"""The parts of the benchmark that need no cluster, so that it does not rot between runs."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, cast

import pytest

from tests.bench import report, usage
from tests.bench.__main__ import main
from tests.bench.gangs import GANGS
from tests.bench.limits import verdicts
from tests.bench.peers import JobSet, KubeRay, Lws, Peer
from tests.bench.results import Results
from tests.bench.usage import AuditLog
from tests.bench.watch import PodWatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.bench.http import Http, Object
    from tests.bench.lab import Lab


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


class Tables:
    """A server that shows pods as tables; each watch ends after its events."""

    def __init__(self) -> None:
        self.lists = [
            [pod("a", 1, "1/1", "Running"), pod("b", 2, "0/1", "Error")],
            # By the time of the second list `b` has been made again.
            [pod("a", 1, "1/1", "Running"), pod("b", 3, "0/1", "Pending", node="<none>")],
        ]
        self.events = [
            [{"type": "ADDED", "object": {"rows": [pod("c", 4, "0/1", "Pending")]}}],
            [{"type": "DELETED", "object": {"rows": [pod("a", 1, "1/1", "Running")]}}],
        ]

    async def table(self, path: str) -> Object:
        titles = [{"name": title} for title in ("Name", "Ready", "Status", "Node")]
        return {
            "columnDefinitions": titles,
            "metadata": {"resourceVersion": "1"},
            "rows": self.lists.pop(0),
        }

    async def watch(self, path: str, version: str) -> AsyncIterator[Object]:
        for event in self.events.pop(0):
            yield event
        if not self.events:
            await asyncio.Event().wait()


def pod(name: str, uid: int, ready: str, status: str, node: str = "node") -> Object:
    return {"cells": [name, ready, status, node], "object": {"metadata": {"name": name, "uid": str(uid)}}}


async def test_the_stopwatch_misses_nothing_when_the_server_closes_its_watch() -> None:
    async with PodWatch(cast("Http", Tables()), "bench") as watch:
        assert (watch.ready, watch.failed) == ({"a"}, {"b"})
        await watch.until(lambda: watch.gone == {"a", "b"}, "both to be gone", patience=5)
        assert watch.pods == {"b"}
        assert not watch.scheduled
        with pytest.raises(RuntimeError, match="waited 0 s for more; 1 pods, 0 scheduled, 0 ready"):
            await watch.until(lambda: bool(watch.ready), "more", patience=0.01)


@pytest.mark.parametrize("peer", [JobSet, Lws, KubeRay])
def test_a_peer_gets_the_pods_that_the_operator_makes(peer: type[Peer]) -> None:
    gang = GANGS[256]
    text = json.dumps(peer(cast("Lab", None)).manifest(gang))
    assert json.dumps(gang.pods[0]["spec"]["containers"][0]["env"]) in text
    assert json.dumps(gang.pods[0]["spec"]["nodeSelector"]) in text
    assert gang.pods[0]["spec"]["hostname"] == "gang-256-0-0"
    assert '"hostname"' not in text

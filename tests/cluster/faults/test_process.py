"""Outages as a whole process lives through them, some of them made by the real API server and etcd."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.cluster.faults import proxy
from tests.cluster.faults.lab import Process
from tests.cluster.faults.proxy import Rule
from tests.cluster.faults.scenarios import SCENARIOS, case
from tests.kube import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hack.devcluster import Cluster
    from tests.cluster.faults.lab import Lab
    from tests.cluster.faults.scenarios import Case, Oracle

COMPACT = """
import json, urllib.request

def ask(path, **body):
    url = "http://127.0.0.1:2379/v3/kv/" + path
    with urllib.request.urlopen(url, json.dumps(body).encode()) as answer:
        return json.load(answer)

ask("compaction", revision=ask("range", key="AA==")["header"]["revision"], physical=True)
"""


@contextmanager
def running(lab: Lab, scenario: str, directory: Path, *arguments: str) -> Iterator[tuple[Case, Process]]:
    """A case at the beginning of a scenario, and the process that leads there."""
    with lab.within(case(lab)) as job:
        lab.run(job.free_lease())
        process = Process(lab, job.namespace, directory, *arguments)
        job.replicas.append(process)
        process.operator.start()
        lab.run(SCENARIOS[scenario].prepare(job))
        yield job, process


def calls(process: Process, verb: str, resource: str) -> int:
    return sum((call.verb, call.resource) == (verb, resource) for call in process.proxy.calls)


@contextmanager
def without_server(cluster: Cluster) -> Iterator[None]:
    """The API server is down meanwhile.

    The scheduler is as well: it ends by itself, where nobody starts it again, when it finds a pod of the same
    name on another node after an outage.
    """
    for component in ("kube-scheduler", "kube-apiserver"):
        cluster.stop_component(component)
    try:
        yield
    finally:
        for component in ("kube-apiserver", "kube-scheduler"):
            cluster.start_component(component)


def test_the_api_server_restarts(lab: Lab, oracle: Oracle, control_plane: Cluster, tmp_path: Path) -> None:
    end = lab.run(oracle.end("restart"))
    with running(lab, "restart", tmp_path) as (job, process):
        before = calls(process, "watch", "pods")
        with without_server(control_plane):
            wait_for(lambda: calls(process, "watch", "pods") >= before + 3, "tries to reach the API server")
            assert process.operator.http(process.operator.health_port, "/healthz")[0] == 200
        lab.run(job.end_pod(1, exit_code=3))
        lab.run(job.settles(end))


def test_history_is_compacted_while_nobody_watches(
    lab: Lab, oracle: Oracle, control_plane: Cluster, tmp_path: Path
) -> None:
    """The deletion of a pod is not in the history any more when the operator is back."""
    end = lab.run(oracle.end("lost-pod"))
    with running(lab, "lost-pod", tmp_path) as (job, process):
        listed = calls(process, "list", "pods")
        lab.run(process.proxy.refuse())
        lab.run(job.api.delete(job.pod_path(0), gracePeriodSeconds=0))
        control_plane.run_in_netns([sys.executable, "-c", COMPACT], check=True)
        with without_server(control_plane):
            pass  # so that it forgets what it has cached of the history
        lab.run(process.proxy.accept())
        lab.run(job.settles(end))
        assert calls(process, "list", "pods") > listed


def test_it_starts_while_there_is_no_server(lab: Lab, oracle: Oracle, tmp_path: Path) -> None:
    end = lab.run(oracle.end("create"))
    with lab.within(case(lab)) as job:
        lab.run(job.free_lease())
        process = Process(lab, job.namespace, tmp_path)
        job.replicas.append(process)
        away = Rule(proxy.lose_request, times=12)
        process.proxy.rules = [away]
        process.operator.start()
        assert len(away.hits) == 12
        lab.run(job.create())
        lab.run(job.settles(end))


def test_silent_watches_fail_the_liveness_probe(lab: Lab, tmp_path: Path) -> None:
    """And only they do, and only while they are silent."""
    with running(lab, "restart", tmp_path, "--silent-after=4") as (_, process):
        talking = lab.submit(keep_talking(process))
        since = time.monotonic()
        wait_for(lambda: health(process) != 200 or time.monotonic() > since + 10, "ten good seconds")
        assert health(process) == 200
        talking.cancel()
        process.proxy.freeze()
        wait_for(lambda: health(process) == 500, "the probe to fail")
        process.proxy.thaw()
        talking = lab.submit(keep_talking(process))
        wait_for(lambda: health(process) == 200, "the probe to pass again")
        talking.cancel()


def health(process: Process) -> int:
    return process.operator.http(process.operator.health_port, "/healthz")[0]


async def keep_talking(process: Process) -> None:
    """Say that nothing has happened, more often than the server does."""
    while True:
        for watch in process.proxy.watches:
            await watch.bookmark()
        await asyncio.sleep(0.5)

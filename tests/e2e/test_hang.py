"""A program that hangs, on real kubelets: where it stands is told before the job starts again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.e2e.kube import Kube, python, wait_for

if TYPE_CHECKING:
    from pathlib import Path

HANGS = """
import os, time
from tpu_runtime import heartbeat

def waits_for_a_peer():
    print("waiting", flush=True)
    time.sleep(3600)

heartbeat()
if os.environ["TPU_OPERATOR_ATTEMPT"] == "0":
    waits_for_a_peer()
"""
HOSTS, PROCESSES = 4, 2


def test_stacks_of_all_processes_of_all_hosts_are_in_the_log_before_the_restart(
    kube: Kube, tmp_path: Path
) -> None:
    env = [{"name": "TPU_LAUNCH_HANG_SECONDS", "value": "5"}]
    kube.apply(python("hangs", HANGS, run={"env": env, "processesPerHost": PROCESSES}))
    kube.wait_phase("hangs", "Running")
    log = tmp_path / "log"
    of_all = ["--selector=tpu-operator.dev/job=hangs", "--container=main", "--prefix", "--tail=-1"]
    with kube.recorded(log, "logs", "--follow", *of_all):
        status = kube.finish("hangs")
        wait_for(
            "the log of the first attempt is over", lambda: log.read_text().count("exit code 77: ") == HOSTS
        )
    assert status["phase"] == "Succeeded", status
    assert (status["restarts"]["total"], status["restarts"]["byCause"]) == (1, {"Hang": 1}), status
    failure = status["lastFailure"]
    assert (failure["cause"], failure["exitCode"]) == ("Hang", 77), failure
    lines = log.read_text().splitlines()
    for host in range(HOSTS):
        for process in range(PROCESSES):
            said = [line for line in lines if f"hangs-0-{host}/" in line and f" [{process}] " in line]
            assert sum("in waits_for_a_peer" in line for line in said) == 1, said

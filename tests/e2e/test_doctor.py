"""tpu-doctor on real kubelets: beside a job, and before one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.e2e.kube import job

if TYPE_CHECKING:
    from tests.e2e.kube import Kube

EXAMINE = ["sh", "-c", "tpu-doctor --json; test $? -le 1"]


def findings(log: str) -> list[dict[str, Any]]:
    """What the doctor said, among what the launcher says."""
    lines = log.splitlines()
    answer = json.loads("\n".join(lines[lines.index("{") : lines.index("}") + 1]))
    found: list[dict[str, Any]] = answer["findings"]
    return found


def test_a_host_of_a_job_is_examined_before_and_while_it_runs(kube: Kube) -> None:
    kube.apply(job("healthy", EXAMINE, run={"preflight": True}))
    status = kube.finish("healthy")
    assert status["phase"] == "Succeeded", status
    found = findings(kube.logs("healthy-0-1"))
    said = {(each["check"], each["severity"]): each["found"] for each in found}
    assert said["environment", "ok"].startswith("TPUJob healthy, host 1 of 4, slice 0 of 1")
    assert said["dns", "ok"] == "4 names resolve, healthy-0-1.healthy to this host"
    assert "error" not in {each["severity"] for each in found}
    before = kube.kubectl("logs", "healthy-0-1", "--container=tpu-doctor")
    assert before.splitlines()[-1].startswith("0 errors")


def test_a_preflight_that_fails_says_in_the_jobs_status_what_to_do(kube: Kube) -> None:
    wrong = [{"name": "TPU_LIBRARY_PATH", "value": "/nowhere/libtpu.so"}]
    run = {"preflight": True, "env": wrong}
    kube.apply(job("ill", ["true"], run=run, failurePolicy={"maxRestarts": 0}))
    status = kube.finish("ill")
    assert status["phase"] == "Failed", status
    failure = status["lastFailure"]
    assert (failure["cause"], failure["container"], failure["exitCode"]) == ("LauncherError", "tpu-doctor", 2)
    assert failure["message"].startswith("preflight: TPU_LIBRARY_PATH=/nowhere/libtpu.so does not exist")

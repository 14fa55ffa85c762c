"""Restarts in place, by real kubelets."""

import re
from collections.abc import Callable
from datetime import datetime

from tests.docs import examples
from tests.e2e.kube import Kube, Object, python, wait_for

HOSTS = [0, 1, 2, 3]
LIVE = """
import os, pathlib, time
pathlib.Path("/tmp/pid").write_text(str(os.getpid()))
print("up", os.environ["TPU_OPERATOR_ATTEMPT"], time.time(), flush=True)
while not os.path.exists("/tmp/done"):
    time.sleep(0.05)
"""
TRAIN = """
import os, sys, jax, jax.numpy as jnp
from jax.experimental import multihost_utils
attempt = int(os.environ["TPU_OPERATOR_ATTEMPT"])
jax.distributed.initialize()
total = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(jnp.ones(jax.local_device_count()))
print(f"attempt {attempt} adds up to {int(total[0])}", flush=True)
if attempt == 0 and jax.process_index() == 1:
    print("a bad batch", file=sys.stderr, flush=True)
    os._exit(3)
multihost_utils.sync_global_devices("end")
"""
IN_PLACE = {"restartStrategy": "InPlace"}


def uids(kube: Kube, name: str) -> list[str]:
    return [pod["metadata"]["uid"] for pod in kube.pods(name)]


def container_restarts(kube: Kube, name: str) -> list[int]:
    return [pod["status"]["containerStatuses"][0]["restartCount"] for pod in kube.pods(name)]


def labels(kube: Kube, name: str) -> set[str]:
    return {pod["metadata"]["labels"]["tpu-operator.dev/attempt"] for pod in kube.pods(name)}


def up_at(kube: Kube, name: str, attempt: int) -> float:
    """When the last host's process of an attempt began, by its own clock."""

    def probe() -> list[str]:
        found = [re.search(rf"^up {attempt} (\S+)$", kube.logs(f"{name}-0-{h}"), re.MULTILINE) for h in HOSTS]
        return [match[1] for match in found if match] if all(found) else []

    return max(float(time) for time in wait_for(f"attempt {attempt} is up everywhere", probe))


def running(kube: Kube, name: str, attempt: int) -> Object:
    """Status of a job whose slice runs that attempt."""

    def probe() -> Object | None:
        status = kube.status(name)
        right = status.get("phase") == "Running" and status["slices"][0]["attempt"] == attempt
        return status if right else None

    status: Object = wait_for(f"{name} runs attempt {attempt}", probe, 120)
    return status


def kill(kube: Kube, pod: str) -> None:
    """Kill the program, not its launcher."""
    kube.kubectl("exec", pod, "--container=main", "--", "sh", "-c", "kill -9 $(cat /tmp/pid)")


def test_processes_start_again_in_the_pods_that_are_there(
    kube: Kube, record_property: Callable[[str, object], None]
) -> None:
    example = examples()["Processes that start again in their pods"]
    kube.apply(python("stay", LIVE, **example.spec))
    running(kube, "stay", 0)
    up_at(kube, "stay", 0)
    before = uids(kube, "stay")
    # Host 0 keeps the gate. Each container fails for the first time, and so meets no back-off.
    for attempt, victim in ((1, 2), (2, 0)):
        kill(kube, f"stay-0-{victim}")
        status = running(kube, "stay", attempt)
        failure = status["lastFailure"]
        assert (failure["cause"], failure["host"], failure["signal"]) == ("UserError", victim, 9), failure
        assert failure["attempt"] == attempt - 1
        record_property(f"seconds {attempt}", round(up_at(kube, "stay", attempt) - seconds_of(failure), 2))
        assert status["restarts"]["byCause"] == {"UserError": attempt}
        assert status["slices"][0]["restartsInPlace"] == attempt
    assert uids(kube, "stay") == before
    assert container_restarts(kube, "stay") == [1, 0, 1, 0]
    assert labels(kube, "stay") == {"0"}

    kube.kubectl("delete", "pod", "stay-0-3", "--wait=false")
    status = running(kube, "stay", 3)
    assert status["slices"][0]["restartsInPlace"] == 2
    assert not set(uids(kube, "stay")) & set(before)
    assert labels(kube, "stay") == {"1"}
    up_at(kube, "stay", 3)
    for host in HOSTS:
        kube.kubectl("exec", f"stay-0-{host}", "--container=main", "--", "touch", "/tmp/done")
    status = kube.finish("stay")
    assert example.shown(status) == example.status


def seconds_of(failure: Object) -> float:
    """Epoch seconds of a failure."""
    return datetime.fromisoformat(failure["time"]).timestamp()


def test_jax_meets_again_in_the_same_pods(kube: Kube) -> None:
    kube.apply(python("again", TRAIN, failurePolicy=IN_PLACE, run={"launcher": "jax"}))
    running(kube, "again", 1)
    before = uids(kube, "again")
    status = kube.finish("again")
    assert status["phase"] == "Succeeded", status
    assert uids(kube, "again") == before
    assert status["restarts"]["byCause"] == {"UserError": 1}
    failure = status["lastFailure"]
    assert (failure["host"], failure["exitCode"]) == (1, 3), failure
    assert failure["message"] == "a bad batch"
    for host in HOSTS:
        assert "attempt 1 adds up to 16" in kube.logs(f"again-0-{host}")


def test_a_job_whose_restarts_are_used_up_ends_with_its_pods(kube: Kube) -> None:
    policy = IN_PLACE | {"maxRestarts": 1}
    script = "import os, sys, time\nif os.environ['TPU_OPERATOR_HOST'] == '3': sys.exit(5)\ntime.sleep(600)"
    kube.apply(python("fails", script, failurePolicy=policy))
    status = kube.finish("fails", 180)
    assert (status["phase"], status["reason"]) == ("Failed", "MaxRestartsReached"), status
    assert status["restarts"]["counted"] == 1
    assert (status["lastFailure"]["host"], status["lastFailure"]["exitCode"]) == (3, 5)
    wait_for("the pods are gone", lambda: not kube.pods("fails"))

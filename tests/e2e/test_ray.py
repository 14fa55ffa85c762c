"""A Ray cluster over two hosts, by real kubelets and real Ray."""

import json

import yaml

from tests.e2e.kube import ROOT, CommandError, Kube, Object, wait_for

STAYS = """
import time, urllib.request
from tpu_runtime import heartbeat

attempt = os.environ["TPU_OPERATOR_ATTEMPT"]
for url in ("http://ray-tasks-0-0.ray-tasks:8265/api/version", "http://ray-tasks-0-1.ray-tasks:8266/metrics"):
    for _ in range(60):
        try:
            print(url, urllib.request.urlopen(url).status, flush=True)
            break
        except OSError:
            time.sleep(1)
nodes = sorted((node["NodeName"], node["Alive"]) for node in ray.nodes())
heads = ray.cluster_resources()["TPU-v5litepod-8-head"]
print(f"attempt {attempt}: {heads:.0f} slice, {nodes}", flush=True)
while attempt == "0":
    heartbeat()
    time.sleep(0.1)
"""
KILL_RAYLET = """
import os, pathlib, signal
names = pathlib.Path("/proc").glob("[0-9]*/comm")
[raylet] = [name.parent.name for name in names if name.read_text().strip() == "raylet"]
os.kill(int(raylet), signal.SIGKILL)
"""


ASK = """
import json, urllib.request
for host in (0, 1):
    url = f"http://ray-serve-{host}-0.ray-serve:8000/"
    body = json.dumps({"number": 21}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    for _ in range(20):
        print(urllib.request.urlopen(request).read().decode(), flush=True)
"""


def example() -> Object:
    loaded = shown("ray-tasks.yaml")
    loaded["spec"]["tpu"] = {"accelerator": "v5e", "topology": "2x4", "chipsPerHost": 4}
    loaded["spec"]["run"]["command"][-1] += STAYS
    return loaded


def shown(name: str) -> Object:
    loaded: Object = yaml.safe_load((ROOT / "examples" / name).read_text())
    return loaded


def test_a_node_of_ray_that_dies_ends_in_a_new_cluster(kube: Kube, slice_of_two: None) -> None:
    kube.apply(example())
    wait_for("the driver runs", lambda: "attempt 0:" in logs(kube), 300)
    assert kube.wait_phase("ray-tasks", "Running", seconds=60)["ready"] == "2/2"
    found = logs(kube)
    assert "8 chips: [(0, 'ray-tasks-0-0'), (1, 'ray-tasks-0-1')]" in found
    assert ":8265/api/version 200" in found
    assert ":8266/metrics 200" in found
    kube.kubectl("exec", "ray-tasks-0-1", "--container=main", "--", "python3", "-c", KILL_RAYLET)
    status = kube.finish("ray-tasks", 300)
    assert status["phase"] == "Succeeded", status
    assert status["restarts"]["byCause"] == {"UserError": 1}
    failure = status["lastFailure"]
    assert (failure["host"], failure["signal"]) == (1, 9), failure
    assert "the Ray node of this host has ended: raylet: killed by SIGKILL" in failure["message"]
    # One cluster of two nodes, none of which was there before.
    nodes = "[('ray-tasks-0-0', True), ('ray-tasks-0-1', True)]"
    assert f"attempt 1: 1 slice, {nodes}\n" in logs(kube)


def test_the_driver_runs_in_the_head_and_its_tasks_on_the_hosts(kube: Kube, slice_of_two: None) -> None:
    job = example()
    main = {"name": "main", "resources": {"requests": {"cpu": "100m"}}}
    # There are no other nodes here than those of TPUs.
    tolerations = [{"key": "google.com/tpu", "operator": "Exists"}]
    job["spec"]["head"] = {"spec": {"containers": [main], "tolerations": tolerations}}
    job["spec"]["run"]["command"][-1] = job["spec"]["run"]["command"][-1].removesuffix(STAYS)
    kube.apply(job)
    assert kube.finish("ray-tasks", 300)["phase"] == "Succeeded"
    assert "8 chips: [(0, 'ray-tasks-0-0'), (1, 'ray-tasks-0-1')]" in kube.logs("ray-tasks-head")


def test_ray_serve_answers_on_every_host_from_the_chips_of_all(kube: Kube, two_slices_of_one: None) -> None:
    kube.apply(shown("ray-serve.yaml"))
    kube.wait_phase("ray-serve", "Running", seconds=300)

    def answers() -> list[Object]:
        try:
            said = kube.kubectl("exec", "ray-serve-0-0", "--container=main", "--", "python3", "-c", ASK)
        except CommandError:
            return []  # the driver has not deployed it yet
        return [json.loads(line) for line in said.splitlines()]

    found = wait_for("both proxies to answer", answers, 300)
    assert len(found) == 40
    assert {each["answer"] for each in found} == {42}
    assert {each["host"] for each in found} == {"ray-serve-0-0", "ray-serve-1-0"}
    assert kube.status("ray-serve")["restarts"]["total"] == 0


def logs(kube: Kube) -> str:
    """What the driver has printed; nothing before its container is there."""
    pods = kube.pods("ray-tasks")
    started = pods and any("running" in c["state"] or "terminated" in c["state"] for c in _statuses(pods[0]))
    return kube.logs("ray-tasks-0-0") if started else ""


def _statuses(pod: Object) -> list[Object]:
    found: list[Object] = pod["status"].get("containerStatuses", [])
    return found

"""The operator's own pods."""

from tests.e2e.kube import Kube, job, wait_for

SELECTOR = "app.kubernetes.io/name=tpu-operator"


def replicas(operator: Kube) -> list[str]:
    pods = operator.find("pods", SELECTOR)
    return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def holder(operator: Kube) -> str:
    """Name of the pod that holds the Lease, empty if none does."""
    identity = str(operator.get("lease", "tpu-operator")["spec"].get("holderIdentity") or "")
    return identity.partition("_")[0]


def metrics(operator: Kube, pod: str) -> dict[str, float]:
    """The metrics that a pod shows, by name and labels."""
    text = operator.kubectl(
        "get", "--raw", f"/api/v1/namespaces/{operator.namespace}/pods/{pod}:8080/proxy/metrics"
    )
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def test_of_two_replicas_one_leads(operator: Kube) -> None:
    leader = wait_for("a replica holds the Lease", lambda: holder(operator))
    pods = replicas(operator)
    assert len(pods) == 2
    leading = {pod: metrics(operator, pod)["tpu_operator_leader"] for pod in pods}
    assert leading == {pod: float(pod == leader) for pod in pods}


def test_a_standby_takes_over_from_a_leader_that_is_told_to_stop(kube: Kube, operator: Kube) -> None:
    leader = wait_for("a replica holds the Lease", lambda: holder(operator))
    operator.kubectl("delete", "pod", leader, "--wait=false")
    # Long before the Lease would run out by itself, after 12 s: it is released on SIGTERM.
    wait_for("another replica leads", lambda: holder(operator) not in {"", leader}, seconds=10)
    kube.apply(job("next", ["true"]))
    assert kube.finish("next")["phase"] == "Succeeded"
    operator.kubectl("rollout", "status", "deployment/tpu-operator", "--timeout=120s")


def test_replicas_run_on_different_nodes(operator: Kube) -> None:
    nodes = [pod["spec"]["nodeName"] for pod in operator.find("pods", SELECTOR)]
    assert len(set(nodes)) == len(nodes)


def test_case_69_metrics_tell_of_each_job_and_of_the_queue(kube: Kube, operator: Kube) -> None:
    kube.apply(job("measured", ["true"]))
    assert kube.finish("measured")["phase"] == "Succeeded"
    found = metrics(operator, holder(operator))
    phase = f'{{name="measured",namespace="{kube.namespace}",phase="Succeeded"}}'
    assert found[f"tpu_operator_job_phase{phase}"] == 1
    assert any(name.startswith("tpu_operator_queue_depth{") for name in found)
    assert found['tpu_operator_reconcile_duration_seconds_count{kind="TPUJob"}'] > 0

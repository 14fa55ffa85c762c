"""TPUJobs on real kubelets."""

import json

import yaml

from tests.e2e.kube import ROOT, Kube, Object, job, python, wait_for

HOSTS = [0, 1, 2, 3]
RESOLVE = """
import json, os, socket
names = os.environ["TPU_WORKER_HOSTNAMES"].split(",")
print(json.dumps({name: socket.gethostbyname(name) for name in names}))
"""
STAY = ["sh", "-c", "exec sleep 600"]


def example(name: str) -> Object:
    loaded: Object = yaml.safe_load((ROOT / "examples" / name).read_text())
    return loaded


def resolved(kube: Kube, name: str) -> list[dict[str, str]]:
    """What each host said that the names resolve to."""
    return [json.loads(kube.logs(f"{name}-0-{host}").splitlines()[-1]) for host in HOSTS]


def addresses(kube: Kube, name: str) -> list[str]:
    return [pod["status"]["podIP"] for pod in kube.pods(name)]


def is_clean(kube: Kube, name: str) -> bool:
    return not kube.find("pods,services", f"tpu-operator.dev/job={name}")


def test_hello_jax_adds_up_over_all_chips_of_four_hosts(kube: Kube) -> None:
    kube.apply(example("hello-jax.yaml"))
    status = kube.finish("hello-jax")
    assert status["phase"] == "Succeeded", status
    # Each of a host's four chips adds the host's number, counted from 1.
    for host in HOSTS:
        # Not a line of its own for sure: Gloo writes to the same stream.
        assert f"host {host} of 4: psum over 16 chips = 40\n" in kube.logs(f"hello-jax-0-{host}")


def test_every_worker_hostname_resolves_from_every_host_before_the_command_starts(kube: Kube) -> None:
    kube.apply(python("names", RESOLVE))
    status = kube.finish("names")
    assert status["phase"] == "Succeeded", status
    assert status["restarts"]["total"] == 0
    expected = dict(zip([f"names-0-{host}.names" for host in HOSTS], addresses(kube, "names"), strict=True))
    assert resolved(kube, "names") == [expected] * 4


def test_names_and_service_follow_a_subdomain_of_the_user(kube: Kube) -> None:
    kube.apply(python("sub", RESOLVE, template={"spec": {"subdomain": "workers"}}))
    assert kube.finish("sub")["phase"] == "Succeeded"
    expected = dict(zip([f"sub-0-{host}.workers" for host in HOSTS], addresses(kube, "sub"), strict=True))
    assert resolved(kube, "sub") == [expected] * 4
    (service,) = kube.find("services", "tpu-operator.dev/job=sub")
    assert service["metadata"]["name"] == "workers"
    assert service["spec"]["clusterIP"] == "None"


def test_a_failing_host_is_named_although_its_peers_fail_right_after(kube: Kube) -> None:
    kube.apply(example("failing-host.yaml"))
    status = kube.finish("failing-host")
    assert status["phase"] == "Failed", status
    assert status["restarts"]["counted"] == 1
    assert status["restarts"]["byCause"] == {"UserError": 1}
    failure = status["lastFailure"]
    assert failure["pod"] == "failing-host-0-2", failure
    assert (failure["slice"], failure["host"], failure["exitCode"]) == (0, 2, 1)
    assert (failure["cause"], failure["message"]) == ("UserError", "the loss is not a number")


def test_an_image_with_nothing_but_python_gets_the_launcher_from_an_init_container(kube: Kube) -> None:
    # The operator's image runs as another user, has no JAX, and is not the runtime's.
    foreign = example("foreign-image.yaml")
    foreign["spec"]["run"]["image"] = "localhost/tpu-operator:dev"
    kube.apply(foreign)
    status = kube.finish("foreign-image")
    assert status["phase"] == "Succeeded", status
    (first, *_) = kube.pods("foreign-image")
    assert [each["name"] for each in first["spec"]["initContainers"]] == ["tpu-launch"]
    names = [f"foreign-image-0-{host}.foreign-image" for host in HOSTS]
    expected = dict(zip(names, addresses(kube, "foreign-image"), strict=True))
    assert resolved(kube, "foreign-image") == [expected] * 4


def test_apply_delete_apply_leaves_nothing_behind(kube: Kube) -> None:
    for cascade in ("background", "foreground"):
        kube.apply(job("again", STAY))
        kube.wait_phase("again", "Running")
        kube.kubectl("delete", "tpujob", "again", f"--cascade={cascade}", "--timeout=60s")
        wait_for("nothing is left", lambda: is_clean(kube, "again"))
    kube.apply(job("again", ["true"]))
    assert kube.finish("again")["phase"] == "Succeeded"


def test_a_namespace_can_be_deleted_while_no_operator_runs(kube: Kube, operator: Kube) -> None:
    kube.apply(job("orphan", STAY))
    kube.wait_phase("orphan", "Running")
    operator.kubectl("scale", "deployment/tpu-operator", "--replicas=0")
    try:
        wait_for(
            "the operator is gone", lambda: not operator.find("pods", "app.kubernetes.io/name=tpu-operator")
        )
        kube.kubectl("delete", "namespace", kube.namespace, "--timeout=90s")
    finally:
        operator.kubectl("scale", "deployment/tpu-operator", "--replicas=2")
        operator.kubectl("rollout", "status", "deployment/tpu-operator", "--timeout=120s")

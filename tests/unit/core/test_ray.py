"""Launcher ray: one cluster of all slices, with or without a head of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from tests.builders import SETTINGS, World, job
from tpu_operator.core.jobview import gang_spec
from tpu_operator.core.objects.pods import PodFactory
from tpu_runtime.environment import read_environment

if TYPE_CHECKING:
    from tpu_operator.core.objects.hosts import BuiltPod

TPU = {"accelerator": "v5e", "topology": "4x4"}
RUN = {"command": ["python", "train.py"], "launcher": "ray"}
HEAD = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "4"}}}]}}


def factory(**spec: Any) -> PodFactory:
    the_job = job(**({"run": RUN} | spec))
    return PodFactory(the_job, gang_spec(the_job), SETTINGS)


def head(attempt: int = 0, **spec: Any) -> BuiltPod:
    built = factory(**({"head": HEAD} | spec)).head(attempt)
    kubernetes_validate.validate(built.manifest, "1.37", strict=True)
    return built


def main(built: BuiltPod) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in built.manifest["spec"]["containers"] if c["name"] == "main")
    return found


def env(built: BuiltPod) -> dict[str, str]:
    return {e["name"]: e.get("value", "") for e in main(built)["env"]}


class TestHead:
    def test_it_runs_the_command_under_the_launcher_without_chips(self) -> None:
        built = head()
        container = main(built)
        assert container["command"] == ["tpu-launch", "--", "python", "train.py"]
        assert container["image"] == SETTINGS.runtime_image
        assert container["resources"] == {"limits": {"cpu": "4"}}
        assert [port["containerPort"] for port in container["ports"]] == [8090, 8265, 8266]
        assert built.manifest["spec"]["automountServiceAccountToken"] is False
        assert "tolerations" not in built.manifest["spec"]
        assert (built.conflicts, built.overrides) == ((), ())

    def test_it_has_what_its_launcher_needs_and_nothing_of_a_tpu_host(self) -> None:
        found = env(head(attempt=3))
        assert {name for name in found if not name.startswith(("TPU_OPERATOR_", "TPU_LAUNCH_"))} == set()
        read = read_environment(found)
        assert (read.place.is_head, read.place.attempt, read.place.num_met) == (True, 3, 5)
        assert (read.coordinator, read.own_name) == (("train-0-0.train", 8090), "train-head.train")
        assert read.leads

    def test_hosts_meet_with_it(self) -> None:
        found = env(factory(head=HEAD).worker(0, 0, 0))
        read = read_environment(found)
        assert (read.place.head, read.place.num_met, read.leads) == ("train-head.train", 5, False)
        assert read.place.keeps_gate

    def test_without_one_the_first_host_leads(self) -> None:
        reads = [read_environment(env(factory().worker(0, host, 0))) for host in range(4)]
        assert [read.leads for read in reads] == [True, False, False, False]

    @pytest.mark.parametrize(
        ("image", "template", "run", "expected"),
        [
            ("own", "slices", "common", "own"),
            (None, "slices", "common", "slices"),
            (None, None, "common", "common"),
            (None, None, None, SETTINGS.runtime_image),
        ],
    )
    def test_its_image(self, image: str | None, template: str | None, run: str | None, expected: str) -> None:
        def containers(chosen: str | None) -> dict[str, Any]:
            return {"spec": {"containers": [{"name": "main"} | ({"image": chosen} if chosen else {})]}}

        built = head(
            head=containers(image), template=containers(template), run=RUN | ({"image": run} if run else {})
        )
        assert main(built)["image"] == expected
        inits = [each["name"] for each in built.manifest["spec"].get("initContainers", [])]
        assert inits == ([] if expected == SETTINGS.runtime_image else ["tpu-launch"])

    def test_its_own_variables_stand(self) -> None:
        own = [{"name": "TPU_OPERATOR_NAME", "value": "mine"}]
        built = head(head={"spec": {"containers": [{"name": "main", "env": own}]}})
        assert env(built)["TPU_OPERATOR_NAME"] == "mine"
        assert built.overrides == ("TPU_OPERATOR_NAME",)
        assert env(built)["TPU_OPERATOR_SET_BY_USER"] == "TPU_OPERATOR_NAME"

    def test_a_command_of_its_own_is_refused(self) -> None:
        [conflict] = head(head={"spec": {"containers": [{"name": "main", "command": ["ray"]}]}}).conflicts
        assert "spec.head.spec.containers[main].command goes around the launcher" in conflict

    def test_in_place_it_remembers_but_is_not_started_again(self) -> None:
        built = head(failurePolicy={"restartStrategy": "InPlace"})
        assert built.manifest["spec"]["restartPolicy"] == "Never"
        assert read_environment(env(built)).settings.in_place

    def test_with_other_launchers_it_stays_the_users_own(self) -> None:
        containers = {"spec": {"containers": [{"name": "main", "image": "driver"}]}}
        built = head(head=containers, run={"command": ["x"], "launcher": "jax"})
        assert built.manifest["spec"]["containers"] == containers["spec"]["containers"]


def test_the_service_has_the_ports_of_the_dashboard_and_of_the_metrics() -> None:
    services = [
        World(job(run=run)).run().services["train"] for run in (RUN, {"command": ["x"], "launcher": "jax"})
    ]
    ports = [{port.name: port.port for port in service.spec.ports} for service in services]
    assert ports == [{"launcher": 8090, "ray-dashboard": 8265, "ray-metrics": 8266}, {"launcher": 8090}]


def test_a_slice_never_restarts_alone() -> None:
    the_job = job(run=RUN, tpu=TPU | {"slices": 2}, failurePolicy={"restartScope": "Slice"})
    assert not gang_spec(the_job).alone
    the_world = World(the_job).run()
    the_world.vanish("train-1-2").settle()
    attempts = {pod.attempt for pod in the_world.pods.values()}
    assert attempts == {1}


@pytest.mark.parametrize(
    ("accelerator", "topology", "port"), [("v5e", "4x4", 8090), ("tpu7x", "2x2x2", 8100)]
)
def test_workers_of_ray_have_megascales_ports_to_themselves(
    accelerator: str, topology: str, port: int
) -> None:
    tpu = {"accelerator": accelerator, "topology": topology, "slices": 2}
    assert gang_spec(job(run=RUN, tpu=tpu)).launcher_port == port

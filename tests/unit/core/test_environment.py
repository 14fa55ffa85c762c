"""The environment of TPU containers; cases 9 to 17 and 19 of peers that do the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.builders import SETTINGS, job
from tpu_operator.core.jobview import gang_spec
from tpu_operator.core.objects.pods import PodFactory
from tpu_operator.core.settings import PodSettings

if TYPE_CHECKING:
    from tpu_operator.core.objects.hosts import BuiltPod


def build(slice_index: int = 0, host: int = 0, settings: PodSettings = SETTINGS, **spec: Any) -> BuiltPod:
    the_job = job(**spec)
    return PodFactory(the_job, gang_spec(the_job), settings).worker(slice_index, host, 0)


def env(pod: BuiltPod, container: int = 0, kind: str = "containers") -> dict[str, str]:
    return {e["name"]: e.get("value", "") for e in pod.manifest["spec"][kind][container].get("env", [])}


HOSTS = ",".join(f"train-0-{i}.train" for i in range(4))
TPU = {"accelerator": "v5e", "topology": "4x4"}
CHIPS = {"resources": {"limits": {"google.com/tpu": "2"}}}


def template(*containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"template": {"spec": {"containers": list(containers), **more}}}


class TestIdentity:
    @pytest.mark.parametrize("host", range(4))
    def test_case_9_ids_count_up_and_every_host_has_the_same_list(self, host: int) -> None:
        found = env(build(host=host))
        assert found["TPU_WORKER_ID"] == str(host)
        assert found["TPU_WORKER_HOSTNAMES"] == HOSTS
        assert found["TPU_NAME"] == "train-0"

    def test_case_10_a_cpu_head_is_not_in_the_list(self) -> None:
        head = {"spec": {"containers": [{"name": "main", "image": "driver"}]}}
        found = env(build(host=2, head=head))
        assert found["TPU_WORKER_ID"] == "2"
        assert found["TPU_WORKER_HOSTNAMES"].split(",") == HOSTS.split(",")

    def test_case_11_every_slice_counts_from_zero_and_lists_its_own_hosts(self) -> None:
        found = env(build(slice_index=1, host=3, tpu=TPU | {"slices": 2}))
        assert found["TPU_WORKER_ID"] == "3"
        assert found["TPU_WORKER_HOSTNAMES"] == HOSTS.replace("train-0", "train-1")
        assert found["TPU_NAME"] == "train-1"

    def test_case_12_one_host_has_id_0_and_one_name(self) -> None:
        found = env(build(tpu={"accelerator": "v5e", "topology": "2x2"}))
        assert (found["TPU_WORKER_ID"], found["TPU_WORKER_HOSTNAMES"]) == ("0", "train-0-0.train")

    def test_case_12_only_containers_with_chips_get_the_environment(self) -> None:
        pod = build(
            **template({"name": "sidecar", "image": "log-shipper", "env": [{"name": "A", "value": "1"}]})
        )
        assert env(pod, 1) == {"A": "1"}
        assert "TPU_WORKER_ID" in env(pod)

    @pytest.mark.parametrize(("host", "container", "worker"), [(0, 0, 0), (0, 1, 1), (1, 0, 2), (1, 1, 3)])
    def test_case_13_two_tpu_containers_a_pod(self, host: int, container: int, worker: int) -> None:
        two = template({"name": "main", **CHIPS}, {"name": "second", "image": "x", **CHIPS})
        found = env(build(host=host, tpu={"accelerator": "tpu7x", "topology": "2x2x2"}, **two), container)
        assert found["TPU_WORKER_ID"] == str(worker)
        assert (
            found["TPU_WORKER_HOSTNAMES"] == "train-0-0.train,train-0-0.train,train-0-1.train,train-0-1.train"
        )
        assert found["TPU_PROCESS_PORT"] == str(8476 + container)
        assert found["TPU_PROCESS_ADDRESSES"] == (
            "train-0-0.train:8476,train-0-0.train:8477,train-0-1.train:8476,train-0-1.train:8477"
        )

    def test_case_13_ports_that_the_user_chose(self) -> None:
        port = {"env": [{"name": "TPU_PROCESS_PORT", "value": "9000"}]}
        two = template({"name": "main", **CHIPS}, {"name": "second", "image": "x", **CHIPS, **port})
        pod = build(tpu={"accelerator": "tpu7x", "topology": "2x2x2"}, **two)
        assert env(pod, 0)["TPU_PROCESS_ADDRESSES"].split(",")[:2] == [
            "train-0-0.train:8476",
            "train-0-0.train:9000",
        ]
        assert env(pod, 1)["TPU_PROCESS_PORT"] == "9000"

    def test_case_14_init_containers_with_chips_get_the_environment(self) -> None:
        check = {"name": "check", "image": "x", "resources": {"limits": {"google.com/tpu": "4"}}}
        other = {"name": "copy", "image": "x"}
        pod = build(host=1, **template(initContainers=[check, other]))
        assert env(pod, 0, "initContainers")["TPU_WORKER_ID"] == "1"
        assert env(pod, 1, "initContainers") == {}

    @pytest.mark.parametrize("name", ["TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES"])
    def test_case_15_a_users_identity_is_neither_overwritten_nor_half_filled(self, name: str) -> None:
        run = {"command": ["x"], "env": [{"name": name, "value": "mine"}]}
        pod = build(run=run)
        found = env(pod)
        identity = {"TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES", "TPU_PROCESS_PORT"}
        assert {key: found[key] for key in identity & found.keys()} == {name: "mine"}
        assert pod.overrides == (name,)

    def test_case_15_a_value_equal_to_ours_is_no_override(self) -> None:
        assert (
            build(run={"command": ["x"], "env": [{"name": "TPU_NAME", "value": "train-0"}]}).overrides == ()
        )

    def test_case_16_a_cpu_pod_is_the_users_own(self) -> None:
        spec = {"containers": [{"name": "driver", "image": "d", "env": [{"name": "A", "value": "1"}]}]}
        the_job = job(head={"spec": spec})
        pod = PodFactory(the_job, gang_spec(the_job), SETTINGS).head(0).manifest
        assert pod["spec"]["containers"] == spec["containers"]
        assert set(pod["spec"]) == {
            "containers",
            "restartPolicy",
            "hostname",
            "subdomain",
            "enableServiceLinks",
        }


class TestMegascale:
    def test_case_17_slices_share_a_coordinator(self) -> None:
        for index in range(2):
            found = env(build(slice_index=index, host=1, tpu=TPU | {"slices": 2}))
            assert found["MEGASCALE_NUM_SLICES"] == "2"
            assert found["MEGASCALE_SLICE_ID"] == str(index)
            assert found["MEGASCALE_COORDINATOR_ADDRESS"] == "train-0-0.train:8080"
            assert found["TPU_WORKER_ID"] == "1"

    def test_one_slice_sets_them_to_the_empty_string(self) -> None:
        found = env(build())
        megascale = {key: value for key, value in found.items() if key.startswith("MEGASCALE")}
        assert megascale == dict.fromkeys(
            ["MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "MEGASCALE_COORDINATOR_ADDRESS"], ""
        )


class TestTorch:
    def test_ranks_run_over_all_slices_and_addresses_over_one(self) -> None:
        found = env(build(slice_index=1, host=2, tpu=TPU | {"slices": 2}))
        assert (found["NNODES"], found["NODE_RANK"]) == ("8", "6")
        assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("train-0-0.train", "29500")
        addresses = found["TORCH_TPU_SLICEBUILDER_ADDRESSES"].split(",")
        assert len(addresses) == 16
        assert addresses[:5] == [f"train-1-0.train:{8070 + i}" for i in range(4)] + ["train-1-1.train:8070"]
        assert found["TORCH_TPU_DEVICES_PER_HOST"] == "4"

    @pytest.mark.parametrize(
        ("tpu", "topology", "devices"),
        [
            ({"accelerator": "v5e", "topology": "4x4"}, "4,4,1", "4"),
            ({"accelerator": "v5p", "topology": "2x2x4"}, "2,2,4", "4"),
            ({"accelerator": "tpu7x", "topology": "2x2x2"}, "2,2,2,2", "8"),
        ],
    )
    def test_topology_is_spelled_with_commas_and_devices(
        self, tpu: dict[str, str], topology: str, devices: str
    ) -> None:
        found = env(build(tpu=tpu))
        assert found["TORCH_TPU_TOPOLOGY"] == topology
        assert found["TPU_OPERATOR_PROCESSES_PER_HOST"] == devices

    def test_every_host_of_a_job_agrees_on_the_profiler_session(self) -> None:
        sessions = {env(build(host=host))["TORCH_TPU_XPROF_SESSION_ID"] for host in range(4)}
        assert len(sessions) == 1
        assert sessions.pop().isdecimal()

    @pytest.mark.parametrize("launcher", ["torchrun", "jax", "none", "ray"])
    def test_no_pod_has_a_rank_or_a_world_size(self, launcher: str) -> None:
        found = env(build(run={"command": ["x"], "launcher": launcher}))
        assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & found.keys()

    def test_other_launchers_get_no_torch_variables(self) -> None:
        found = env(build(run={"command": ["x"], "launcher": "jax"}))
        assert not [key for key in found if key.startswith(("TORCH_", "MASTER_", "NNODES"))]


class TestClusterSettings:
    def test_topology_variables_only_where_asked_for(self) -> None:
        assert "TPU_HOST_BOUNDS" not in env(build())
        found = env(build(settings=PodSettings("r", "l", inject_topology_env=True)))
        assert found["TPU_HOST_BOUNDS"] == found["HOST_BOUNDS"] == "2,2,1"
        assert found["TPU_CHIPS_PER_HOST_BOUNDS"] == found["CHIPS_PER_HOST_BOUNDS"] == "2,2,1"
        assert found["TPU_TOPOLOGY_WRAP"] == found["WRAP"] == "false,false,false"
        assert (found["TPU_TOPOLOGY"], found["TPU_ACCELERATOR_TYPE"]) == ("4x4", "v5litepod-16")

    def test_emulation_is_passed_on(self) -> None:
        assert env(build(settings=PodSettings("r", "l", emulate="cpu")))["TPU_OPERATOR_EMULATE"] == "cpu"

    def test_ours_come_first_so_that_users_can_refer_to_them(self) -> None:
        user = {"name": "ADDRESS", "value": "$(MASTER_ADDR):1"}
        pod = build(run={"command": ["x"], "env": [user]})
        assert pod.manifest["spec"]["containers"][0]["env"][-1] == user


@pytest.mark.parametrize(
    ("tpu", "hosts"),
    [
        ({"accelerator": "v4", "topology": "2x2x1"}, 1),
        ({"accelerator": "v4", "topology": "2x2x4"}, 4),
        ({"accelerator": "v5e", "topology": "2x4", "chipsPerHost": 4}, 2),
        ({"accelerator": "v5e", "topology": "2x4", "chipsPerHost": 8}, 1),
        ({"accelerator": "v5e", "topology": "4x4"}, 4),
    ],
)
def test_case_19_hosts_of_a_topology(tpu: dict[str, Any], hosts: int) -> None:
    assert len(env(build(tpu=tpu))["TPU_WORKER_HOSTNAMES"].split(",")) == hosts

"""vLLM on TorchTPU."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.roles import FOUR_HOSTS, inference, role
from tests.unit.core.inference.engines.engines import LEADER, env, hidden, pair, pod, value
from tpu_operator.api import Launcher

TPU7X = {"accelerator": "tpu7x", "topology": "2x2x2"}


def four_hosts(*args: str, **engine: Any) -> Any:
    """One role on four hosts of four chips."""
    served = role("serve", "prefill-decode", FOUR_HOSTS)
    return inference(served, engine={"args": list(args)} | engine)


def test_one_host_serves_the_model_on_all_its_chips() -> None:
    engine = pod()
    start = engine.command.index("vllm")
    assert engine.command[start : start + 3] == ("vllm", "serve", "Qwen/Qwen3-32B")
    assert value(engine, "--tensor-parallel-size") == "8"
    assert value(engine, "--port") == "8000"
    assert engine.launcher is Launcher.NONE
    assert value(engine, "--nnodes") is None
    assert not engine.problems


def test_one_host_hides_the_slice_that_gke_and_the_launcher_tell_of() -> None:
    assert hidden(pod()) == {
        "MEGASCALE_COORDINATOR_ADDRESS": "",
        "MEGASCALE_NUM_SLICES": "",
        "MEGASCALE_PORT": "",
        "MEGASCALE_SLICE_ID": "",
        "TPU_PROCESS_ADDRESSES": "",
        "TPU_PROCESS_PORT": "",
        "TPU_WORKER_HOSTNAMES": "",
        "TPU_HOST_BOUNDS": "1,1,1",
    }


def test_variables_of_the_user_are_not_hidden() -> None:
    engine = pod(inference(engine={"env": [{"name": "MEGASCALE_PORT", "value": "9000"}]}))
    assert "MEGASCALE_PORT" not in hidden(engine)
    assert env(engine)["MEGASCALE_PORT"] == "9000"


def test_flags_of_the_user_stand_in_for_ours_however_they_are_spelled() -> None:
    engine = pod(inference(engine={"args": ["-tp", "4", "--shutdown-timeout=5"]}))
    assert value(engine, "--tensor-parallel-size") is None
    assert [part for part in engine.command if part.startswith("--shutdown")] == ["--shutdown-timeout=5"]


def test_arguments_of_a_role_come_after_those_of_all_and_its_variables_before() -> None:
    served = role("serve", "prefill-decode", args=["--b"], env=[{"name": "X", "value": "role"}])
    spec = inference(served, engine={"args": ["--a"], "env": [{"name": "X", "value": "all"}]})
    engine = pod(spec)
    assert engine.command[-2:] == ("--a", "--b")
    assert env(engine)["X"] == "role"


class TestProcesses:
    def test_every_host_is_told_its_rank_and_where_the_first_is(self) -> None:
        head, third = pod(four_hosts()), pod(four_hosts(), host=2)
        assert [value(e, "--node-rank") for e in (head, third)] == ["0", "2"]
        assert {value(e, "--nnodes") for e in (head, third)} == {"4"}
        assert {value(e, "--master-addr") for e in (head, third)} == {LEADER}
        assert {value(e, "--tensor-parallel-size") for e in (head, third)} == {"16"}
        assert {env(e)["TPU_MULTIHOST_BACKEND"] for e in (head, third)} == {"mp"}

    def test_only_the_first_serves(self) -> None:
        head, other = pod(four_hosts()), pod(four_hosts(), host=1)
        assert value(head, "--headless") is None
        assert value(other, "--headless") is not None
        assert [port["name"] for port in head.ports] == ["requests", "master", "rendezvous"]
        assert other.ports == ()

    def test_several_hosts_keep_their_bounds(self) -> None:
        assert "TPU_HOST_BOUNDS" not in hidden(pod(four_hosts()))

    def test_pipeline_parallelism_leaves_fewer_devices_to_tensors(self) -> None:
        assert value(pod(four_hosts("--pipeline-parallel-size", "4")), "--tensor-parallel-size") == "4"


class TestDataParallel:
    def test_the_head_binds_its_own_address_and_the_others_find_it_by_name(self) -> None:
        spec = four_hosts("--data-parallel-size", "8")
        head, third = pod(spec), pod(spec, host=2)
        assert value(head, "--data-parallel-address") == "$(POD_IP)"
        assert value(third, "--data-parallel-address") == LEADER
        assert [value(e, "--data-parallel-size-local") for e in (head, third)] == ["2", "2"]
        assert [value(e, "--data-parallel-start-rank") for e in (head, third)] == [None, "4"]
        assert value(head, "--tensor-parallel-size") == "2"
        assert value(head, "--nnodes") is None

    def test_ranks_that_do_not_spread_over_the_hosts_are_told(self) -> None:
        (problem,) = pod(four_hosts("--data-parallel-size=2")).problems
        assert problem.startswith("spec.engine.args: --data-parallel-size 2")
        assert "write a multiple of 4" in problem

    def test_one_host_needs_no_addresses(self) -> None:
        engine = pod(inference(engine={"args": ["--data-parallel-size", "2"]}))
        assert value(engine, "--tensor-parallel-size") == "4"
        assert value(engine, "--data-parallel-address") is None


class TestRay:
    RAY = ({"name": "TPU_MULTIHOST_BACKEND", "value": "ray"},)

    def test_ray_starts_it_on_the_first_host(self) -> None:
        engine = pod(four_hosts(env=list(self.RAY)))
        assert engine.launcher is Launcher.RAY
        assert value(engine, "--distributed-executor-backend") == "ray"
        assert value(engine, "--headless") is None

    def test_its_daemons_do_not_see_what_vllm_must_not(self) -> None:
        engine = pod(four_hosts(env=list(self.RAY)))
        assert hidden(engine) == {}
        assert env(engine)["TPU_PROCESS_ADDRESSES"] == ""
        assert env(engine)["RAY_EXPERIMENTAL_NOSET_TPU_VISIBLE_CHIPS"] == "1"

    def test_one_host_needs_no_ray(self) -> None:
        assert pod(inference(engine={"env": list(self.RAY)})).launcher is Launcher.NONE


def test_parallelism_that_the_devices_are_too_few_for_is_told() -> None:
    (problem,) = pod(inference(engine={"args": ["-tp", "3"]})).problems
    assert "make 3 of the 8 devices of role serve" in problem


def test_chips_with_two_devices_count_twice() -> None:
    engine = pod(inference(role("serve", "prefill-decode", TPU7X)))
    assert value(engine, "--tensor-parallel-size") == "16"
    assert env(engine)["TORCH_TPU_TOPOLOGY"] == "2,2,2,2"
    assert env(engine)["TPU_ACCELERATOR_TYPE"] == "tpu7x-16"


def test_a_port_among_the_arguments_is_told() -> None:
    (problem,) = pod(inference(engine={"args": ["--port", "9000"]})).problems
    assert problem == "spec.engine.args: --port is '9000': leave it out, and write spec.engine.port instead"


class TestSource:
    @pytest.mark.parametrize(
        ("source", "location", "more"),
        [
            ("hf://Qwen/Qwen3-32B", "Qwen/Qwen3-32B", None),
            ("hf://Qwen/Qwen3-32B@abc", "Qwen/Qwen3-32B", ("--revision", "abc")),
            ("gs://weights/qwen", "gs://weights/qwen", ("--load-format", "runai_streamer")),
            ("pvc://weights/qwen/32b", "/models/qwen/32b", None),
            ("pvc://weights", "/models", None),
        ],
    )
    def test_it_is_loaded_from_there_under_its_name(
        self, source: str, location: str, more: tuple[str, str] | None
    ) -> None:
        engine = pod(inference(model={"name": "served", "source": source}))
        assert engine.command[engine.command.index("serve") + 1] == location
        assert value(engine, "--served-model-name") == "served"
        assert more is None or value(engine, more[0]) == more[1]

    def test_a_claim_is_mounted_and_not_written_to(self) -> None:
        engine = pod(inference(model={"name": "served", "source": "pvc://weights/qwen"}))
        claim = {"claimName": "weights", "readOnly": True}
        assert engine.volumes == ({"name": "model", "persistentVolumeClaim": claim},)
        assert engine.mounts == ({"name": "model", "mountPath": "/models"},)


class TestKV:
    def config(self, name: str, **spec: Any) -> dict[str, Any]:
        text = value(pod(pair(**spec), name), "--kv-transfer-config")
        assert text
        loaded: dict[str, Any] = json.loads(text)
        return loaded

    def test_prefill_produces_and_decode_consumes(self) -> None:
        prefill, decode = self.config("prefill"), self.config("decode")
        assert (prefill["kv_role"], decode["kv_role"]) == ("kv_producer", "kv_consumer")
        assert prefill["kv_connector"] == decode["kv_connector"] == "TPUConnector"
        assert prefill["kv_connector_module_path"] == "vllm_torchtpu.distributed.kv_transfer.tpu_connector"
        assert prefill["kv_ip"] == "$(POD_IP)"

    def test_a_decoder_computes_what_it_cannot_fetch(self) -> None:
        assert self.config("decode")["kv_load_failure_policy"] == "recompute"
        assert "kv_load_failure_policy" not in self.config("prefill")

    def test_parameters_of_the_user_win(self) -> None:
        transfer = {"connector": "NixlConnector", "parameters": {"kv_role": "kv_both", "kv_port": 1}}
        found = self.config("decode", kvTransfer=transfer)
        assert (found["kv_role"], found["kv_port"]) == ("kv_both", 1)
        assert "kv_connector_module_path" not in found

    def test_ports_are_told_and_open(self) -> None:
        engine = pod(pair(), "prefill")
        assert {port["containerPort"] for port in engine.ports} == {8000, 14579, 9100, 9600}
        assert env(engine)["TPU_KV_TRANSFER_PORT"] == "9100"

    def test_case_pc35_an_engine_never_has_the_identity_of_one_before_it(self) -> None:
        transfer = {"connector": "TPURaidenConnector"}
        prefill, decode = (pod(pair(kvTransfer=transfer), name) for name in ("prefill", "decode"))
        assert env(prefill)["TPU_RAIDEN_ENGINE_ID"] == "$(POD_UID)"
        assert {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}} in prefill.env
        assert env(prefill)["TPU_RAIDEN_JOB_NAME"] != env(decode)["TPU_RAIDEN_JOB_NAME"]

    def test_a_role_that_does_both_hands_nothing_over_unless_it_is_told_to(self) -> None:
        assert value(pod(), "--kv-transfer-config") is None
        told = pod(inference(kvTransfer={"connector": "TPUConnector"}))
        assert '"kv_role":"kv_both"' in (value(told, "--kv-transfer-config") or "")

    def test_each_host_of_a_slice_has_a_number_of_its_own(self) -> None:
        spec = inference(role("prefill", tpu=FOUR_HOSTS), role("decode"))
        assert env(pod(spec, "prefill", 3))["TPU_NODE_ID"] == "3"

"""What all engines have in common: probes, drain, ports, caches, the sidecar."""

from __future__ import annotations

from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from tests.roles import FOUR_HOSTS, IMAGES, inference, role, shape_of
from tests.unit.core.inference.engines.engines import LEADER, env, pair, pod, value
from tpu_operator.core.inference.engines.caches import cache_key
from tpu_operator.core.inference.engines.pod import EnginePod, Seat, Task

CUSTOM = {"type": "custom", "image": "example/server:1", "command": ["serve"]}


def multi_host(**spec: Any) -> Any:
    return inference(role("prefill", tpu=FOUR_HOSTS), role("decode", tpu=FOUR_HOSTS), **spec)


def as_pod(engine: EnginePod) -> dict[str, Any]:
    """A whole Pod with what the engine asks for."""
    pod_of = engine.overlay()
    pod_of["spec"]["containers"][0]["command"] = list(engine.command)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "engine"}} | pod_of


@pytest.mark.parametrize("kind", ["vllm", "sglang", "custom"])
@pytest.mark.parametrize("host", [0, 3])
def test_kubernetes_accepts_what_every_engine_asks_for(kind: str, host: int) -> None:
    engine = CUSTOM | {"type": kind, "compileCache": {"hostPath": "/cache"}}
    spec = multi_host(engine=engine, routing={"sidecar": {}})
    for name in ("prefill", "decode"):
        kubernetes_validate.validate(as_pod(pod(spec, name, host)), "1.37", strict=True)


class TestProbes:
    def test_case_pc28_readiness_asks_for_the_model_and_not_for_the_process(self) -> None:
        probes = pod().probes
        for kind in ("startupProbe", "readinessProbe"):
            assert probes[kind]["httpGet"] == {"path": "/v1/models", "port": 8000}

    def test_an_engine_may_compile_for_four_hours(self) -> None:
        startup = pod().probes["startupProbe"]
        assert startup["periodSeconds"] * startup["failureThreshold"] == 4 * 3600

    def test_a_silence_of_minutes_is_no_death(self) -> None:
        liveness = pod().probes["livenessProbe"]
        assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 600

    def test_hosts_that_do_not_serve_are_ready_with_their_processes_and_never_killed(self) -> None:
        probes = pod(multi_host(), "decode", 2).probes
        assert list(probes) == ["readinessProbe"]
        assert probes["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 8090}

    def test_they_go_to_the_engine_and_not_to_its_sidecar(self) -> None:
        probes = pod(pair(routing={"sidecar": {}}), "decode").probes
        assert {probe["httpGet"]["port"] for probe in probes.values()} == {8200}


class TestDrain:
    def test_a_pod_has_the_drain_and_fifteen_seconds_to_end(self) -> None:
        assert pod().grace_seconds == 15 + 45 + 15
        assert pod(inference(drain={"routeAwaySeconds": 5, "engineSeconds": 100})).grace_seconds == 120

    def test_a_decoder_is_routed_around_before_it_is_told_to_stop(self) -> None:
        engine = pod(pair(), "decode")
        assert engine.lifecycle == {"preStop": {"sleep": {"seconds": 15}}}
        assert value(engine, "--shutdown-timeout") == "45"
        assert env(engine)["TPU_LAUNCH_GRACE_SECONDS"] == "55"

    def test_a_prefiller_stays_until_its_kv_has_been_fetched(self) -> None:
        engine = pod(pair(), "prefill")
        assert engine.lifecycle == {"preStop": {"sleep": {"seconds": 45}}}
        assert value(engine, "--shutdown-timeout") == "15"

    def test_hook_and_launcher_together_fit_into_the_time_of_the_pod(self) -> None:
        for spec in (pair(), pair(drain={"routeAwaySeconds": 0, "engineSeconds": 0})):
            for name in ("prefill", "decode"):
                engine = pod(spec, name)
                hook = (engine.lifecycle or {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
                launcher = int(env(engine)["TPU_LAUNCH_GRACE_SECONDS"] or 0)
                assert hook + launcher < engine.grace_seconds

    def test_nothing_to_wait_for_is_no_hook(self) -> None:
        assert pod(inference(drain={"routeAwaySeconds": 0})).lifecycle is None

    def test_other_hosts_of_a_slice_wait_until_the_first_has_ended(self) -> None:
        engine = pod(multi_host(), "decode", 1)
        assert engine.lifecycle
        command = engine.lifecycle["preStop"]["exec"]["command"]
        assert command[:2] == ["python3", "-c"]
        assert command[3:] == [LEADER, "8090", "60"]


class TestSidecar:
    def test_it_takes_the_port_of_a_decoder(self) -> None:
        engine = pod(pair(routing={"sidecar": {"args": ["--prefill-max-retries=1"]}}), "decode")
        (sidecar,) = engine.sidecars
        assert sidecar["restartPolicy"] == "Always"
        assert sidecar["image"] == "example/sidecar:1"
        assert sidecar["args"] == [
            "--port=8000",
            "--vllm-port=8200",
            "--kv-connector=nixlv2",
            "--secure-serving=false",
            "--prefill-max-retries=1",
        ]
        assert value(engine, "--port") == "8200"
        assert engine.ports[0] == {"name": "requests", "containerPort": 8200, "protocol": "TCP"}

    def test_prefillers_and_hosts_that_do_not_serve_have_none(self) -> None:
        spec = multi_host(routing={"sidecar": {}})
        assert not pod(spec, "prefill").sidecars
        assert not pod(spec, "decode", 1).sidecars
        assert pod(spec, "decode").sidecars

    def test_engine_and_sidecar_never_have_the_same_port(self) -> None:
        engine = pod(pair(engine={"port": 8200}, routing={"sidecar": {}}), "decode")
        assert value(engine, "--port") == "8201"

    def test_a_template_for_it_is_for_the_hosts_that_have_it(self) -> None:
        containers = [{"name": "routing-proxy", "env": []}, {"name": "own", "image": "own:1"}]
        decode = role("decode", tpu=FOUR_HOSTS, template={"spec": {"initContainers": containers}})
        spec = inference(role("prefill"), decode, routing={"sidecar": {}})
        assert pod(spec, "decode").template == {"spec": {"initContainers": containers}}
        assert pod(spec, "decode", 1).template == {"spec": {"initContainers": containers[1:]}}
        alone = inference(role("prefill"), decode)
        assert pod(alone, "decode", 1).template == {"spec": {"initContainers": containers}}

    def test_its_image_can_be_chosen(self) -> None:
        engine = pod(pair(routing={"sidecar": {"image": "own:1"}}), "decode")
        assert engine.sidecars[0]["image"] == "own:1"


class TestCaches:
    def key(self, spec: Any) -> str:
        first = spec.spec.roles[0]
        return cache_key(Task(spec, first, Seat(shape_of(first), 0, LEADER), IMAGES))

    def test_without_one_nothing_is_mounted(self) -> None:
        engine = pod()
        assert (engine.volumes, engine.mounts) == ((), ())
        assert "JAX_COMPILATION_CACHE_DIR" not in env(engine)

    @pytest.mark.parametrize(
        ("cache", "source"),
        [
            ({"persistentVolumeClaim": "xla"}, {"persistentVolumeClaim": {"claimName": "xla"}}),
            ({"hostPath": "/c"}, {"hostPath": {"path": "/c", "type": "DirectoryOrCreate"}}),
        ],
    )
    def test_compiled_programs_are_kept_in_a_directory_of_their_own(
        self, cache: dict[str, str], source: dict[str, Any]
    ) -> None:
        spec = inference(engine={"compileCache": cache})
        engine = pod(spec)
        root = f"/var/cache/tpu-operator/{self.key(spec)}"
        assert engine.volumes == ({"name": "compile-cache", **source},)
        assert engine.mounts == ({"name": "compile-cache", "mountPath": "/var/cache/tpu-operator"},)
        assert env(engine)["TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT"] == root
        assert env(engine)["VLLM_CACHE_ROOT"] == f"{root}/vllm"

    def test_object_storage_is_not_mounted(self) -> None:
        spec = inference(engine={"compileCache": {"uri": "gs://bucket/xla/"}})
        engine = pod(spec)
        assert engine.volumes == ()
        assert env(engine)["JAX_COMPILATION_CACHE_DIR"] == f"gs://bucket/xla/{self.key(spec)}/jax"
        assert "VLLM_CACHE_ROOT" not in env(engine)

    def test_the_directory_changes_with_what_programs_depend_on_and_comes_back_with_it(self) -> None:
        specs = [
            inference(),
            inference(engine={"image": "example/vllm:2"}),
            inference(engine={"args": ["--max-model-len", "1024"]}),
            inference(model={"name": "other"}),
            inference(role("serve", "prefill-decode", FOUR_HOSTS)),
            inference(role("serve", "prefill-decode", args=["--x"])),
        ]
        assert len({self.key(spec) for spec in specs}) == len(specs)
        assert self.key(inference()) == self.key(inference(replicas=3, drain={"engineSeconds": 1}))

    def test_weights_are_kept_beside(self) -> None:
        cache = {"persistentVolumeClaim": "weights"}
        engine = pod(inference(model={"name": "m", "cache": cache}))
        assert engine.mounts == ({"name": "weights", "mountPath": "/var/cache/weights"},)
        assert env(engine)["HF_HOME"] == "/var/cache/weights"


class TestCustom:
    def test_its_command_is_the_users(self) -> None:
        spec = inference(role("serve", "prefill-decode", args=["b"]), engine=CUSTOM | {"args": ["a"]})
        engine = pod(spec)
        assert engine.command == ("serve", "a", "b")
        assert engine.image == "example/server:1"

    def test_without_a_command_it_says_why_one_is_needed(self) -> None:
        (problem,) = pod(inference(engine=CUSTOM | {"command": []})).problems
        assert problem.startswith("spec.engine.command is empty: name the program")


class TestSGLang:
    def test_flags_of_the_slice_and_of_the_role(self) -> None:
        engine = pod(multi_host(engine=CUSTOM | {"type": "sglang", "command": []}), "prefill", 1)
        assert engine.command[:3] == ("python3", "-m", "sglang.launch_server")
        assert value(engine, "--node-rank") == "1"
        assert value(engine, "--dist-init-addr") == f"{LEADER}:20000"
        assert value(engine, "--disaggregation-mode") == "prefill"
        assert value(engine, "--tp-size") == "16"

    def test_its_arguments_are_free(self) -> None:
        args = ["--tp", "4", "--disaggregation-mode=null"]
        engine = pod(pair(engine=CUSTOM | {"type": "sglang", "args": args}), "decode")
        assert value(engine, "--tp-size") is None
        assert value(engine, "--disaggregation-mode") is None
        assert engine.command[-3:] == tuple(args)

    def test_the_sidecar_speaks_its_protocol(self) -> None:
        spec = pair(engine=CUSTOM | {"type": "sglang"}, routing={"sidecar": {}})
        assert "--kv-connector=sglang" in pod(spec, "decode").sidecars[0]["args"]


def test_the_users_variables_come_last_and_may_refer_to_ours() -> None:
    engine = pod(inference(engine={"env": [{"name": "ADDRESS", "value": "$(POD_IP):1"}]}))
    names = [variable["name"] for variable in engine.env]
    assert names.index("POD_IP") < names.index("ADDRESS")


def test_an_image_is_that_of_the_installation_where_none_is_named() -> None:
    assert pod(inference(engine={"image": None})).image == "example/runtime:1"

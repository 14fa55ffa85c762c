"""Reading and checking the environment of a TPU container."""

from __future__ import annotations

import pytest

from tests.unit.runtime.harness import variables
from tpu_runtime.environment import BadEnvironmentError, read_environment


def problems(env: dict[str, str]) -> list[str]:
    with pytest.raises(BadEnvironmentError) as caught:
        read_environment(env)
    assert caught.value.exit_code == 64
    return caught.value.problems


def test_a_good_environment_is_read_whole() -> None:
    env = read_environment(variables(slice_index=1, host=2, slices=2, hosts=4, launcher="jax", attempt=3))
    assert (env.place.slice_index, env.place.host, env.place.attempt) == (1, 2, 3)
    assert (env.place.num_hosts, env.place.index, env.place.job) == (8, 6, "TPUJob/default/job/")
    assert (env.hardware.topology, env.hardware.devices_per_host, env.hardware.emulated) == ("8x2", 4, True)
    assert env.identity.worker_id == 2
    assert env.coordinator == ("localhost", 8090)
    assert (env.settings.port, env.settings.gate_timeout, env.settings.grace) == (8090, 600.0, 25.0)


@pytest.mark.parametrize("launcher", ["none", "jax", "torchrun", "ray"])
@pytest.mark.parametrize("hosts", [1, 4])
@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("processes", [1, 4])
@pytest.mark.parametrize("emulate", ["cpu", ""])
def test_what_the_operator_gives_is_accepted(
    launcher: str, hosts: int, slices: int, processes: int, emulate: str
) -> None:
    if launcher == "torchrun" and not emulate:
        processes = 4
    for index in range(slices):
        for host in range(hosts):
            read_environment(
                variables(
                    slice_index=index,
                    host=host,
                    slices=slices,
                    hosts=hosts,
                    launcher=launcher,
                    processes=processes,
                    TPU_OPERATOR_EMULATE=emulate,
                )
            )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("TPU_OPERATOR_KIND", None, "the kind of the owner"),
        ("TPU_OPERATOR_NAME", "", "the owner's name"),
        ("TPU_OPERATOR_SLICE", "1", "less than TPU_OPERATOR_NUM_SLICES=1"),
        ("TPU_OPERATOR_SLICE", "-1", "a whole number of 0 or more"),
        ("TPU_OPERATOR_HOST", "4", "less than TPU_OPERATOR_HOSTS_PER_SLICE=4"),
        ("TPU_OPERATOR_NUM_SLICES", "0", "a whole number of 1 or more"),
        ("TPU_OPERATOR_HOSTS_PER_SLICE", "4.0", "a whole number of 1 or more"),
        ("TPU_OPERATOR_CHIPS_PER_HOST", "\u0664", "a whole number of 1 or more"),
        ("TPU_OPERATOR_DEVICES_PER_HOST", "6", "a multiple of TPU_OPERATOR_CHIPS_PER_HOST=4"),
        ("TPU_OPERATOR_TOPOLOGY", "4,4", "2 or 3 sizes such as 4x4 or 2x2x4"),
        ("TPU_OPERATOR_TOPOLOGY", "4x8", "16 chips"),
        ("TPU_OPERATOR_ACCELERATOR", None, "the type of TPU"),
        ("TPU_OPERATOR_ATTEMPT", "first", "a whole number of 0 or more"),
        ("TPU_OPERATOR_LAUNCHER", "mpi", "one of none, jax, torchrun, ray"),
        ("TPU_OPERATOR_EMULATE", "gpu", "cpu, or empty on real TPUs"),
        ("TPU_OPERATOR_COORDINATOR", None, "the DNS name of host 0 of slice 0"),
        ("TPU_OPERATOR_PROCESSES_PER_HOST", None, "a whole number of 1 or more"),
        ("TPU_WORKER_ID", "4", "less than the 4 names in TPU_WORKER_HOSTNAMES"),
        ("TPU_WORKER_ID", "3", "the number of host 2"),
        ("TPU_WORKER_HOSTNAMES", None, "host names without ports"),
        ("TPU_WORKER_HOSTNAMES", "a,b,c,d:80", "host names without ports"),
        ("TPU_WORKER_HOSTNAMES", "a,b,c", "4 names"),
        ("MEGASCALE_NUM_SLICES", "2", "empty, as TPU_OPERATOR_NUM_SLICES=1"),
        ("TPU_LAUNCH_PORT", "70000", "0 to 65535"),
        ("TPU_LAUNCH_GRACE_SECONDS", "soon", "a number of seconds"),
        ("TPU_LAUNCH_GATE_TIMEOUT_SECONDS", "nan", "a number of seconds"),
        ("TPU_LAUNCH_NOTICE_SIGNAL", "12", "the name of a signal such as USR1, or none"),
        ("TPU_LAUNCH_NOTICE_SIGNAL", "_DFL", "the name of a signal such as USR1, or none"),
    ],
)
def test_one_bad_value_is_one_problem(name: str, value: str | None, expected: str) -> None:
    [problem] = problems(variables({name: value}, hosts=4, host=2))
    found = f"{name} is not set" if value is None else f"{name}={value!r}"
    assert problem.startswith(f"{found}: expected {expected}")
    assert "; set by " in problem


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("NNODES", "4", "8, the hosts of all slices"),
        ("NODE_RANK", "2", "6, the number of this host among all"),
        ("MASTER_ADDR", None, "the DNS name of host 0"),
        ("MASTER_PORT", "0", "1 to 65535"),
        ("TORCH_TPU_TOPOLOGY", "8x2x1", "8,2,1: the slice in commas, 16 devices"),
        ("TORCH_TPU_TOPOLOGY", "2,2,1", "8,2,1: the slice in commas, 16 devices"),
        ("TORCH_TPU_SLICEBUILDER_ADDRESSES", "a:8070", "16 devices"),
        ("TORCH_TPU_SLICEBUILDER_ADDRESSES", ",".join(["[::1]:8070"] * 16), "host:port entries"),
        ("RANK", "0", "no value: torchrun gives each process its own"),
        ("WORLD_SIZE", "8", "no value: torchrun gives each process its own"),
        ("MEGASCALE_SLICE_ID", "0", "1 (TPU_OPERATOR_SLICE)"),
        ("MEGASCALE_NUM_SLICES", "", "2 (TPU_OPERATOR_NUM_SLICES)"),
        ("MEGASCALE_COORDINATOR_ADDRESS", "", "the DNS name of host 0"),
    ],
)
def test_torchrun_and_multislice(name: str, value: str | None, expected: str) -> None:
    good = variables(slice_index=1, host=2, slices=2, hosts=4, launcher="torchrun")
    read_environment(good)
    changed = {key: text for key, text in {**good, name: value}.items() if text is not None}
    [problem] = problems(changed)
    assert problem.startswith(name)
    assert f"expected {expected}" in problem


def test_all_problems_are_told_at_once_and_none_twice() -> None:
    found = problems(
        variables(
            hosts=4,
            TPU_OPERATOR_HOSTS_PER_SLICE="four",  # three checks depend on it, and keep silent
            TPU_OPERATOR_EMULATE="yes",
            TPU_WORKER_ID="",
            TPU_LAUNCH_GRACE_SECONDS="-1",
        )
    )
    assert [problem.partition("=")[0] for problem in found] == [
        "TPU_OPERATOR_HOSTS_PER_SLICE",
        "TPU_OPERATOR_EMULATE",
        "TPU_WORKER_ID",
        "TPU_LAUNCH_GRACE_SECONDS",
    ]


@pytest.mark.parametrize(
    ("name", "setter"),
    [
        ("TPU_OPERATOR_TOPOLOGY", "the operator from spec.tpu.topology"),
        ("TPU_OPERATOR_LAUNCHER", "the operator from spec.run.launcher"),
        ("TPU_WORKER_ID", "the operator"),
        ("TPU_LAUNCH_GRACE_SECONDS", "spec.run.env, or the option of the same name"),
    ],
)
def test_a_problem_says_who_sets_the_variable(name: str, setter: str) -> None:
    [problem] = problems(variables({name: "?"}))
    assert problem.endswith(f"set by {setter}")


def test_an_order_of_hosts_that_the_user_has_chosen_stands() -> None:
    """The operator leaves TPU_PROCESS_ADDRESSES out where the user sets the identity."""
    env = variables(
        hosts=4, host=2, launcher="torchrun", TPU_WORKER_ID="0", TPU_PROCESS_ADDRESSES=None, NODE_RANK="0"
    )
    assert read_environment(env).identity.worker_id == 0


def test_several_tpu_containers_in_a_pod_hold_one_process_each() -> None:
    env = variables(
        hosts=2,
        host=1,
        processes=2,
        launcher="jax",
        TPU_WORKER_ID="3",
        TPU_WORKER_HOSTNAMES="a,a,b,b",
        TPU_PROCESS_ADDRESSES="a:8476,a:8477,b:8476,b:8477",
        TPU_PROCESS_PORT="8477",
    )
    read = read_environment(env)
    assert (read.identity.containers, read.processes, read.identity.worker_id) == (2, 1, 3)


@pytest.mark.parametrize(
    ("emulate", "processes", "good"), [("cpu", 2, True), ("cpu", 3, False), ("", 2, False), ("", 4, True)]
)
def test_jax_processes_must_share_the_devices_evenly(emulate: str, processes: int, good: bool) -> None:
    env = variables(launcher="jax", processes=processes, TPU_OPERATOR_EMULATE=emulate)
    if good:
        read_environment(env)
    else:
        [problem] = problems(env)
        assert problem.startswith("TPU_OPERATOR_PROCESSES_PER_HOST")


def test_jax_addresses_must_be_one_for_each_process() -> None:
    [problem] = problems(variables(launcher="jax", hosts=2, TPU_PROCESS_ADDRESSES="a:8476"))
    assert problem.startswith("TPU_PROCESS_ADDRESSES='a:8476': expected 2 addresses")

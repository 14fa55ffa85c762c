"""What must hold between variables: the traps of TorchTPU, JAX and libtpu, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.runtime.harness import variables
from tpu_runtime.environment import BadEnvironmentError, read_environment
from tpu_runtime.frameworks import commands, torchtpu

if TYPE_CHECKING:
    from pathlib import Path

NAMES = "job-1-0.job,job-1-1.job"
GROUPS = [[f"job-1-{host}.job:{8070 + i}" for i in range(4)] for host in range(2)]


def two_slices(changes: dict[str, str | None] | None = None, launcher: str = "torchrun") -> dict[str, str]:
    """Host 1 of slice 1 of two, four processes on each of its four chips."""
    good = {
        "HOSTNAME": "job-1-1",
        "TPU_WORKER_HOSTNAMES": NAMES,
        "TPU_OPERATOR_EMULATE": "",
        "MASTER_ADDR": "job-0-0.job",
        "MEGASCALE_COORDINATOR_ADDRESS": "job-0-0.job:8080",
        "TORCH_TPU_SLICEBUILDER_ADDRESSES": ",".join(GROUPS[0] + GROUPS[1]),
    }
    return variables(
        good | (changes or {}), launcher=launcher, slices=2, slice_index=1, hosts=2, host=1, processes=4
    )


def alone(changes: dict[str, str | None]) -> dict[str, str]:
    """The one host of one slice."""
    return variables({"TPU_OPERATOR_EMULATE": ""} | changes, launcher="torchrun", processes=4)


def problem(env: dict[str, str]) -> str:
    with pytest.raises(BadEnvironmentError) as caught:
        read_environment(env)
    [found] = caught.value.problems
    return found


def test_what_is_right_is_accepted() -> None:
    read_environment(two_slices())
    read_environment(two_slices(launcher="jax"))
    read_environment(alone({}))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        # trap 1: the topology of one host for a slice of two
        ("TORCH_TPU_TOPOLOGY", "2,2,1", "4,2,1: the slice in commas, 8 devices"),
        ("TORCH_TPU_TOPOLOGY", None, "4,2,1"),
        ("TORCH_TPU_TOPOLOGY", "2,4,1", "4,2,1"),
        # trap 2: an index that TorchTPU takes for a rank
        ("JOB_COMPLETION_INDEX", "1", "no value, or 3: TorchTPU takes it for NODE_RANK"),
        ("NODE_RANK", "1", "3, the number of this host among all"),
        # trap 3
        ("TPU_WORKER_HOSTNAMES", None, "host names without ports"),
        # trap 4: ranks, addresses and rank 0's host in one order
        ("TORCH_TPU_SLICEBUILDER_ADDRESSES", ",".join(GROUPS[1] + GROUPS[0]), "the hosts in the order of"),
        ("TORCH_TPU_SLICEBUILDER_ADDRESSES", ",".join(GROUPS[0] + GROUPS[0]), "no address twice"),
        (
            "TORCH_TPU_SLICEBUILDER_ADDRESSES",
            ",".join(address for pair in zip(*GROUPS, strict=True) for address in pair),
            "the 4 devices of each host one after the other",
        ),
        ("TORCH_TPU_SLICEBUILDER_ADDRESSES", ",".join(GROUPS[0]), "8 devices: hosts per slice times"),
        ("MASTER_ADDR", "job-1-0.job", "job-0-0.job, host 0 of slice 0, which has rank 0"),
        ("HOSTNAME", "job-1-0", "TPU_WORKER_ID"),
        # trap 5
        ("TORCH_TPU_TOPOLOGY", "4x2x1", "4,2,1: the slice in commas"),
        # trap 6
        ("TORCH_TPU_XPROF_SESSION_ID", None, "a whole number, the same on all hosts"),
        # trap 10 and one process for each device
        ("TPU_OPERATOR_PROCESSES_PER_HOST", "2", "4 (TPU_OPERATOR_DEVICES_PER_HOST): TorchTPU wants one"),
        ("TORCH_TPU_DEVICES_PER_HOST", "2", "4 (TPU_OPERATOR_DEVICES_PER_HOST)"),
        # no rank for a pod
        ("LOCAL_RANK", "0", "no value: torchrun gives each process its own"),
        # ports that TorchTPU forces on MegaScale: 8080 to 8087 for four processes
        ("MEGASCALE_COORDINATOR_ADDRESS", "job-0-0.job:9000", "port 8080, or none: TorchTPU lets rank 0"),
        ("MEGASCALE_PORT", "9000", "no value: port 8080"),
        ("TPU_LAUNCH_PORT", "8087", "another port than 8087, which is for MegaScale"),
        ("TPU_LAUNCH_PORT", "8073", "another port than 8073, which is for TORCH_TPU_SLICEBUILDER_ADDRESSES"),
        ("MASTER_PORT", "8080", "another port than 8080, which is for MegaScale"),
        # the device plugin of a node of another slice
        ("TPU_TOPOLOGY", "2x2", "4x2 (TPU_OPERATOR_TOPOLOGY)"),
    ],
)
def test_each_trap_is_one_problem_that_says_what_is_wrong(
    name: str, value: str | None, expected: str
) -> None:
    assert expected in problem(two_slices({name: value}))


@pytest.mark.parametrize(
    "name", ["MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "MEGASCALE_PORT"]
)
def test_trap_7_what_another_slice_would_need_makes_a_lone_slice_wait(name: str) -> None:
    found = problem(alone({name: "2"}))
    assert found.startswith(f"{name}='2': expected empty, as TPU_OPERATOR_NUM_SLICES=1")


def test_several_containers_are_not_for_torchrun() -> None:
    names = ",".join(["job-0-0.job"] * 2)
    changes: dict[str, str | None] = {"TPU_WORKER_HOSTNAMES": names, "MASTER_ADDR": "job-0-0.job"}
    assert "all chips of a host belong to one container" in problem(alone(changes))


def test_chips_with_two_devices_have_a_fourth_dimension() -> None:
    changes: dict[str, str | None] = {
        "TPU_OPERATOR_DEVICES_PER_HOST": "8",
        "TPU_OPERATOR_PROCESSES_PER_HOST": "8",
        "TORCH_TPU_DEVICES_PER_HOST": "8",
        "TORCH_TPU_SLICEBUILDER_ADDRESSES": ",".join(f"localhost:{8070 + i}" for i in range(8)),
    }
    assert "expected 2,2,1,2: the slice in commas, 8 devices" in problem(alone(changes))
    read_environment(alone(changes | {"TORCH_TPU_TOPOLOGY": "2,2,1,2"}))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("TPU_HOST_BOUNDS", "1,1,1", "hosts that have 8 chips in all"),
        ("TPU_PROCESS_ADDRESSES", ",".join(["localhost:8476"] * 8), "no address twice"),
        ("TPU_PROCESS_PORT", "8476", "8480, the port of this process in TPU_PROCESS_ADDRESSES"),
    ],
)
def test_jax_on_a_wrong_node_or_with_wrong_addresses(name: str, value: str, expected: str) -> None:
    bounds: dict[str, str | None] = {"TPU_HOST_BOUNDS": "2,1,1", "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1"}
    read_environment(two_slices(bounds, "jax"))
    assert expected in problem(two_slices(bounds | {name: value}, "jax"))


@pytest.mark.parametrize(
    ("name", "users", "source"),
    [
        ("NODE_RANK", "", "the operator"),
        ("NODE_RANK", "A,NODE_RANK", "the job, in spec.run.env or spec.template"),
        ("RANK", "", "the image, the node's device plugin, or an envFrom of spec.template"),
        ("RANK", "RANK", "the job, in spec.run.env or spec.template"),
    ],
)
def test_a_problem_says_where_the_value_comes_from(name: str, users: str, source: str) -> None:
    found = problem(two_slices({name: "9", "TPU_OPERATOR_SET_BY_USER": users}))
    assert found.endswith(f"set by {source}")


def test_addresses_in_numbers_stand() -> None:
    numbers = ",".join(f"10.0.0.{host}:{8070 + i}" for host in range(2) for i in range(4))
    changes: dict[str, str | None] = {"TORCH_TPU_SLICEBUILDER_ADDRESSES": numbers, "MASTER_ADDR": "10.0.1.0"}
    read_environment(two_slices(changes))


def test_the_agent_gets_caches_and_the_allocator_unless_the_user_has_his_own(tmp_path: Path) -> None:
    env = read_environment(alone({}))
    assert torchtpu.variables(env, tmp_path) == {"TORCH_TPU_TIER2_COMPILATION_CACHE": "default"}
    library = tmp_path / "usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"
    library.parent.mkdir(parents=True)
    library.touch()
    preload = {"LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"}
    assert torchtpu.variables(env, tmp_path).items() >= preload.items()
    library.with_name("libtcmalloc.so.4").touch()
    assert torchtpu.variables(env, tmp_path)["LD_PRELOAD"].endswith("/libtcmalloc.so.4")


def test_the_users_cache_stands() -> None:
    env = read_environment(alone({"TORCH_TPU_TIER2_COMPILATION_CACHE": "disabled", "LD_PRELOAD": "mine.so"}))
    [command] = commands(env, ["python", "train.py"])
    assert command.variables["TORCH_TPU_TIER2_COMPILATION_CACHE"] == "disabled"
    assert command.variables["LD_PRELOAD"] == "mine.so"

"""Jobs of torch_xla (`PJRT_DEVICE=TPU`): what the launcher leaves to it, played as its version 2.9.0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.runtime.harness import variables
from tpu_runtime import frameworks
from tpu_runtime.environment import USERS, read_environment

if TYPE_CHECKING:
    from tpu_runtime.processes import Command

ADDRESSES, PORT = "TPU_PROCESS_ADDRESSES", "TPU_PROCESS_PORT"
CHIPS = 4


def started(**options: Any) -> Command:
    container = variables(**{"PJRT_DEVICE": "TPU", "TPU_OPERATOR_EMULATE": "", **options})
    [command] = frameworks.commands(read_environment(container), ["python", "train.py"])
    return command


def spawned(host: int, rank: int) -> dict[str, str]:
    """The environment of a process that `torch_xla.launch` starts: what is there already, it leaves alone."""
    environment = dict(started(hosts=2, host=host).variables)
    ports = range(8476, 8476 + CHIPS)
    hosts = environment["TPU_WORKER_HOSTNAMES"].split(",")
    environment.setdefault(ADDRESSES, ",".join(f"{one}:{port}" for one in hosts for port in ports))
    environment.setdefault(PORT, str(ports[rank]))
    environment.setdefault("CLOUD_TPU_TASK_ID", str(int(environment["TPU_WORKER_ID"]) * CHIPS + rank))
    return environment


def test_processes_of_torch_xla_have_addresses_and_ports_of_their_own() -> None:
    processes = [spawned(host, rank) for host in range(2) for rank in range(CHIPS)]
    assert {len(one[ADDRESSES].split(",")) for one in processes} == {len(processes)}
    assert [one["CLOUD_TPU_TASK_ID"] for one in processes] == [str(n) for n in range(len(processes))]
    assert [one[PORT] for one in processes[:CHIPS]] == ["8476", "8477", "8478", "8479"]


@pytest.mark.parametrize("launcher", ["none", "torchrun"])
def test_all_else_that_it_reads_is_there(launcher: str) -> None:
    processes = {"torchrun": CHIPS, "none": 1}[launcher]
    container = variables(hosts=2, host=1, launcher=launcher, processes=processes)
    command = started(hosts=2, host=1, launcher=launcher, processes=processes)
    assert container.keys() - command.variables.keys() == {ADDRESSES, PORT}
    assert command.variables["PJRT_DEVICE"] == "TPU"
    assert command.variables["TPU_WORKER_ID"] == "1"
    assert command.variables["TPU_WORKER_HOSTNAMES"] == "localhost,localhost"


def test_what_the_job_has_set_stays() -> None:
    mine = {ADDRESSES: "localhost:9000", PORT: "9000"}
    command = started(**mine, **{USERS: f"A,{ADDRESSES},{PORT}"})
    assert {name: command.variables[name] for name in mine} == mine


@pytest.mark.parametrize("device", ["CPU", "", None])
def test_without_a_tpu_nothing_is_left_out(device: str | None) -> None:
    command = started(PJRT_DEVICE=device)
    assert {ADDRESSES, PORT} <= command.variables.keys()


def test_jax_has_the_addresses_whatever_else_is_set() -> None:
    assert {ADDRESSES, PORT} <= started(launcher="jax").variables.keys()

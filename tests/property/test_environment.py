"""The environment of every slice shape that GKE offers, checked by the launcher and once more from the facts.

All hosts of slices with up to 64 of them. Larger ones have lists of up to 18,000 entries: there one host is
checked, of another place and number of slices from row to row, and what all hosts share on four of them.
"""

from __future__ import annotations

import csv
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tpu_operator.api import Launcher
from tpu_operator.catalog import resolve
from tpu_operator.core.environment import GangSpec, Place, tpu_environment
from tpu_operator.core.objects.hosts import process_ports
from tpu_operator.core.settings import PodSettings
from tpu_runtime.environment import read_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

Row = dict[str, str]

TABLE = Path(__file__).parents[1] / "unit" / "catalog" / "topologies.tsv"
ROWS = list(csv.DictReader(TABLE.read_text().splitlines(), delimiter="\t"))
SMALL = 64
SETTINGS = PodSettings("runtime", "launcher", inject_topology_env=True)
RAY_PORTS = [6379, 8265, 8266, 8267]
NEVER = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "JOB_COMPLETION_INDEX", "MEGASCALE_PORT"}


def gang(row: Row, slices: int, launcher: Launcher, processes: int) -> GangSpec:
    shape = resolve(row["accelerator"], row["topology"], int(row["chips_per_host"]))
    return GangSpec("TPUJob", "j", "ns", "uid", shape, slices, "j", launcher, processes, 60)


def gangs(row: Row) -> Iterator[GangSpec]:
    """Each launcher on one slice and on two, with each number of processes that it can have."""
    chips, hosts = int(row["chips_per_host"]), int(row["hosts"])
    devices = int(row["devices"]) // hosts
    processes = {
        Launcher.TORCHRUN: [devices],
        Launcher.RAY: [1],
        Launcher.JAX: sorted({1, chips}),
        Launcher.NONE: [1],
    }
    for launcher, counts in processes.items():
        for count in counts if hosts <= SMALL else counts[:1]:
            yield gang(row, 1, launcher, count)
            yield gang(row, 2, launcher, count)


def environment(spec: GangSpec, index: int, host: int) -> dict[str, str]:
    place = Place(index, host, attempt=0, process_ports=process_ports([{}], spec))
    return tpu_environment(spec, place, SETTINGS) | {"HOSTNAME": f"j-{index}-{host}"}


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def check_identity(env: dict[str, str], spec: GangSpec, row: Row, index: int, host: int) -> None:
    names = env["TPU_WORKER_HOSTNAMES"].split(",")
    assert len(set(names)) == len(names) == int(row["hosts"])
    assert ":" not in env["TPU_WORKER_HOSTNAMES"]
    assert (int(env["TPU_WORKER_ID"]), names[host]) == (host, f"j-{index}-{host}.j")
    addresses = env["TPU_PROCESS_ADDRESSES"].split(",")
    assert len(set(addresses)) == len(addresses) == len(names) * spec.processes_per_host
    assert addresses[host * spec.processes_per_host] == f"{names[host]}:{env['TPU_PROCESS_PORT']}"
    assert env["TPU_NAME"] == f"j-{index}"
    assert env["TPU_SKIP_MDS_QUERY"] == "true"
    assert not NEVER & env.keys()


def check_megascale(env: dict[str, str], spec: GangSpec, index: int) -> None:
    values = [env[f"MEGASCALE_{key}"] for key in ("NUM_SLICES", "SLICE_ID", "COORDINATOR_ADDRESS")]
    assert values == (["2", str(index), "j-0-0.j:8080"] if spec.num_slices == 2 else [""] * 3)


def check_bounds(env: dict[str, str], row: Row) -> None:
    chips, hosts = env["TPU_CHIPS_PER_HOST_BOUNDS"], env["TPU_HOST_BOUNDS"]
    assert prod(numbers(chips)) == int(row["chips_per_host"])
    assert prod(numbers(chips)) * prod(numbers(hosts)) == int(row["chips"])
    assert (chips, hosts) == (row["chips_per_host_bounds"], row["host_bounds"])
    assert (env["TPU_TOPOLOGY"], env["TPU_TOPOLOGY_WRAP"]) == (row["topology"], row["wrap"])
    assert env["TPU_ACCELERATOR_TYPE"] == row["accelerator_type"]


def check_torch(env: dict[str, str], spec: GangSpec, row: Row, index: int, host: int) -> None:
    hosts, devices = int(row["hosts"]), int(row["devices"])
    grid = numbers(env["TORCH_TPU_TOPOLOGY"])
    assert prod(grid) == devices
    dual = row["accelerator"] == "tpu7x"
    assert grid[3:] == ([2] if dual else [])
    assert grid[:3] == [*map(int, row["topology"].split("x")), 1][:3]
    addresses, names = (
        env[name].split(",") for name in ("TORCH_TPU_SLICEBUILDER_ADDRESSES", "TPU_WORKER_HOSTNAMES")
    )
    assert len(set(addresses)) == len(addresses) == devices
    ports = [address.partition(":")[2] for address in addresses[: devices // hosts]]
    assert addresses == [f"{name}:{port}" for name in names for port in ports]
    assert int(env["TORCH_TPU_DEVICES_PER_HOST"]) == devices // hosts
    assert int(env["NNODES"]) * int(env["TORCH_TPU_DEVICES_PER_HOST"]) == devices * spec.num_slices
    assert int(env["NODE_RANK"]) == index * hosts + host
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("j-0-0.j", "29500")
    assert env["TORCH_TPU_XPROF_SESSION_ID"].isdecimal()


def check_ports(env: dict[str, str], spec: GangSpec, host: int) -> None:
    """No two servers of a host on one port, those included that are not in our hands."""
    used = [int(env.get("TPU_LAUNCH_PORT", "8090"))]
    own = env["TPU_WORKER_HOSTNAMES"].split(",")[host]
    if spec.launcher is Launcher.RAY:
        used += RAY_PORTS
    if spec.launcher in {Launcher.TORCHRUN, Launcher.RAY}:
        prefix = f"{own}:"
        addresses = env["TORCH_TPU_SLICEBUILDER_ADDRESSES"].split(",")
        per_host = spec.shape.devices_per_host
        mine = addresses[host * per_host : (host + 1) * per_host]
        used += [int(a.removeprefix(prefix)) for a in mine]
        used += [29500]
        used += range(8080, 8080 + 2 * per_host) if spec.num_slices > 1 else []
    if spec.launcher is Launcher.JAX:
        used += [*process_ports([{}], spec), 8482]
    assert len(set(used)) == len(used)


def check(spec: GangSpec, row: Row, index: int, host: int) -> dict[str, str]:
    env = environment(spec, index, host)
    check_identity(env, spec, row, index, host)
    check_megascale(env, spec, index)
    check_bounds(env, row)
    check_ports(env, spec, host)
    torch = spec.launcher in {Launcher.TORCHRUN, Launcher.RAY}
    if torch:
        check_torch(env, spec, row, index, host)
    else:
        assert not [key for key in env if key.startswith(("TORCH_", "MASTER_", "NNODES", "NODE_RANK"))]
    return env


def launch(env: dict[str, str], spec: GangSpec, row: Row) -> None:
    """The launcher takes the environment, and understands it."""
    read = read_environment(env)
    assert read.place.num_hosts == int(row["hosts"]) * spec.num_slices
    assert read.place.hosts_per_slice * read.hardware.chips_per_host == int(row["chips"])
    assert read.processes == spec.processes_per_host


def shared(env: dict[str, str]) -> tuple[str | None, ...]:
    """What must be the same on all hosts of a slice."""
    lists = ("TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES", "TORCH_TPU_SLICEBUILDER_ADDRESSES")
    return tuple(env.get(name) for name in (*lists, "TORCH_TPU_XPROF_SESSION_ID", "MASTER_ADDR"))


ACCELERATORS = sorted({row["accelerator"] for row in ROWS})


@pytest.mark.parametrize("accelerator", ACCELERATORS)
def test_every_host_of_every_small_slice(accelerator: str) -> None:
    for row in ROWS:
        if row["accelerator"] == accelerator and int(row["hosts"]) <= SMALL:
            for spec in gangs(row):
                check_all_hosts(spec, row)


def check_all_hosts(spec: GangSpec, row: Row) -> None:
    for index in range(spec.num_slices):
        envs = [check(spec, row, index, host) for host in range(spec.shape.hosts)]
        assert len({shared(env) for env in envs}) == 1
        for env in envs:
            launch(env, spec, row)


@pytest.mark.parametrize("accelerator", ACCELERATORS)
def test_hosts_of_every_large_slice(accelerator: str) -> None:
    large = [row for row in ROWS if row["accelerator"] == accelerator and int(row["hosts"]) > SMALL]
    for number, row in enumerate(large):
        launchers = {
            Launcher.TORCHRUN,
            (Launcher.JAX, Launcher.NONE)[number % 2] if number % 16 < 2 else None,
        }
        for spec in gangs(row):
            if spec.launcher in launchers and spec.num_slices == 1 + number % 2:
                check_some_hosts(spec, row, number)


def check_some_hosts(spec: GangSpec, row: Row, number: int) -> None:
    index, last = spec.num_slices - 1, spec.shape.hosts - 1
    places = (0, 1, last // 2, last)
    assert len({shared(environment(spec, index, host)) for host in places}) == 1
    launch(check(spec, row, index, places[number // 2 % 4]), spec, row)


def test_all_shapes_are_there() -> None:
    assert len(ROWS) == 1051

"""JAX: `jax.distributed.initialize()` without arguments, on TPU and in emulation.

JAX finds its peers by TPU_WORKER_ID and TPU_PROCESS_ADDRESSES (one entry for each process, and it wins) or
TPU_WORKER_HOSTNAMES, and takes MEGASCALE_* into account. JAX_NUM_PROCESSES and JAX_PROCESS_ID it does
not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpu_runtime.environment import HostEnvironment

_PROCESS_PORT = 8476
_COORDINATOR_PORT = 8482
"""JAX's own choice, in the midst of the ports of a host with eight processes."""
_MEGASCALE = ("MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID")


def variables(env: HostEnvironment, local_rank: int) -> dict[str, str]:
    """What one process needs beyond the environment of its container."""
    defaults = _emulation(env) if env.hardware.emulated else {}
    if env.place.num_slices == 1:
        # Where one is absent, JAX asks a metadata server for minutes before it believes that.
        defaults.update(dict.fromkeys(_MEGASCALE, ""))
    added = {name: value for name, value in defaults.items() if name not in env.variables}
    if env.processes > 1:
        added.update(_one_of_many(env, local_rank))
    return added


def _emulation(env: HostEnvironment) -> dict[str, str]:
    """JAX on the CPU that takes itself for a TPU host as far as finding its peers is concerned."""
    return {
        "JAX_PLATFORMS": "cpu",
        "JAX_FORCE_TPU_INIT": "1",
        "JAX_NUM_CPU_DEVICES": str(env.hardware.devices_per_host // env.processes),
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
    }


def _one_of_many(env: HostEnvironment, local_rank: int) -> dict[str, str]:
    """Tell the processes of a host apart. These replace the values of the container, which are the host's."""
    worker = env.identity.worker_id * env.processes + local_rank
    addresses = env.identity.addresses or tuple(
        f"{host}:{port}" for host in env.identity.hostnames for port in _process_ports(env.processes)
    )
    added = {
        "TPU_WORKER_ID": str(worker),
        "TPU_PROCESS_ADDRESSES": ",".join(addresses),
        "TPU_PROCESS_PORT": addresses[worker].rpartition(":")[2],
    }
    return added if env.hardware.emulated else {**added, **_one_chip(env, worker, local_rank)}


def _process_ports(count: int) -> list[int]:
    ports = range(_PROCESS_PORT, _PROCESS_PORT + count + 1)
    return [port for port in ports if port != _COORDINATOR_PORT][:count]


def _one_chip(env: HostEnvironment, worker: int, local_rank: int) -> dict[str, str]:
    """What libtpu wants for one process per chip, as JAX's own multi-process tests set it."""
    bounds = [*env.hardware.topology.split("x"), "1"][:3]
    return {
        "CLOUD_TPU_TASK_ID": str(worker),
        "TPU_VISIBLE_CHIPS": str(local_rank),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": ",".join(bounds),
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }

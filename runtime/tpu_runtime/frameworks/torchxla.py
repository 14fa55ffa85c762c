"""torch_xla, TorchTPU's predecessor: jobs that have PJRT_DEVICE=TPU run as they did, by `none` or `torchrun`.

torch_xla gives each of its processes a chip, an address and a port, but only where none is set. With the
operator's addresses, one for each process that the launcher starts, all that `torch_xla.launch` starts on a
host would have the same port, and libtpu would find too few addresses. Without them, torch_xla makes its own;
and where one process has all chips of its host, libtpu finds the others by TPU_WORKER_HOSTNAMES.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpu_runtime.environment import by_user

if TYPE_CHECKING:
    from tpu_runtime.environment import HostEnvironment

DEVICE = "PJRT_DEVICE"
_LAUNCHERS = ("none", "torchrun")
_ADDRESSES = frozenset({"TPU_PROCESS_ADDRESSES", "TPU_PROCESS_PORT"})


def addressed(env: HostEnvironment) -> HostEnvironment:
    """The environment, without the addresses of processes if torch_xla makes them; those of the job stay."""
    if env.launcher not in _LAUNCHERS or not env.variables.get(DEVICE, "").startswith("TPU"):
        return env
    left_out = _ADDRESSES - by_user(env.variables)
    kept = {name: value for name, value in env.variables.items() if name not in left_out}
    return replace(env, variables=kept)

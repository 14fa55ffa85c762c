"""What each launcher (`spec.run.launcher`) starts on a host, as pure functions of its environment.

A variable that is set already is never overwritten: it may be the user's. The exceptions are the few that
must differ between the processes of one host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpu_runtime import emulate
from tpu_runtime.frameworks import jax, torchtpu, torchxla
from tpu_runtime.processes import Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpu_runtime.environment import HostEnvironment

LOCAL_RANK = "TPU_OPERATOR_LOCAL_RANK"
"""Index of a process on its host, for launchers `none` and `jax`; torchrun sets LOCAL_RANK itself."""


def commands(env: HostEnvironment, argv: Sequence[str]) -> list[Command]:
    """The processes of this host, each with its whole environment."""
    env = torchxla.addressed(env)
    if env.launcher == "torchrun":
        return [Command(torchtpu.agent_command(env, argv), {**env.variables, **torchtpu.variables(env)})]
    return [Command(argv, _variables(env, local_rank), local_rank) for local_rank in range(env.processes)]


def _variables(env: HostEnvironment, local_rank: int) -> dict[str, str]:
    if env.launcher == "jax":
        added = jax.variables(env, local_rank)
    else:
        added = emulate.variables(env.variables) if env.hardware.emulated else {}
    return {**env.variables, LOCAL_RANK: str(local_rank), **added}

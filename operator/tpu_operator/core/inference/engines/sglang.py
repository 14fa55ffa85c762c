"""SGLang: the flags that all of its ports to accelerators share; everything else is the user's.

Sources: SGLang's server arguments (several hosts, prefill and decode). Those of its port to TorchTPU are not
published, so that a flag which the user gives always stands in for ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpu_operator.api import RoleType
from tpu_operator.core.inference.engines.arguments import with_flags
from tpu_operator.core.inference.engines.caches import weights
from tpu_operator.core.inference.engines.layout import disaggregated, engine_port
from tpu_operator.core.inference.engines.run import Port, Run

if TYPE_CHECKING:
    from tpu_operator.core.inference.engines.pod import Task

COMMAND: Final = ["python3", "-m", "sglang.launch_server"]
RENDEZVOUS_PORT: Final = 20000
BOOTSTRAP_PORT: Final = 8998
"""Where a decoder learns which prefiller has its KV."""
MODES: Final = {RoleType.PREFILL: "prefill", RoleType.DECODE: "decode"}


def run(task: Task) -> Run:
    """How one host runs it."""
    flags = [*_server(task), *_slice(task), *_disaggregation(task)]
    ports = (Port("bootstrap", BOOTSTRAP_PORT),) if _mode(task) == "prefill" and task.seat.leads else ()
    return Run([*(task.engine.command or COMMAND), *with_flags(flags, task.user_args)], ports=ports)


def _server(task: Task) -> list[tuple[str, ...]]:
    found = weights(task)
    flags: list[tuple[str, ...]] = [
        ("--model-path", found.location),
        ("--served-model-name", task.inference.spec.model.name),
        ("--host", "0.0.0.0"),  # noqa: S104 - the address of a container is not known before it runs
        ("--port", str(engine_port(task))),
    ]
    return [*flags, ("--revision", found.revision)] if found.revision else flags


def _slice(task: Task) -> list[tuple[str, ...]]:
    seat = task.seat
    tensor: list[tuple[str, ...]] = [("--tp-size", str(seat.devices))]
    # Its other spelling, which with_flags would not find.
    flags = [] if "--tensor-parallel-size" in task.user_args or "--tp" in task.user_args else tensor
    if seat.shape.hosts == 1:
        return flags
    return [
        *flags,
        ("--nnodes", str(seat.shape.hosts)),
        ("--node-rank", str(seat.host)),
        ("--dist-init-addr", f"{seat.leader}:{RENDEZVOUS_PORT}"),
    ]


def _disaggregation(task: Task) -> list[tuple[str, ...]]:
    mode, transfer = _mode(task), task.inference.spec.kv_transfer
    if not mode:
        return []
    backend = [("--disaggregation-transfer-backend", transfer.connector)] if transfer else []
    return [("--disaggregation-mode", mode), *backend]


def _mode(task: Task) -> str:
    return MODES.get(task.role.type, "") if disaggregated(task) else ""

"""vLLM on TorchTPU: one host, or one engine over several by vLLM's own processes, data parallelism or Ray.

Sources: vLLM-TorchTPU 0.29, its multi-host modes and the manifests of its tests. Which mode it is, the spec
says in vLLM's own words: `--data-parallel-size`, and the variable TPU_MULTIHOST_BACKEND.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpu_operator.api import Launcher, RoleType
from tpu_operator.core.environment import torch_topology
from tpu_operator.core.inference.engines import kv, probes
from tpu_operator.core.inference.engines.arguments import flag, number, with_flags
from tpu_operator.core.inference.engines.caches import weights
from tpu_operator.core.inference.engines.layout import engine_port
from tpu_operator.core.inference.engines.run import Port, Run

if TYPE_CHECKING:
    from tpu_operator.core.inference.engines.pod import Task

COMMAND: Final = ["vllm", "serve"]
MASTER_PORT: Final = 29501
"""vLLM-TorchTPU meets at the next one."""
RPC_PORT: Final = 29550
"""Of data parallelism; the next one, and a hundred to a hundred and four above it, are taken too."""
BACKEND: Final = "TPU_MULTIHOST_BACKEND"
TENSOR: Final = ("--tensor-parallel-size", "-tp")
PIPELINE: Final = ("--pipeline-parallel-size", "-pp")
DATA: Final = ("--data-parallel-size", "-dp")
KEEP_ALIVE_SECONDS: Final = 120
"""Longer than the 90 for which routing sidecars keep idle connections: the server must not close first."""

HIDDEN: Final = (
    "MEGASCALE_COORDINATOR_ADDRESS",
    "MEGASCALE_NUM_SLICES",
    "MEGASCALE_PORT",
    "MEGASCALE_SLICE_ID",
    "TPU_PROCESS_ADDRESSES",
    "TPU_PROCESS_PORT",
    "TPU_WORKER_HOSTNAMES",
)
"""Variables of a slice that vLLM builds up by itself: with them its ranks wait at a barrier for ever, which
looks like a slow start."""

Flags = list[tuple[str, ...]]


def run(task: Task) -> Run:
    """How one host runs it."""
    mode = _Mode(task)
    command = [*(task.engine.command or COMMAND), weights(task).location]
    arguments = with_flags([*_server(task), *_parallel(task, mode), *mode.flags()], task.user_args)
    return Run(
        [*_hiding(task, mode), *command, *arguments],
        env=_environment(task, mode),
        ports=(*mode.ports(), *kv.ports(task)),
        launcher=Launcher.RAY if mode.ray else Launcher.NONE,
        problems=mode.problems(),
    )


class _Mode:
    """How the hosts of a slice make up one engine."""

    def __init__(self, task: Task) -> None:
        self._task = task
        backend = next((v.get("value") for v in task.user_env if v["name"] == BACKEND), None)
        self.data = number(task.user_args, *DATA) or 1
        self.many = task.seat.shape.hosts > 1
        self.ray = self.many and backend == "ray"

    @property
    def name(self) -> str:
        """Value of TPU_MULTIHOST_BACKEND."""
        return "ray" if self.ray else "mp" if self.many else ""

    def flags(self) -> Flags:
        """What tells the hosts of each other."""
        if self.ray:
            return [("--distributed-executor-backend", "ray")]
        if not self.many:
            return []
        return self._data_parallel() if self.data > 1 else self._processes()

    def ports(self) -> tuple[Port, ...]:
        """Where the hosts meet."""
        if self.ray or not self.many or not self._task.seat.leads:
            return ()
        first = RPC_PORT if self.data > 1 else MASTER_PORT
        return Port("master", first), Port("rendezvous", first + 1)

    def problems(self) -> tuple[str, ...]:
        """What cannot be spread over the devices that there are."""
        found = []
        hosts, devices = self._task.seat.shape.hosts, self._task.seat.devices
        if self.many and not self.ray and self.data > 1 and self.data % hosts:
            found.append(
                f"{_field(self._task)}: --data-parallel-size {self.data} does not spread over the {hosts} "
                f"hosts of role {self._task.role.name}: write a multiple of {hosts}"
            )
        wanted = self.data * (number(self._task.user_args, *PIPELINE) or 1)
        wanted *= number(self._task.user_args, *TENSOR) or 1
        if devices % wanted:
            found.append(
                f"{_field(self._task)}: tensor, pipeline and data parallelism make {wanted} of the {devices} "
                f"devices of role {self._task.role.name}: write sizes whose product divides {devices}"
            )
        return tuple(found)

    def _processes(self) -> Flags:
        seat = self._task.seat
        flags: Flags = [
            ("--nnodes", str(seat.shape.hosts)),
            ("--node-rank", str(seat.host)),
            ("--master-addr", seat.leader),
            ("--master-port", str(MASTER_PORT)),
        ]
        return flags if seat.leads else [*flags, ("--headless",)]

    def _data_parallel(self) -> Flags:
        """The head has to be told an address that it can bind, not a name."""
        seat = self._task.seat
        local = self.data // seat.shape.hosts
        flags: Flags = [
            ("--data-parallel-size-local", str(local)),
            ("--data-parallel-address", "$(POD_IP)" if seat.leads else seat.leader),
            ("--data-parallel-rpc-port", str(RPC_PORT)),
        ]
        if seat.leads:
            return flags
        return [*flags, ("--headless",), ("--data-parallel-start-rank", str(seat.host * local))]


def _server(task: Task) -> Flags:
    found, spec = weights(task), task.inference.spec
    prefill = task.role.type is RoleType.PREFILL
    flags: Flags = [
        ("--served-model-name", spec.model.name),
        ("--port", str(engine_port(task))),
        ("--attention-backend", "CUSTOM"),
        ("--shutdown-timeout", str(probes.shutdown_seconds(spec.drain, prefill=prefill))),
    ]
    if found.revision:
        flags.append(("--revision", found.revision))
    if found.streamed:
        flags.append(("--load-format", "runai_streamer"))
    if transfer := kv.config(task):
        flags.append(("--kv-transfer-config", transfer))
    return flags


def _parallel(task: Task, mode: _Mode) -> Flags:
    """One tensor-parallel group over all devices, unless they are spoken for otherwise."""
    if flag(task.user_args, *TENSOR) is not None:
        return []
    others = mode.data * (number(task.user_args, *PIPELINE) or 1)
    return [("--tensor-parallel-size", str(max(task.seat.devices // others, 1)))]


def _hiding(task: Task, mode: _Mode) -> list[str]:
    """A command that empties variables before the engine starts, but for those that the user has set.

    The launcher reads them, and GKE's device plugin sets some of them after us.
    """
    if mode.ray:
        return []
    values = dict.fromkeys(HIDDEN, "") | ({} if mode.many else {"TPU_HOST_BOUNDS": "1,1,1"})
    taken = {variable["name"] for variable in task.user_env}
    return ["env", *(f"{name}={value}" for name, value in values.items() if name not in taken)]


def _environment(task: Task, mode: _Mode) -> dict[str, str]:
    shape = task.seat.shape
    env = {
        "VLLM_HOST_IP": "$(POD_IP)",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_SECONDS),
        "VLLM_ENGINE_READY_TIMEOUT_S": str(probes.STARTUP_SECONDS),
        "TORCH_TPU_TOPOLOGY": torch_topology(shape),
        BACKEND: mode.name,
    }
    if shape.accelerator_type:
        env["TPU_ACCELERATOR_TYPE"] = shape.accelerator_type
    return env | (_ray() if mode.ray else {}) | kv.environment(task)


def _ray() -> dict[str, str]:
    """Ray's workers are started by its daemons, which no command goes before: so these are empty for all."""
    return {
        "TPU_PROCESS_ADDRESSES": "",
        "TPU_PROCESS_PORT": "",
        "RAY_EXPERIMENTAL_NOSET_TPU_VISIBLE_CHIPS": "1",
        "VLLM_USE_RAY_V2_EXECUTOR_BACKEND": "1",
    }


def _field(task: Task) -> str:
    return f"spec.roles[{task.role.name}].args" if task.role.args else "spec.engine.args"

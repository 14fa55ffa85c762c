"""From what an adapter decides to all of an engine's pod: the part that engines have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpu_operator.api import RoleType
from tpu_operator.core.inference.engines import probes
from tpu_operator.core.inference.engines.arguments import flag
from tpu_operator.core.inference.engines.caches import storage
from tpu_operator.core.inference.engines.layout import engine_port, sidecars, template_of
from tpu_operator.core.inference.engines.pod import EnginePod
from tpu_operator.core.inference.engines.run import Port

if TYPE_CHECKING:
    from tpu_operator.core.inference.engines.pod import EnvVar, Task
    from tpu_operator.core.inference.engines.run import Run
    from tpu_operator.core.plan import Manifest

REQUESTS: Final = "requests"
"""Name of the port at which an engine itself takes requests."""
IDENTITY: Final = {"POD_IP": "status.podIP", "POD_UID": "metadata.uid"}
"""What of itself a pod's commands and variables may refer to, as `$(NAME)`."""


def assemble(task: Task, run: Run) -> EnginePod:
    """The pod of an engine that is run so."""
    drain, seat = task.inference.spec.drain, task.seat
    prefill = task.role.type is RoleType.PREFILL
    kept, port = storage(task), engine_port(task)
    grace = {"TPU_LAUNCH_GRACE_SECONDS": str(probes.launcher_grace(seat, drain, prefill=prefill))}
    requests = (Port(REQUESTS, port),) if seat.leads else ()
    return EnginePod(
        image=task.image,
        command=tuple(run.command),
        env=tuple(_env({**grace, **kept.env, **run.env}, task.user_env)),
        ports=tuple(map(_port, (*requests, *run.ports))),
        probes=probes.probes(seat, port),
        lifecycle=probes.lifecycle(seat, drain, prefill=prefill),
        volumes=kept.volumes,
        mounts=kept.mounts,
        sidecars=sidecars(task),
        grace_seconds=probes.grace_seconds(drain),
        template=template_of(task),
        launcher=run.launcher,
        problems=(*run.problems, *_port_problems(task)),
    )


def _env(ours: dict[str, str], user: list[EnvVar]) -> list[EnvVar]:
    """Ours first, so that the user's may refer to them; what the user has set stands."""
    taken = {variable["name"] for variable in user}
    identity: list[EnvVar] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in IDENTITY.items()
    ]
    added: list[EnvVar] = [*identity, *({"name": name, "value": value} for name, value in ours.items())]
    return [variable for variable in added if variable["name"] not in taken] + user


def _port(port: Port) -> Manifest:
    return {"name": port.name, "containerPort": port.number, "protocol": "TCP"}


def _port_problems(task: Task) -> tuple[str, ...]:
    """Probes and routes follow the spec; they know nothing of an argument."""
    given = flag(task.user_args, "--port")
    if given is None or given == str(engine_port(task)):
        return ()
    return (f"spec.engine.args: --port is {given!r}: leave it out, and write spec.engine.port instead",)

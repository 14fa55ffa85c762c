"""Which ports and containers take requests, and who of the roles hands KV caches to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tpu_operator.api import EngineType, RoleType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpu_operator.core.inference.engines.pod import Task
    from tpu_operator.core.plan import Manifest

BEHIND_SIDECAR: Final = 8200
"""Port of an engine whose usual port is its sidecar's; the sidecar expects it there."""
SIDECAR: Final = "routing-proxy"
RESTRICTED: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What namespaces of the level "restricted" demand of a container."""


def disaggregated(task: Task) -> bool:
    """Whether prefill and decode are done by roles of their own."""
    types = {role.type for role in task.inference.spec.roles}
    return {RoleType.PREFILL, RoleType.DECODE} <= types


def has_sidecar(task: Task) -> bool:
    """Whether requests come to this host through a routing sidecar."""
    wanted = task.inference.spec.routing.sidecar is not None
    return wanted and task.role.type is RoleType.DECODE and task.seat.leads


def engine_port(task: Task) -> int:
    """Where the engine itself listens."""
    port = task.engine.port
    if not has_sidecar(task):
        return port
    return BEHIND_SIDECAR if port != BEHIND_SIDECAR else BEHIND_SIDECAR + 1


def sidecars(task: Task) -> tuple[Manifest, ...]:
    """The routing sidecar, which has a prompt prefilled elsewhere before it asks the engine beside it.

    As an init container that goes on, it ends after the engine: streams pass through it.
    """
    spec = task.inference.spec.routing.sidecar
    if spec is None or not has_sidecar(task):
        return ()
    protocol = "sglang" if task.engine.type is EngineType.SGLANG else "nixlv2"
    return (
        {
            "name": SIDECAR,
            "image": spec.image or task.images.sidecar,
            "restartPolicy": "Always",
            "args": [
                f"--port={task.engine.port}",
                f"--vllm-port={engine_port(task)}",
                # The TPU connectors hand over the same fields as NIXL's, by the same steps.
                f"--kv-connector={protocol}",
                "--secure-serving=false",
                *spec.args,
            ],
            "ports": [{"name": "http", "containerPort": task.engine.port, "protocol": "TCP"}],
            "readinessProbe": {"tcpSocket": {"port": task.engine.port}, "periodSeconds": 5},
            "securityContext": RESTRICTED,
        },
    )


def template_of(task: Task) -> Mapping[str, Any] | None:
    """The role's template for this host, without what it says of a sidecar that other hosts of it have."""
    template = task.role.template
    containers = ((template or {}).get("spec") or {}).get("initContainers")
    if not containers or has_sidecar(task) or task.inference.spec.routing.sidecar is None:
        return template
    kept = [container for container in containers if container.get("name") != SIDECAR]
    return {**(template or {}), "spec": {**(template or {})["spec"], "initContainers": kept}}

"""The endpoint picker of a TPUInference: the server that tells a gateway which replica gets a request.

A Deployment, with its configuration among its arguments so that a changed one makes new pods; its Service;
and the rights that the installation has for all pickers, in its namespace. One picker serves one pool.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tpu_operator.core import names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpu_operator.core.plan import Manifest

GRPC_PORT: Final = 9002
HEALTH_PORT: Final = 9003
METRICS_PORT: Final = 9090
LABEL_PICKER: Final = names.PREFIX + "endpoint-picker"
"""On the picker's pods: whose they are. They have no label by which pods of engines are found."""
HEALTH_SERVICE: Final = "inference-extension"
SETTLE_SECONDS: Final = 15
"""What a picker has beyond the longest drain of an engine: streams pass through it."""
RESTRICTED: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@dataclass(frozen=True, slots=True)
class Picker:
    """What the objects of a picker are made from.

    Attributes:
        metadata: name, namespace, labels and owner of all of them.
        inference: name of the TPUInference.
        image: of the picker.
        role: ClusterRole with what pickers may do.
        config: its EndpointPickerConfig, as YAML.
        arguments: what tells it which pods are its own, and the user's.
        replicas: how many there are; one of them works.
        resources: of its container.
        drain_seconds: how long it goes on as ever after it was told to go.
        grace_seconds: how long it has to end.
    """

    metadata: Manifest
    inference: str
    image: str
    role: str
    config: str
    arguments: Sequence[str]
    replicas: int
    resources: Mapping[str, Any] = field(default_factory=dict)
    drain_seconds: int = 0
    grace_seconds: int = 30

    @property
    def name(self) -> str:
        """Name of all of its objects."""
        return str(self.metadata["name"])


def service_account(picker: Picker) -> Manifest:
    """Who it is."""
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": picker.metadata}


def role_binding(picker: Picker) -> Manifest:
    """What it may do, by a ClusterRole: who makes a Role has to have all the rights in it."""
    group = "rbac.authorization.k8s.io"
    namespace = picker.metadata["namespace"]
    return {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": picker.metadata,
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": picker.role},
        "subjects": [{"kind": "ServiceAccount", "name": picker.name, "namespace": namespace}],
    }


def service(picker: Picker) -> Manifest:
    """Where gateways find it."""
    port = {"name": "grpc-ext-proc", "port": GRPC_PORT, "targetPort": GRPC_PORT, "protocol": "TCP"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": picker.metadata,
        "spec": {"selector": {LABEL_PICKER: picker.inference}, "ports": [port]},
    }


def deployment(picker: Picker) -> Manifest:
    """The picker itself."""
    labels = {LABEL_PICKER: picker.inference}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": picker.metadata,
        "spec": {
            "replicas": picker.replicas,
            "selector": {"matchLabels": labels},
            # Without one that works there is no traffic at all.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": labels}, "spec": _pod(picker)},
        },
    }


def _pod(picker: Picker) -> Manifest:
    return {
        "serviceAccountName": picker.name,
        "terminationGracePeriodSeconds": picker.grace_seconds,
        "containers": [_container(picker)],
    }


def _container(picker: Picker) -> Manifest:
    ports = {"grpc-ext-proc": GRPC_PORT, "grpc-health": HEALTH_PORT, "metrics": METRICS_PORT}
    elected = picker.replicas > 1
    container: Manifest = {
        "name": "endpoint-picker",
        "image": picker.image,
        "args": [
            f"--config-text={picker.config}",
            f"--grpc-port={GRPC_PORT}",
            f"--grpc-health-port={HEALTH_PORT}",
            f"--metrics-port={METRICS_PORT}",
            # It would have to ask the API server for everyone who reads them, cluster-wide.
            "--metrics-endpoint-auth=false",
            "--tracing=false",
            *(["--ha-enable-leader-election"] if elected else []),
            *picker.arguments,
        ],
        "env": [
            {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()],
        "livenessProbe": _probe("liveness" if elected else HEALTH_SERVICE, 10),
        "readinessProbe": _probe("readiness" if elected else HEALTH_SERVICE, 2),
        "securityContext": RESTRICTED,
    }
    if picker.resources:
        container["resources"] = dict(picker.resources)
    if picker.drain_seconds:
        container["lifecycle"] = {"preStop": {"sleep": {"seconds": picker.drain_seconds}}}
    return container


def _probe(service_name: str, period: int) -> Manifest:
    return {"grpc": {"port": HEALTH_PORT, "service": service_name}, "periodSeconds": period}

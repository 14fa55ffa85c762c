"""Where kinds live in the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tpu_operator.api import GROUP, VERSION


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of the API.

    Attributes:
        group: API group, empty for the core.
        version: its version.
        plural: name in paths.
        kind: name in manifests.
    """

    group: str
    version: str
    plural: str
    kind: str

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Path of the collection, an object, or a subresource of it."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if namespace else ""
        tail = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{root}{scope}/{self.plural}{tail}"


PODS: Final = Resource("", "v1", "pods", "Pod")
SERVICES: Final = Resource("", "v1", "services", "Service")
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
QUOTAS: Final = Resource("", "v1", "resourcequotas", "ResourceQuota")
NODES: Final = Resource("", "v1", "nodes", "Node")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
EVENTS: Final = Resource("events.k8s.io", "v1", "events", "Event")
TPUJOBS: Final = Resource(GROUP, VERSION, "tpujobs", "TPUJob")
INFERENCES: Final = Resource(GROUP, VERSION, "tpuinferences", "TPUInference")
SCALERS: Final = Resource(GROUP, VERSION, "tpuinferencescalers", "TPUInferenceScaler")
CONTROLLER_REVISIONS: Final = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment")
SERVICE_ACCOUNTS: Final = Resource("", "v1", "serviceaccounts", "ServiceAccount")
ROLES: Final = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS: Final = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
POOLS: Final = Resource("inference.networking.k8s.io", "v1", "inferencepools", "InferencePool")
ROUTES: Final = Resource("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute")
POD_GROUPS: Final = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup")
PRIORITY_CLASSES: Final = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass")
WORKLOADS: Final = Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
RESOURCE_FLAVORS: Final = Resource("kueue.x-k8s.io", "v1beta2", "resourceflavors", "ResourceFlavor")
WORKLOAD_PRIORITY_CLASSES: Final = Resource(
    "kueue.x-k8s.io", "v1beta2", "workloadpriorityclasses", "WorkloadPriorityClass"
)

BY_KIND: Final = {
    resource.kind: resource
    for resource in (
        *(PODS, SERVICES, CONFIG_MAPS, POD_GROUPS, WORKLOADS, TPUJOBS, NODES),
        *(INFERENCES, SCALERS, CONTROLLER_REVISIONS),
        *(DEPLOYMENTS, SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, POOLS, ROUTES),
    )
}
"""Kinds that plans may name."""

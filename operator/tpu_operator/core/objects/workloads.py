"""Kueue's Workload: what a job asks its queue for."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tpu_operator.core import kueue, names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpu_operator.core.plan import Manifest

POD_FIELDS: Final = (
    "nodeSelector",
    "affinity",
    "tolerations",
    "priorityClassName",
    "runtimeClassName",
    "overhead",
    "restartPolicy",
)
"""What of a pod decides which quota it needs."""
DECISIVE: Final = ("nodeSelector", "affinity", "tolerations", "runtimeClassName", "overhead")
"""What of it, beside the resources, another admission is needed for; the priority is apart from the pods."""
MUST: Final = "requiredDuringSchedulingIgnoredDuringExecution"
CONTAINER_FIELDS: Final = ("name", "image", "resources", "restartPolicy")


@dataclass(frozen=True, slots=True)
class Priority:
    """The order of a job among those that wait.

    Attributes:
        value: the higher, the earlier.
        kind: "PriorityClass" or "WorkloadPriorityClass".
        name: of the class; empty when there is none.
        named: whether the job names it; it is the cluster's default otherwise.
    """

    value: int = 0
    kind: str = ""
    name: str = ""
    named: bool = False

    def wire(self) -> Manifest:
        """As the Workload has it."""
        if not self.name:
            return {"priority": self.value}
        group = "scheduling.k8s.io" if self.kind == "PriorityClass" else kueue.GROUP
        reference = {"group": group, "kind": self.kind, "name": self.name}
        return {"priority": self.value, "priorityClassRef": reference}


def name_of(job: str) -> str:
    """Name of a job's Workload; jobs of other kinds have Workloads in the same namespace."""
    return f"tpujob-{job}"


def pod_set(name: str, count: int, pod: Manifest) -> Manifest:
    """Pods that are alike, as Kueue counts them.

    Of affinity, only what nodes must have may decide about a flavor.
    """
    spec = {key: value for key, value in pod["spec"].items() if key in POD_FIELDS}
    musts = (spec.pop("affinity", {}).get("nodeAffinity") or {}).get(MUST)
    affinity = {"nodeAffinity": {MUST: musts}} if musts else {}
    for kind in ("containers", "initContainers"):
        spec[kind] = [
            {key: value for key, value in container.items() if key in CONTAINER_FIELDS}
            for container in pod["spec"].get(kind, ())
        ]
    return {
        "name": name,
        "count": count,
        "template": {"spec": spec | ({"affinity": affinity} if affinity else {})},
    }


def workload(
    metadata: Mapping[str, Any],
    owner: Mapping[str, Any],
    queue: str,
    pod_sets: Iterable[Manifest],
    priority: Priority,
) -> Manifest:
    """The Workload of a job; its label `revision` tells one of another demand.

    Images are no part of that: those of a new operator cost no job its admission. Nor is what a class of
    priority is worth, or which one is the cluster's default: as with Kueue's own jobs, that counts for
    Workloads that are made from then on.
    """
    spec: dict[str, Any] = {"queueName": queue, "podSets": list(pod_sets), **priority.wire()}
    named = (priority.kind, priority.name) if priority.named else ()
    asked = [queue, named, *map(_decisive, spec["podSets"])]
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:10]
    labels = {**metadata["labels"], names.LABEL_REVISION: digest, kueue.LABEL_UID: owner["uid"]}
    return {
        "apiVersion": kueue.API_VERSION,
        "kind": "Workload",
        "metadata": {**metadata, "labels": labels, "ownerReferences": [dict(owner)]},
        "spec": spec,
    }


def _decisive(pods: Manifest) -> list[Any]:
    """What of a set of pods decides about quota and flavors."""
    spec = pods["template"]["spec"]
    asked = [
        [kind, container["resources"], container.get("restartPolicy")]
        for kind in ("containers", "initContainers")
        for container in spec[kind]
        if container.get("resources")
    ]
    return [pods["name"], pods["count"], {key: spec.get(key) for key in DECISIVE}, asked]

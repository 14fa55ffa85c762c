"""PodGroups: the scheduler starts all pods of a slice, or none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpu_operator.core.plan import Manifest
    from tpu_operator.core.snapshot import PodGroup

API_VERSION: Final = "scheduling.k8s.io/v1beta1"


def pod_group(
    metadata: Mapping[str, Any], owner: Mapping[str, Any], hosts: int, priority_class: str
) -> Manifest:
    """The PodGroup of one slice.

    The scheduler preempts it as a whole, too: without one of its hosts a slice is worth nothing.

    Args:
        metadata: its name, namespace and labels.
        owner: reference to the object that it goes with.
        hosts: pods that have to find nodes at the same time.
        priority_class: that of the pods, empty for the cluster's default.
    """
    priority = {"priorityClassName": priority_class} if priority_class else {}
    return {
        "apiVersion": API_VERSION,
        "kind": "PodGroup",
        "metadata": {**metadata, "ownerReferences": [dict(owner)]},
        "spec": {
            "schedulingPolicy": {"gang": {"minCount": hosts}},
            "disruptionMode": {"all": {}},
            **priority,
        },
    }


def fits(group: PodGroup, hosts: int, priority_class: str) -> bool:
    """Whether a PodGroup is as we would make it now; all but its count cannot change.

    The API server writes the cluster's default where no class is named, so that no class fits any.
    """
    named = group.spec.priority_class_name
    return group.spec.scheduling_policy.gang.min_count == hosts and priority_class in {"", named}

"""What makes a node a TPU host on GKE: labels, taint and resource. All are hosts of v5e 4x4 slices."""

CHIPS = 4
"""Chips a host."""
HOSTS = 4
"""Hosts a slice, and so a node pool."""
RESOURCE = "google.com/tpu"
RESOURCES = {RESOURCE: str(CHIPS)}
STATUS = {"status": {"capacity": RESOURCES, "allocatable": RESOURCES}}
"""Part of a node's status that a device plugin would make the kubelet report."""
POOL = "cloud.google.com/gke-nodepool"
TAINT = {"key": RESOURCE, "value": "present", "effect": "NoSchedule"}


def labels(index: int, pool: str) -> dict[str, str]:
    """Labels of a host, by its index among those of its kind and the prefix of their node pools' names."""
    return {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
        "cloud.google.com/gke-accelerator-count": str(CHIPS),
        POOL: f"{pool}-{index // HOSTS}",
    }

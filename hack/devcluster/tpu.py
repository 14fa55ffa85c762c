"""What makes a node a TPU host on GKE: labels, taint and resource. All hosts are v5e 4x4 slices of four hosts."""

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
    """Labels of the host with an index among those of its kind; pool is the prefix of the node pools' names."""
    return {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
        "cloud.google.com/gke-accelerator-count": str(CHIPS),
        POOL: f"{pool}-{index // HOSTS}",
    }

"""A real Kubernetes cluster on one Linux machine, for development and tests. See docs/devcluster.md."""

from hack.devcluster.cluster import Cluster
from hack.devcluster.state import DevClusterError

__all__ = ["Cluster", "DevClusterError"]

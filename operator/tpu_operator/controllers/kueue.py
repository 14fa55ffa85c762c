"""What all controllers share of Kueue: kinds of nodes that there is quota for, and orders of priority."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpu_operator.core.kueue import PriorityClass, Queues, ResourceFlavor
from tpu_operator.engine.optional import OptionalInformer
from tpu_operator.engine.resources import PRIORITY_CLASSES, RESOURCE_FLAVORS, WORKLOAD_PRIORITY_CLASSES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpu_operator.core.kueue import Workload
    from tpu_operator.engine.client import ApiServer


class KueueState:
    """Kueue's objects of the cluster as a whole.

    Args:
        api: where to read.
    """

    def __init__(self, api: ApiServer) -> None:
        self.flavors = OptionalInformer[ResourceFlavor](api, RESOURCE_FLAVORS, ResourceFlavor)
        self.priorities = OptionalInformer[PriorityClass](api, PRIORITY_CLASSES, PriorityClass)
        self.workload_priorities = OptionalInformer[PriorityClass](
            api, WORKLOAD_PRIORITY_CLASSES, PriorityClass
        )
        self.informers: Mapping[str, OptionalInformer[Any]] = {
            "ResourceFlavor": self.flavors,
            "PriorityClass": self.priorities,
            "WorkloadPriorityClass": self.workload_priorities,
        }

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` when any of them changes."""
        for informer in self.informers.values():
            informer.listen(lambda *_: listener())

    def view(self, workloads: Mapping[str, Workload]) -> Queues:
        """What decisions see of Kueue, with the Workloads of one job."""
        return Queues(
            workloads,
            {name: item for item in self.flavors.values() if (name := item.metadata.name)},
            {name: item for item in self.priorities.values() if (name := item.metadata.name)},
            {name: item for item in self.workload_priorities.values() if (name := item.metadata.name)},
        )

"""A job in a queue, and Kueue as a test plays it."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.builders import NOW, RUNNING, World, job, stamp
from tpu_operator.core.kueue import PriorityClass, Queues, ResourceFlavor, Workload
from tpu_operator.core.objects.workloads import name_of

V5E = {"accelerator": "v5e", "topology": "4x4"}
TEAM = {"queueName": "team"}
POOL = "cloud.google.com/gke-nodepool"
NAME = name_of("train")


def flavor(name: str, **labels: str) -> ResourceFlavor:
    toleration = {"key": name, "operator": "Exists"}
    spec = {"nodeLabels": {k.replace("_", "/"): v for k, v in labels.items()}, "tolerations": [toleration]}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, ResourceFlavor)


def priority(name: str, value: int, *, default: bool = False) -> PriorityClass:
    wire = {"metadata": {"name": name}, "value": value, "globalDefault": default}
    return msgspec.convert(wire, PriorityClass)


class Queue:
    """A job in a queue, and Kueue as the test plays it."""

    def __init__(self, **spec: Any) -> None:
        flavors = {"v5e": flavor("v5e", pool="a")}
        classes = {"batch": priority("batch", 7)}
        self.world = World(
            job(scheduling=TEAM | spec.pop("scheduling", {}), **spec),
            queues=Queues({}, flavors, classes, {"high": priority("high", 100)}),
        ).settle()

    @property
    def workload(self) -> Workload:
        return self.world.workloads[NAME]

    def says(self, *conditions: tuple[str, str, str, str], **status: Any) -> Queue:
        """Kueue writes conditions: type, status, reason, message."""
        new = {c.type: msgspec.to_builtins(c) for c in self.workload.status.conditions}
        for kind, value, reason, message in conditions:
            new[kind] = {
                "type": kind,
                "status": value,
                "reason": reason,
                "message": message,
                "lastTransitionTime": stamp(NOW),
            }
        self.world.patch_workload(NAME, conditions=list(new.values()), **status)
        return self

    def admit(self, *, settle: bool = True, **status: Any) -> Queue:
        """Kueue lets the job run."""
        assignments = [
            {"name": name, "flavors": {"google.com/tpu": "v5e"}}
            for name in (["workers", "head"] if self.world.job.spec.head else ["workers"])
        ]
        reserved, admitted = ("QuotaReserved", "True", "", ""), ("Admitted", "True", "Admitted", "")
        more = {"admission": {"clusterQueue": "cq", "podSetAssignments": assignments}} | status
        self.says(reserved, admitted, ("Evicted", "False", "", ""), **more)
        if settle:
            self.world.settle()
        return self

    def run(self) -> Queue:
        """Kueue lets the job run, and its pods come up."""
        self.admit().world.all_pods(**RUNNING).settle()
        return self

    def activate(self, active: bool) -> Queue:
        """Somebody sets `spec.active` of the Workload."""
        wire = msgspec.to_builtins(self.workload)
        wire["spec"]["active"] = active
        self.world.workloads[NAME] = msgspec.convert(wire, Workload)
        return self

    def evict(self, reason: str = "Preempted", message: str = "for another") -> Queue:
        """Kueue takes the job back."""
        return self.says(("Evicted", "True", reason, message))

    @property
    def pending(self) -> str:
        found = self.world.job.status.pending
        return f"{found.reason}: {found.message}" if found else ""

    def condition(self, kind: str) -> str:
        found = self.workload.condition(kind)
        return f"{found.status}/{found.reason}" if found else ""

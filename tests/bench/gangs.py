"""The jobs that are measured, and the pods that each comes down to: the same for every subject."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from hack.devcluster import fake, tpu
from tpu_operator.api import TPUJob
from tpu_operator.core import job
from tpu_operator.core.placement import Pools
from tpu_operator.core.settings import PodSettings
from tpu_operator.core.snapshot import JobSnapshot, Node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.http import Object

NAMESPACE: Final = "bench"
SETTINGS: Final = PodSettings(runtime_image="example/runtime:1", launcher_image="example/operator:1")


@dataclass(frozen=True)
class Gang:
    """One slice of so many hosts, on a node pool of its own."""

    hosts: int
    accelerator: str
    label: str
    topology: str

    @property
    def name(self) -> str:
        """Name of the job."""
        return f"gang-{self.hosts}"

    @property
    def manifest(self) -> Object:
        """The TPUJob."""
        return tpujob(self.name, {"accelerator": self.accelerator, "topology": self.topology})

    @cached_property
    def children(self) -> list[Object]:
        """All that the job comes down to, without an owner; pods come last."""
        wire = self.manifest
        wire["metadata"] |= {"uid": "bench", "generation": 1, "resourceVersion": "1"}
        pools = Pools()
        for host in self.nodes():
            pools.put_node(msgspec.convert(host, Node))
        snapshot = JobSnapshot(TPUJob.parse(wire), {}, {}, pools=pools)
        plan = job.plan(snapshot, datetime.now(UTC), SETTINGS)
        made = [dict(child) for child in (*plan.applies, *plan.creates)]
        for child in made:
            # The garbage collector deletes what belongs to an object that is not there.
            del child["metadata"]["ownerReferences"]
        return sorted(made, key=lambda child: child["kind"] == "Pod")

    @property
    def pods(self) -> list[Object]:
        """The pods among the children."""
        return self.children[-self.hosts :]

    @property
    def others(self) -> list[Object]:
        """The children that are no pods."""
        return self.children[: -self.hosts]

    def nodes(self) -> Iterator[Object]:
        """The hosts of the slice."""
        for index in range(self.hosts):
            labels = {"cloud.google.com/gke-tpu-accelerator": self.label}
            labels |= {"cloud.google.com/gke-tpu-topology": self.topology, tpu.POOL: self.name}
            yield node(f"{self.name}-{index}", labels)


GANGS: Final = {
    gang.hosts: gang
    for gang in (
        Gang(16, "v5e", "tpu-v5-lite-podslice", "8x8"),
        Gang(256, "v5p", "tpu-v5p-slice", "8x8x16"),
        Gang(1024, "v5p", "tpu-v5p-slice", "16x16x16"),
    )
}


def tpujob(name: str, shape: Object, **spec: Any) -> Object:
    """A TPUJob."""
    return {
        "apiVersion": "tpu-operator.dev/v1alpha1",
        "kind": "TPUJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"tpu": shape, "run": {"command": ["python", "train.py"]}, **spec},
    }


def node(name: str, labels: dict[str, str]) -> Object:
    """A fake host; labels add to those of a host of a v5e 4x4 slice."""
    made = fake.node(0)
    made["metadata"]["name"] = name
    made["metadata"]["labels"] |= {"kubernetes.io/hostname": name, **labels}
    return made

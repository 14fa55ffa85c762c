"""Pods of a TPUInference: one per host of each replica, made by what makes the hosts of TPUJobs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tpu_operator.api import API_VERSION, Launcher, RunSpec, Scheduling
from tpu_operator.core import names
from tpu_operator.core.environment import GangSpec, Place
from tpu_operator.core.inference import engines
from tpu_operator.core.inference.revision import shape_of
from tpu_operator.core.jobview import GATE_SECONDS
from tpu_operator.core.objects import hostlists
from tpu_operator.core.objects.hosts import BuiltPod, Fields, HostFactory, Seat
from tpu_operator.core.objects.template import problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpu_operator.api import RoleSpec, TPUInference
    from tpu_operator.catalog import SliceShape
    from tpu_operator.core.inference.engines import EnginePod
    from tpu_operator.core.inference.revision import Revision
    from tpu_operator.core.placement import Demand
    from tpu_operator.core.plan import Manifest
    from tpu_operator.core.settings import PodSettings

WAITS: Final = RunSpec(command=["true"])
"""In place of an engine, to ask only about nodes."""


@dataclass(frozen=True)
class RoleFactory:
    """Builds the pods of one role in one revision.

    Attributes:
        inference: the object that they go with; its spec may be newer.
        revision: what they are made from.
        role: the role, as it is in the revision.
        settings: the installation's choices.
        avoided: nodes that pods without a node pool of our choice should not go to, where there are others.
    """

    inference: TPUInference
    revision: Revision
    role: RoleSpec
    settings: PodSettings
    avoided: Sequence[str] = field(default=())

    @cached_property
    def shape(self) -> SliceShape:
        """The slice of each replica."""
        return shape_of(self.role)

    @cached_property
    def problems(self) -> list[str]:
        """What keeps pods from being made, each with the field and what to write instead."""
        if fault := problem(self.role.template, self._fields.template):
            return [fault]
        if faults := list(self._engine(0, 0).problems):
            return faults
        # All hosts but the first are alike.
        found = (self.pod(0, host, 0).conflicts for host in range(min(2, self.shape.hosts)))
        return list(next(filter(None, found), ()))

    @property
    def demand(self) -> Demand:
        """What a replica needs of its node pool."""
        return self._nodes.demand

    @property
    def exclusive(self) -> bool:
        """Whether each replica needs a node pool of its own."""
        return self._nodes.exclusive

    @property
    def chooses_pools(self) -> bool:
        """Whether replicas get node pools of our choice, as far as there are any."""
        return self._nodes.chooses_pools

    @property
    def priority_class(self) -> str:
        """PriorityClass of the pods, empty for the cluster's default."""
        return self._nodes.priority_class

    def slice_id(self, index: int) -> str:
        """The ID by which a replica holds its node pool."""
        group = names.group_name(self.role.name, self.revision.name, index)
        return names.group_id(self.inference.metadata.uid, group)

    def pod(self, index: int, host: int, attempt: int, pool: str = "", group: str = "") -> BuiltPod:
        """The pod of one host.

        Args:
            index: the replica, among those of its role and revision.
            host: the host in its slice.
            attempt: the attempt it is made for.
            pool: its node pool; empty to leave that to the scheduler.
            group: the PodGroup that it is scheduled with; empty for none.
        """
        engine = self._engine(index, host)
        run = RunSpec(
            image=engine.image,
            command=list(engine.command),
            resources=self.revision.spec.engine.resources,
            launcher=engine.launcher,
        )
        factory = replace(
            self._nodes,
            gang=self._gang(index, engine.launcher),
            run=run,
            overlay=engine.overlay(),
            template=engine.template,
        )
        seat = Seat(
            name=names.worker_name(self.base, index, host),
            labels=self._labels(index, host, attempt),
            place=Place(index, host, attempt),
            slice_id=self.slice_id(index),
            pool=pool,
            group=group,
        )
        return self._with_lists(factory.build(seat), index)

    def _with_lists(self, built: BuiltPod, index: int) -> BuiltPod:
        """Have a pod whose lists of hosts are long take them from a ConfigMap of its replica."""
        if not hostlists.too_long(built.manifest):
            return built
        name = f"{names.slice_name(self.base, index)}-hosts"
        labels = {names.LABEL_INFERENCE: self.inference.metadata.name}
        lists = hostlists.host_lists(name, built.manifest, labels, owner_reference(self.inference))
        hostlists.refer(built.manifest, name)
        return replace(built, lists=lists)

    @property
    def base(self) -> str:
        """What the names of all its pods begin with."""
        return names.role_name(self.inference.metadata.name, self.role.name, self.revision.name)

    @property
    def _fields(self) -> Fields:
        return Fields("spec.engine", f"spec.roles[{self.role.name}].template", "TPUInference")

    @cached_property
    def _nodes(self) -> HostFactory:
        """What the pods of all replicas have in common, without what runs in them."""
        return HostFactory(
            namespace=self.inference.metadata.namespace,
            owner=owner_reference(self.inference),
            gang=self._gang(0, Launcher.NONE),
            settings=self.settings,
            run=WAITS,
            scheduling=Scheduling(),
            capacity=self.role.tpu.capacity,
            template=self.role.template,
            avoided=self.avoided,
            fields=self._fields,
        )

    def _gang(self, index: int, launcher: Launcher) -> GangSpec:
        meta = self.inference.metadata
        return GangSpec(
            kind="TPUInference",
            name=self.base,
            namespace=meta.namespace,
            uid=meta.uid,
            shape=self.shape,
            num_slices=1,
            subdomain=meta.name,
            launcher=launcher,
            processes_per_host=1,
            gate_seconds=GATE_SECONDS,
            owner=meta.name,
            first=index,
        )

    def _engine(self, index: int, host: int) -> EnginePod:
        leader = self._gang(index, Launcher.NONE).coordinator
        made_from = self.inference.model_copy(update={"spec": self.revision.spec})
        seat = engines.Seat(self.shape, host, leader)
        return engines.for_role(made_from, self.role, seat, self.revision.images)

    def _labels(self, index: int, host: int, attempt: int) -> dict[str, str]:
        """Labels of one host's pod; only host 0 is one that routers may find."""
        routed = {names.LABEL_LLMD_ROLE: self.role.type.value, names.LABEL_LLMD_SERVING: names.SERVING}
        return {
            names.LABEL_INFERENCE: self.inference.metadata.name,
            names.LABEL_ROLE: self.role.name,
            names.LABEL_REVISION: self.revision.name,
            names.LABEL_KV_COMPAT: self.revision.kv_compat,
            names.LABEL_COPY: str(index // max(1, self._replicas)),
            names.LABEL_REPLICA: str(index),
            names.LABEL_SLICE: str(index),
            names.LABEL_HOST: str(host),
            names.LABEL_COMPONENT: names.WORKER,
            names.LABEL_ATTEMPT: str(attempt),
            names.LABEL_SLICE_ID: self.slice_id(index),
            **(routed if host == 0 else {}),
        }

    @property
    def _replicas(self) -> int:
        """Replicas of the role in each copy, as the object has it now."""
        roles = (role for role in self.inference.spec.roles if role.name == self.role.name)
        return next((role.replicas for role in roles), 1)


def owner_reference(inference: TPUInference) -> Manifest:
    """The reference by which Kubernetes' garbage collector deletes a child with its TPUInference."""
    return {
        "apiVersion": API_VERSION,
        "kind": "TPUInference",
        "name": inference.metadata.name,
        "uid": inference.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }

"""Pods of a TPUJob: one per host of each slice, and the optional CPU head."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tpu_operator.api import API_VERSION
from tpu_operator.core import names
from tpu_operator.core.environment import GangSpec, Place
from tpu_operator.core.kueue import Grant
from tpu_operator.core.objects import hostlists
from tpu_operator.core.objects.hosts import (
    LAUNCHER_DIR,
    BuiltPod,
    Fields,
    HostFactory,
    Seat,
    conflicts,
    pod_template,
)
from tpu_operator.core.objects.merge import merge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpu_operator.api import TPUJob
    from tpu_operator.core.placement import Demand
    from tpu_operator.core.plan import Manifest
    from tpu_operator.core.settings import PodSettings

KEPT_IN_SPARES: Final = ("name", "image", "imagePullPolicy", "securityContext")


@dataclass(frozen=True)
class PodFactory:
    """Builds the pods of one TPUJob.

    Attributes:
        job: the job.
        gang: its slices.
        settings: the installation's choices.
        workers: what the admission by a queue adds to the hosts.
        heads: what it adds to the head.
        avoided: nodes that pods without a node pool of our choice should not go to, where there are others.
    """

    job: TPUJob
    gang: GangSpec
    settings: PodSettings
    workers: Grant = field(default_factory=Grant)
    heads: Grant = field(default_factory=Grant)
    avoided: Sequence[str] = ()

    def worker(self, slice_index: int, host: int, attempt: int, pool: str = "", group: str = "") -> BuiltPod:
        """The pod of one host.

        Args:
            slice_index: its slice.
            host: its host in the slice.
            attempt: the attempt it is made for.
            pool: its node pool; empty to leave that to the scheduler.
            group: the PodGroup that it is scheduled with; empty for none.
        """
        built = self._worker(slice_index, host, attempt, pool, group)
        if not hostlists.too_long(built.manifest):
            return built
        job = self.job.metadata.name
        name = f"{names.slice_name(job, slice_index)}-hosts-{self.revision}"
        lists = hostlists.host_lists(name, built.manifest, {names.LABEL_JOB: job}, owner_reference(self.job))
        hostlists.refer(built.manifest, name)
        return replace(built, lists=lists)

    @cached_property
    def hosts(self) -> HostFactory:
        """What builds pods of hosts with TPUs."""
        job = self.job
        return HostFactory(
            namespace=job.metadata.namespace,
            owner=owner_reference(job),
            gang=self.gang,
            settings=self.settings,
            run=job.spec.run,
            scheduling=job.spec.scheduling,
            capacity=job.spec.tpu.capacity,
            template=job.spec.template,
            grant=self.workers,
            avoided=self.avoided,
        )

    def _worker(self, slice_index: int, host: int, attempt: int, pool: str, group: str) -> BuiltPod:
        labels = self._labels(names.WORKER, attempt) | {
            names.LABEL_SLICE: str(slice_index),
            names.LABEL_HOST: str(host),
            names.LABEL_SLICE_ID: self._slice_id(slice_index),
        }
        number = attempt + self._in_place(slice_index)
        if self.gang.in_place:
            labels[names.LABEL_FIRST_ATTEMPT] = str(number)
        return self.hosts.build(
            Seat(
                name=names.worker_name(self.job.metadata.name, slice_index, host),
                labels=labels,
                place=Place(slice_index, host, number),
                slice_id=self._slice_id(slice_index),
                pool=pool,
                group=group,
            )
        )

    def spare(self, slice_index: int, host: int, attempt: int, pool: str = "") -> Manifest:
        """The pod of one host of a spare slice: it holds the node, has the image there, and waits.

        Nothing of the user's runs in it, and it has no place in a gang: none of its variables or volumes.
        """
        pod = self._worker(slice_index, host, attempt, pool, "").manifest
        pod["metadata"]["labels"][names.LABEL_COMPONENT] = names.SPARE
        spec, ours = pod["spec"], self.hosts.spec(self._slice_id(slice_index), pool)
        main = next(c for c in spec["containers"] if c["name"] == names.MAIN_CONTAINER)
        chips = {names.TPU_RESOURCE: str(self.gang.shape.chips_per_host)}
        mounts = {"name": "tpu-operator", "mountPath": LAUNCHER_DIR}
        kept = {key: main[key] for key in KEPT_IN_SPARES if key in main}
        spec["containers"] = [
            kept
            | {key: ours["containers"][0][key] for key in ("ports", "readinessProbe")}
            | {
                "command": [*self.hosts.launch_command(), "--spare"],
                "env": [{"name": "TPU_LAUNCH_PORT", "value": str(self.gang.launcher_port)}],
                "resources": merge(main.get("resources", {}), {"limits": chips, "requests": chips}),
                "volumeMounts": [mounts] if self.hosts.foreign_image() else [],
            }
        ]
        spec["restartPolicy"] = "Never"
        spec["volumes"] = [volume for volume in ours["volumes"] if volume["name"] == "tpu-operator"]
        spec["initContainers"] = ours.get("initContainers", [])
        return pod

    def head(self, attempt: int) -> BuiltPod:
        """The CPU pod of `spec.head`: ours in name and life, the user's in content.

        Where it is the head of a Ray cluster, its main container is ours as well.
        """
        name, labels = names.head_name(self.job.metadata.name), self._labels(names.HEAD, attempt)
        number = attempt + self._in_place(0)
        if self.gang.in_place:
            labels[names.LABEL_FIRST_ATTEMPT] = str(number)
        if self.gang.headed:
            return self._ray_head.head(name, labels, number)
        granted = {"nodeSelector": {**self.heads.node_selector}, "tolerations": [*self.heads.tolerations]}
        spec = {key: value for key, value in granted.items() if value}
        base = self.hosts.pod(name, labels, spec, self.heads)
        pod = merge(base, pod_template(self.job.spec.head))
        return BuiltPod(pod, tuple(conflicts(base, pod, "spec.head")))

    @property
    def _ray_head(self) -> HostFactory:
        """What builds the head of a Ray cluster; its image is that of the hosts, unless it has its own."""
        return replace(
            self.hosts,
            run=self.job.spec.run.model_copy(update={"image": self.hosts.image}),
            template=self.job.spec.head,
            grant=self.heads,
            fields=Fields(template="spec.head"),
        )

    @cached_property
    def revision(self) -> str:
        """Hash of all that pods are made from, apart from their place and attempt."""
        spec = self.job.spec.wire()
        source = [spec.get(field) for field in ("tpu", "run", "template", "head", "scheduling")]
        if self.gang.alone or self.gang.in_place:
            source.append([self.gang.alone, self.gang.in_place])
        text = json.dumps([source, asdict(self.settings)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def _in_place(self, slice_index: int) -> int:
        """Restarts in place of the gang that a slice is in, with whatever pods."""
        slices = self.job.status.slices
        return max(
            (s.restarts_in_place for s in slices if s.index == slice_index or not self.gang.alone), default=0
        )

    def _labels(self, component: str, attempt: int) -> dict[str, str]:
        return {
            names.LABEL_REVISION: self.revision,
            names.LABEL_JOB: self.job.metadata.name,
            names.LABEL_COMPONENT: component,
            names.LABEL_ATTEMPT: str(attempt),
        } | ({names.LABEL_HEADED: "true"} if self.job.spec.head else {})

    @property
    def exclusive(self) -> bool:
        """Whether each slice needs a node pool of its own."""
        return self.hosts.exclusive

    @property
    def priority_class(self) -> str:
        """PriorityClass of the workers, empty for the cluster's default."""
        return self.hosts.priority_class

    @property
    def chooses_pools(self) -> bool:
        """Whether slices get node pools of our choice, as far as there are any; the user's choice stands."""
        return self.hosts.chooses_pools

    @property
    def demand(self) -> Demand:
        """What a slice needs of its node pool, the user's own wishes included."""
        return self.hosts.demand

    def _slice_id(self, slice_index: int) -> str:
        return names.slice_id(self.job.metadata.uid, slice_index)


def owner_reference(job: TPUJob) -> Manifest:
    """The reference by which Kubernetes' garbage collector deletes a child with its job."""
    return {
        "apiVersion": API_VERSION,
        "kind": "TPUJob",
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }

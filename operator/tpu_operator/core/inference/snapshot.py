"""What a decision about a TPUInference sees."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from tpu_operator.core.nodes import Nodes
from tpu_operator.core.placement import Pools
from tpu_operator.core.quota import Quotas
from tpu_operator.core.snapshot import Metadata, View

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpu_operator.api import TPUInference
    from tpu_operator.core.inference.routing import Objects
    from tpu_operator.core.inquiry import Answers
    from tpu_operator.core.kueue import Workload
    from tpu_operator.core.snapshot import Pod, PodGroup, Scaler, Service


class ControllerRevision(View, frozen=True):
    """A revision as it is remembered."""

    metadata: Metadata
    revision: int = 0
    data: dict[str, Any] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InferenceSnapshot:
    """All that the decision about one TPUInference may depend on, apart from the time.

    Attributes:
        inference: the TPUInference.
        pods: every pod with its label in its namespace, by name, whoever owns it.
        services: Services with its label, by name.
        revisions: ControllerRevisions with its label, by name.
        scalers: TPUInferenceScalers with its label, by name.
        pod_groups: PodGroups with its label, by name; None where the cluster serves no PodGroups.
        nodes: the nodes.
        pools: node pools and who holds them.
        routing: what brings requests to it, by kind and name; kinds that are not served are absent.
        refusal: what the API server said when it last refused to create a child, empty when it did not.
        quotas: of its namespace.
        gone: pods that are gone, as they were last seen, until there are others of their names.
        answers: what the last inquiry about it was answered.
        workloads: Kueue's Workloads of its pods that have its label, by name.
    """

    inference: TPUInference
    pods: Mapping[str, Pod] = field(default_factory=dict)
    services: Mapping[str, Service] = field(default_factory=dict)
    revisions: Mapping[str, ControllerRevision] = field(default_factory=dict)
    scalers: Mapping[str, Scaler] = field(default_factory=dict)
    pod_groups: Mapping[str, PodGroup] | None = None
    nodes: Nodes = field(default_factory=Nodes)
    pools: Pools = field(default_factory=Pools)
    routing: Objects = field(default_factory=dict)
    refusal: str = ""
    quotas: Quotas = field(default_factory=Quotas)
    gone: Mapping[str, Pod] = field(default_factory=dict)
    answers: Answers | None = None
    workloads: Mapping[str, Workload] = field(default_factory=dict)

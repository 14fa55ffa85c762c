"""TPUInference: what is read besides what all kinds read, and from its objects to a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpu_operator.api import TPUInference, TPUInferenceStatus
from tpu_operator.controllers.analyst import Analyst
from tpu_operator.controllers.base import Controller, Kind
from tpu_operator.controllers.routing import RoutingState
from tpu_operator.core import names
from tpu_operator.core.inference.conditions import phase
from tpu_operator.core.inference.groups import key_of
from tpu_operator.core.inference.plan import plan
from tpu_operator.core.inference.snapshot import ControllerRevision, InferenceSnapshot
from tpu_operator.core.kueue import Workload
from tpu_operator.core.snapshot import Custom, Scaler
from tpu_operator.engine.informer import Informer
from tpu_operator.engine.optional import OptionalInformer
from tpu_operator.engine.resources import CONTROLLER_REVISIONS, INFERENCES, SCALERS, WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tpu_operator.controllers.base import Sources
    from tpu_operator.core.inference.view import Installation
    from tpu_operator.core.plan import Plan
    from tpu_operator.core.snapshot import Pod
    from tpu_operator.engine.informer import Key

KIND = Kind(INFERENCES, names.LABEL_INFERENCE, TPUInference, TPUInferenceStatus, phase)


class InferenceController(Controller[TPUInference]):
    """Reads what decisions about TPUInferences need.

    Args:
        sources: where to read.
        installation: the installation's choices.
    """

    def __init__(self, sources: Sources, installation: Installation) -> None:
        api = sources.api
        # A release that is upgraded without its CRDs lacks these two kinds, and its jobs go on.
        inferences = OptionalInformer[Custom](api, INFERENCES, Custom, namespace=sources.namespace)
        super().__init__(KIND, inferences, sources)
        self._installation = installation
        self._analyst = Analyst(sources.queue.add)
        self.scalers = OptionalInformer[Scaler](api, SCALERS, Scaler, **self._children)
        self.revisions = Informer(api, CONTROLLER_REVISIONS, ControllerRevision, **self._children)
        self.workloads = OptionalInformer[Workload](api, WORKLOADS, Workload, **self._children)
        self.routing = RoutingState(api, sources.namespace)
        self._read({"TPUInferenceScaler": self.scalers, "ControllerRevision": self.revisions})
        self._read({"Workload": self.workloads})
        self._know(self.routing.informers)
        self.routing.listen(self._on_route, self._on_kinds)

    def forget(self, key: Key) -> None:
        """An object is gone."""
        super().forget(key)
        self._analyst.forget(key)

    def _on_route(self, key: Key) -> None:
        """A routing object has changed, which may bear the name of one of ours and belong to nobody."""
        if self.objects.get(key):
            self._queue.add(key)

    def _on_kinds(self) -> None:
        """The cluster serves another kind of routing objects, or one less."""
        for key in self.all_keys():
            self._queue.add(key)

    def _plan(self, item: TPUInference, key: Key, now: datetime, refusal: str) -> Plan:
        snapshot = InferenceSnapshot(
            inference=item,
            pods=dict(self.pods.of(key)),
            services=dict(self.services.of(key)),
            revisions=dict(self.revisions.of(key)),
            scalers=dict(self.scalers.of(key)),
            pod_groups=dict(self.pod_groups.of(key)) if self.pod_groups.served else None,
            nodes=self._cluster.view(now),
            pools=self._cluster.pools,
            routing=self.routing.of(key),
            refusal=refusal,
            quotas=self._quotas.view(self.kind, key),
            gone=self._gone_from(item, key),
            answers=self._analyst.answers(key),
            workloads=dict(self.workloads.of(key)),
        )
        found = plan(snapshot, now, self._installation)
        self._analyst.inquire(key, found.inquiry)
        return found

    def _gone_from(self, item: TPUInference, key: Key) -> Mapping[str, Pod]:
        """Pods that are gone from replicas on record; the others are forgotten: their names do not return."""
        known = {group.name for group in item.status.groups}
        gone = self._gone.pop(key, {})
        kept = {name: pod for name, pod in gone.items() if (of := key_of(pod)) and of.name in known}
        if kept:
            self._gone[key] = kept
        return dict(kept)

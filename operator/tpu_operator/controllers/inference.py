"""TPUInference: its informers, and from its objects to a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tpu_operator.api import API_VERSION, TPUInference, TPUInferenceStatus
from tpu_operator.controllers.decode import decode, explain
from tpu_operator.controllers.routing import RoutingState
from tpu_operator.core import names
from tpu_operator.core.inference.plan import plan, refused
from tpu_operator.core.inference.snapshot import ControllerRevision, InferenceSnapshot
from tpu_operator.core.plan import Event, Plan
from tpu_operator.core.quota import Quotas
from tpu_operator.core.snapshot import Custom, Pod, Scaler, Service
from tpu_operator.engine.applier import Target
from tpu_operator.engine.events import Regarding
from tpu_operator.engine.informer import Informer
from tpu_operator.engine.optional import OptionalInformer
from tpu_operator.engine.queue import Alarm
from tpu_operator.engine.resources import (
    CONTROLLER_REVISIONS,
    INFERENCES,
    PODS,
    SCALERS,
    SERVICES,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from tpu_operator.controllers.cluster import ClusterState
    from tpu_operator.core.inference.view import Installation
    from tpu_operator.core.plan import Manifest
    from tpu_operator.core.snapshot import Quota
    from tpu_operator.engine.client import ApiServer
    from tpu_operator.engine.informer import Key
    from tpu_operator.engine.queue import WorkQueue

    Child = Pod | Service | ControllerRevision | Scaler


class InferenceController:
    """Reads what decisions about TPUInferences need.

    Args:
        api: where to read.
        queue: gets the keys of TPUInferences of which something has changed.
        installation: the installation's choices.
        cluster: the nodes, shared by all controllers.
        quotas: the quotas of the same namespaces.
        namespace: only this namespace; empty for all.
    """

    kind = "TPUInference"

    def __init__(
        self,
        api: ApiServer,
        queue: WorkQueue,
        installation: Installation,
        cluster: ClusterState,
        quotas: Informer[Quota],
        namespace: str = "",
    ) -> None:
        self._quotas = quotas
        self._installation = installation
        self._cluster = cluster
        self._queue = queue
        self._pending: set[Key] = set()
        self._alarm = Alarm(self._add_pending)
        ours: dict[str, Any] = {
            "namespace": namespace,
            "selector": names.LABEL_INFERENCE,
            "index": inference_of,
        }
        # A release that is upgraded without its CRDs lacks these two kinds, and its jobs go on.
        self.inferences = OptionalInformer[Custom](api, INFERENCES, Custom, namespace=namespace)
        self.scalers = OptionalInformer[Scaler](api, SCALERS, Scaler, **ours)
        self.pods = Informer(api, PODS, Pod, **ours)
        self.services = Informer(api, SERVICES, Service, **ours)
        self.revisions = Informer(api, CONTROLLER_REVISIONS, ControllerRevision, **ours)
        self.routing = RoutingState(api, namespace)
        self.informers: Mapping[str, Informer[Any]] = {
            "TPUInference": self.inferences,
            "TPUInferenceScaler": self.scalers,
            "Pod": self.pods,
            "Service": self.services,
            "ControllerRevision": self.revisions,
            "Node": cluster.nodes,
            **self.routing.informers,
            "ResourceQuota": quotas,
        }
        self.inferences.listen(self._on_inference)
        for children in (self.scalers, self.pods, self.services, self.revisions):
            children.listen(self._on_child)
        self.routing.listen(self._on_route, self._on_kinds)
        quotas.listen(self._on_quota)
        cluster.follow(self.pods)
        cluster.listen(self._on_node)

    def all_keys(self) -> list[Key]:
        """All TPUInferences."""
        return self.inferences.keys()

    def _on_inference(self, key: Key, old: Custom | None, new: Custom | None) -> None:  # noqa: ARG002
        if new and new.status.get("pending"):
            self._pending.add(key)
        else:
            self._pending.discard(key)
        self._queue.add(key)

    def _on_child(self, key: Key, *changed: Child | None) -> None:  # noqa: ARG002
        """A child has changed: a matter for the object that it belongs to, or has belonged to."""
        for owner in {inference_of(item) for item in changed if item}:
            if owner is not None:
                self._queue.add(owner)

    def _on_route(self, key: Key) -> None:
        """A routing object has changed, which may bear the name of one of ours and belong to nobody."""
        if self.inferences.get(key):
            self._queue.add(key)

    def _on_kinds(self) -> None:
        """The cluster serves another kind of routing objects, or one less."""
        for key in self.inferences.keys():  # noqa: SIM118 - no dict
            self._queue.add(key)

    def _on_node(self, owners: set[str]) -> None:
        """A node has changed: a matter for those on it, and for those that wait for nodes."""
        for owner in owners:
            namespace, _, name = owner.partition("/")
            if self.inferences.get((namespace, name)):
                self._queue.add((namespace, name))
        self._alarm.set()

    def _on_quota(self, key: Key, *changed: Quota | None) -> None:  # noqa: ARG002
        """A quota has changed: a matter for those of its namespace that wait."""
        self._alarm.set()

    def _add_pending(self) -> None:
        for key in self._pending:
            self._queue.add(key)

    def _claim(self, key: Key, creates: Iterable[Manifest], reserved: Mapping[str, str]) -> None:
        """Hold node pools for pods that are about to be made, until it is decided again."""
        pods = [manifest for manifest in creates if manifest["kind"] == "Pod"]
        self._cluster.claim(self.kind, key, pods, reserved)

    def target(self, key: Key) -> Target | None:
        """The object, or None when it is gone."""
        custom = self.inferences.get(key)
        if custom is None:
            return None
        meta = custom.metadata
        regarding = Regarding(API_VERSION, self.kind, meta.namespace, meta.name, meta.uid)
        return Target(INFERENCES, regarding, meta.resource_version)

    def forget(self, key: Key) -> None:
        """An object is gone."""
        self._claim(key, (), {})

    def decide(self, key: Key, now: datetime, refusal: str) -> Plan:
        """The plan for an object.

        Raises:
            LookupError: there is no such object.
        """
        custom = self.inferences.get(key)
        if custom is None:
            raise LookupError("/".join(key))
        try:
            status = TPUInferenceStatus.parse(custom.status)
        except ValidationError as error:
            # Without its history replicas might be made twice: better to leave it to who can read it.
            return Plan(events=(Event(True, "UnreadableStatus", explain(error)),))
        try:
            decoded = decode(TPUInference, custom)
        except ValidationError as error:
            return refused(status, custom.metadata.generation, now, explain(error))
        snapshot = InferenceSnapshot(
            inference=decoded,
            pods=dict(self.pods.of(key)),
            services=dict(self.services.of(key)),
            revisions=dict(self.revisions.of(key)),
            scalers=dict(self.scalers.of(key)),
            nodes=self._cluster.view(now),
            pools=self._cluster.pools,
            routing=self.routing.of(key),
            refusal=refusal,
            quotas=Quotas(list(self._quotas.of((key[0], "")).values())),
        )
        found = plan(snapshot, now, self._installation)
        self._claim(key, () if refusal else found.creates, found.reserved)
        return found


def inference_of(item: Child) -> Key | None:
    """Key of the TPUInference that an object says it belongs to."""
    name = item.metadata.labels.get(names.LABEL_INFERENCE)
    return (item.metadata.namespace, name) if name else None

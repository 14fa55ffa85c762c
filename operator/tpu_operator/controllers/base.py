"""What the controllers of all kinds have in common: what they read, and whom a change of it is about."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import ValidationError

from tpu_operator.api import API_VERSION, TPUInference, TPUInferenceStatus, TPUJob, TPUJobStatus
from tpu_operator.controllers.decode import decode, explain
from tpu_operator.core.conditions import refused
from tpu_operator.core.plan import Event, Plan
from tpu_operator.core.snapshot import Pod, PodGroup, Service
from tpu_operator.engine.applier import Target
from tpu_operator.engine.events import Regarding
from tpu_operator.engine.informer import Informer
from tpu_operator.engine.optional import OptionalInformer
from tpu_operator.engine.queue import Alarm
from tpu_operator.engine.resources import POD_GROUPS, PODS, SERVICES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from tpu_operator.api import InferencePhase, Phase
    from tpu_operator.controllers.cluster import ClusterState
    from tpu_operator.controllers.quotas import QuotaState
    from tpu_operator.core.conditions import Conditions
    from tpu_operator.core.snapshot import Custom
    from tpu_operator.engine.client import ApiServer
    from tpu_operator.engine.informer import HasMetadata, Key
    from tpu_operator.engine.queue import WorkQueue
    from tpu_operator.engine.resources import Resource

M = TypeVar("M", TPUJob, TPUInference)


@dataclass(frozen=True, slots=True)
class Kind(Generic[M]):
    """One of our kinds.

    Attributes:
        resource: where its objects live.
        label: label by which children name the object that they belong to.
        model: what an object is read as.
        status: what its status is read as.
        phase: sums up the conditions of its status.
    """

    resource: Resource
    label: str
    model: type[M]
    status: type[TPUJobStatus | TPUInferenceStatus]
    phase: Callable[[Conditions], Phase | InferencePhase]


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a controller reads, and whom it tells.

    Attributes:
        api: the API server.
        queue: gets the keys of objects of which something has changed.
        cluster: the nodes, shared by all controllers.
        quotas: the quotas of the same namespaces, shared as well.
        namespace: only this namespace; empty for all.
    """

    api: ApiServer
    queue: WorkQueue
    cluster: ClusterState
    quotas: QuotaState
    namespace: str = ""


class Controller(ABC, Generic[M]):
    """Reads what decisions about the objects of one kind need.

    Attributes:
        kind: name of the kind.
        objects: all of that kind.
        pods: their pods.
        services: their headless Services.
        pod_groups: their PodGroups.
        informers: all of what decisions read, by kind.

    Args:
        kind: the kind.
        objects: reads its objects.
        sources: where the rest comes from.
    """

    def __init__(self, kind: Kind[M], objects: Informer[Custom], sources: Sources) -> None:
        self.kind = kind.resource.kind
        self.objects = objects
        self._of_kind: Kind[M] = kind
        self._owner = owner_by(kind.label)
        self._cluster, self._quotas, self._queue = sources.cluster, sources.quotas, sources.queue
        self._pending: set[Key] = set()
        self._gone: dict[Key, dict[str, Pod]] = {}
        self._woken: set[str] = set()
        self._alarm = Alarm(self._add_woken)
        self._children: dict[str, Any] = {
            "namespace": sources.namespace,
            "selector": kind.label,
            "index": self._owner,
        }
        api = sources.api
        self.pods = Informer(api, PODS, Pod, **self._children)
        self.services = Informer(api, SERVICES, Service, **self._children)
        self.pod_groups = OptionalInformer[PodGroup](api, POD_GROUPS, PodGroup, **self._children)
        self.informers: Mapping[str, Informer[Any]] = {self.kind: objects}
        objects.listen(self._on_object)
        self.pods.listen(self._on_pod)
        self._read({"Pod": self.pods, "Service": self.services, "PodGroup": self.pod_groups})
        self.pod_groups.listen_served(self._wake)
        self._know({"ResourceQuota": self._quotas.informer, "Node": self._cluster.nodes})
        self._quotas.listen(self._wake)
        self._cluster.follow(self.pods)
        self._cluster.listen(self._on_node)

    def _read(self, children: Mapping[str, Informer[Any]]) -> None:
        """Have decisions depend on children, by kind."""
        self._know(children)
        for informer in children.values():
            informer.listen(self._on_child)

    def _know(self, informers: Mapping[str, Informer[Any]]) -> None:
        """Have these run, and waited for."""
        self.informers = {**self.informers, **informers}

    def all_keys(self) -> list[Key]:
        """All objects."""
        return self.objects.keys()

    def target(self, key: Key) -> Target | None:
        """The object, or None when it is gone."""
        custom = self.objects.get(key)
        if custom is None:
            return None
        meta = custom.metadata
        regarding = Regarding(API_VERSION, self.kind, meta.namespace, meta.name, meta.uid)
        return Target(self._of_kind.resource, regarding, meta.resource_version, meta.generation)

    def forget(self, key: Key) -> None:
        """An object is gone."""
        self._claim(key, Plan())
        self._gone.pop(key, None)

    def decide(self, key: Key, now: datetime, refusal: str) -> Plan:
        """The plan for an object.

        Raises:
            LookupError: there is no such object.
        """
        custom = self.objects.get(key)
        if custom is None:
            raise LookupError("/".join(key))
        try:
            status = self._of_kind.status.parse(custom.status)
        except ValidationError as error:
            # Without its history things might be done twice: better leave it to a version that can read it.
            return Plan(events=(Event(True, "UnreadableStatus", explain(error)),))
        try:
            decoded = decode(self._of_kind.model, custom)
        except ValidationError as error:
            return refused(status, custom.metadata.generation, now, explain(error), self._of_kind.phase)
        plan = self._plan(decoded, key, now, refusal)
        self._claim(key, replace(plan, creates=()) if refusal else plan)
        return plan

    @abstractmethod
    def _plan(self, item: M, key: Key, now: datetime, refusal: str) -> Plan:
        """Gather what there is of an object, and decide."""

    def _claim(self, key: Key, plan: Plan) -> None:
        """Hold node pools and quota for pods that an object is about to get, until it is decided again."""
        pods = [manifest for manifest in plan.creates if manifest["kind"] == "Pod"]
        self._cluster.claim(self.kind, key, pods, plan.reserved)
        self._quotas.claim(self.kind, key, plan.claimed if pods else {})

    def _on_object(self, key: Key, old: Custom | None, new: Custom | None) -> None:  # noqa: ARG002
        if new and new.status.get("pending"):
            self._pending.add(key)
        else:
            self._pending.discard(key)
        if new is None:
            # Nobody may get to it: keys are dropped while another replica leads.
            self.forget(key)
        elif new.status.get("completionTime"):
            self._gone.pop(key, None)
        self._queue.add(key)

    def _on_child(self, key: Key, *changed: HasMetadata | None) -> None:  # noqa: ARG002
        """A child has changed: a matter for the object that it belongs to, or has belonged to."""
        for owner in {self._owner(item) for item in changed if item}:
            if owner is not None:
                self._queue.add(owner)

    def _on_pod(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        """Keep how a pod was when it went, until there is another of its name.

        Why it went may be in a state that came and passed between two decisions.
        """
        pod = new or old
        owner = self._owner(pod) if pod else None
        if pod is None or owner is None:
            return
        gone = self._gone.setdefault(owner, {})
        if new is None and self._is_of(pod, owner):
            gone[key[1]] = pod
        else:
            gone.pop(key[1], None)
        if not gone:
            del self._gone[owner]

    def _is_of(self, pod: Pod, owner: Key) -> bool:
        """Whether a pod belongs to an object that is not over; others come and go with any names."""
        found = self.objects.get(owner)
        return (
            found is not None
            and found.metadata.uid == pod.metadata.owner_uid
            and not found.status.get("completionTime")
        )

    def _on_node(self, owners: set[str]) -> None:
        """A node has changed: a matter for those on it, and for those that wait for nodes."""
        for owner in owners:
            namespace, _, name = owner.partition("/")
            if self.objects.get((namespace, name)):
                self._queue.add((namespace, name))
        self._wake()

    def _wake(self, namespace: str = "") -> None:
        """Have the objects that wait looked at soon, in one namespace or in all.

        Thousands of nodes may come while thousands of objects wait: that each node is no matter for each
        object at once keeps the event loop going, on which the lease is renewed.
        """
        self._woken.add(namespace)
        self._alarm.set()

    def _add_woken(self) -> None:
        woken, self._woken = self._woken, set()
        for key in self._pending:
            if "" in woken or key[0] in woken:
                self._queue.add(key)


def owner_by(label: str) -> Callable[[HasMetadata], Key | None]:
    """What finds the key of the object that a child says it belongs to.

    Args:
        label: the label that has its name.
    """

    def owner(child: HasMetadata) -> Key | None:
        name = child.metadata.labels.get(label)
        return (child.metadata.namespace, name) if name else None

    return owner

"""TPUJob: its informers, and from its objects to a plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tpu_operator.api import API_VERSION, TPUJob, TPUJobStatus
from tpu_operator.controllers.decode import decode, explain
from tpu_operator.core import job, names
from tpu_operator.core.jobstatus import refused
from tpu_operator.core.kueue import Workload
from tpu_operator.core.plan import Event, Plan
from tpu_operator.core.quota import Quotas
from tpu_operator.core.snapshot import Custom, JobSnapshot, Pod, PodGroup, Quota, Service
from tpu_operator.engine.applier import Target
from tpu_operator.engine.events import Regarding
from tpu_operator.engine.informer import Informer
from tpu_operator.engine.optional import OptionalInformer
from tpu_operator.engine.queue import Alarm
from tpu_operator.engine.resources import POD_GROUPS, PODS, QUOTAS, SERVICES, TPUJOBS, WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tpu_operator.controllers.cluster import ClusterState
    from tpu_operator.core.settings import PodSettings
    from tpu_operator.engine.client import ApiServer
    from tpu_operator.engine.informer import Key
    from tpu_operator.engine.queue import WorkQueue

    Child = Pod | Service | PodGroup | Workload


class JobController:
    """Reads what decisions about TPUJobs need.

    Args:
        api: where to read.
        queue: gets the keys of jobs of which something has changed.
        settings: the installation's choices.
        cluster: the nodes, shared by all controllers.
        namespace: only this namespace; empty for all.
    """

    kind = "TPUJob"

    def __init__(
        self,
        api: ApiServer,
        queue: WorkQueue,
        settings: PodSettings,
        cluster: ClusterState,
        namespace: str = "",
    ) -> None:
        self._settings = settings
        self.jobs = Informer(api, TPUJOBS, Custom, namespace=namespace)
        self.pods = Informer(api, PODS, Pod, namespace=namespace, selector=names.LABEL_JOB, index=job_of)
        self.services = Informer(
            api, SERVICES, Service, namespace=namespace, selector=names.LABEL_JOB, index=job_of
        )
        self.pod_groups = OptionalInformer[PodGroup](
            api, POD_GROUPS, PodGroup, namespace=namespace, selector=names.LABEL_JOB, index=job_of
        )
        self.quotas = Informer(
            api, QUOTAS, Quota, namespace=namespace, index=lambda quota: (quota.metadata.namespace, "")
        )
        self._quota_claims: dict[Key, Counter[str]] = {}
        self.workloads = OptionalInformer[Workload](
            api, WORKLOADS, Workload, namespace=namespace, selector=names.LABEL_JOB, index=job_of
        )
        self._cluster = cluster
        self._pending: set[Key] = set()
        self._gone: dict[Key, dict[str, Pod]] = {}
        self._woken: set[str] = set()
        self._alarm = Alarm(self._add_woken)
        self.informers: Mapping[str, Informer[Any]] = {
            "TPUJob": self.jobs,
            "Pod": self.pods,
            "Service": self.services,
            "PodGroup": self.pod_groups,
            "ResourceQuota": self.quotas,
            "Workload": self.workloads,
            "Node": cluster.nodes,
            **cluster.kueue.informers,
        }
        self._queue = queue
        self.jobs.listen(self._on_job)
        self.pods.listen(self._on_pod)
        self.pods.listen(self._on_child)
        self.services.listen(self._on_child)
        self.pod_groups.listen(self._on_child)
        self.workloads.listen(self._on_child)
        self.pod_groups.listen_served(self._on_conditions)
        self.workloads.listen_served(self._on_conditions)
        cluster.kueue.listen(self._on_conditions)
        self.quotas.listen(self._on_quota)
        cluster.follow(self.pods)
        cluster.listen(self._on_node)

    def all_keys(self) -> list[Key]:
        """All jobs."""
        return self.jobs.keys()

    def _on_job(self, key: Key, old: Custom | None, new: Custom | None) -> None:  # noqa: ARG002
        if new and new.status.get("pending"):
            self._pending.add(key)
        else:
            self._pending.discard(key)
        if new and new.status.get("completionTime"):
            self._gone.pop(key, None)
        self._queue.add(key)

    def _on_child(self, key: Key, *changed: Child | None) -> None:  # noqa: ARG002
        """A child has changed: a matter for the job that it belongs to, or has belonged to."""
        for owner in {job_of(item) for item in changed if item}:
            if owner is not None:
                self._queue.add(owner)

    def _on_pod(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        """Keep how a pod was when it went, until there is another of its name.

        Why it went may be in a state that came and passed between two decisions.
        """
        pod = new or old
        owner = job_of(pod) if pod else None
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
        """Whether a pod belongs to a job that is not over; others come and go with any names."""
        found = self.jobs.get(owner)
        return (
            found is not None
            and found.metadata.uid == pod.metadata.owner_uid
            and not found.status.get("completionTime")
        )

    def _on_node(self, jobs: set[str]) -> None:
        """A node has changed: a matter for the jobs on it, and for those that wait for nodes."""
        for job_name in jobs:
            namespace, _, name = job_name.partition("/")
            if self.jobs.get((namespace, name)):
                self._queue.add((namespace, name))
        self._wake()

    def _on_conditions(self) -> None:
        """The cluster serves a resource since now, or has another flavor: a matter for all that waits."""
        self._wake()

    def _on_quota(self, key: Key, *changed: Quota | None) -> None:  # noqa: ARG002
        """A quota has changed: a matter for the jobs of its namespace that wait."""
        self._wake(key[0])

    def _wake(self, namespace: str = "") -> None:
        """Have the jobs that wait looked at soon, in one namespace or in all.

        Thousands of nodes may come while thousands of jobs wait: that each node is no matter for each job at
        once keeps the event loop going, on which the lease is renewed.
        """
        self._woken.add(namespace)
        self._alarm.set()

    def _add_woken(self) -> None:
        woken, self._woken = self._woken, set()
        for key in self._pending:
            if "" in woken or key[0] in woken:
                self._queue.add(key)

    def _quotas_for(self, key: Key) -> Quotas:
        """Quotas as a job sees them, with what others in its namespace are about to use."""
        claimed: Counter[str] = Counter()
        for other, claim in self._quota_claims.items():
            if other[0] == key[0] and other != key:
                claimed.update(claim)
        return Quotas(list(self.quotas.of((key[0], "")).values()), claimed)

    def _claim(self, key: Key, plan: Plan) -> None:
        """Hold node pools and quota for pods that a job is about to get, until it is decided about again."""
        pods = [manifest for manifest in plan.creates if manifest["kind"] == "Pod"]
        self._cluster.claim(self.kind, key, pods, plan.reserved)
        self._quota_claims.pop(key, None)
        if pods and self.quotas.of((key[0], "")):
            self._quota_claims[key] = Counter(plan.claimed)

    def target(self, key: Key) -> Target | None:
        """The job, or None when it is gone."""
        custom = self.jobs.get(key)
        if custom is None:
            return None
        meta = custom.metadata
        regarding = Regarding(API_VERSION, self.kind, meta.namespace, meta.name, meta.uid)
        return Target(TPUJOBS, regarding, meta.resource_version)

    def forget(self, key: Key) -> None:
        """A job is gone."""
        self._claim(key, Plan())
        self._gone.pop(key, None)

    def decide(self, key: Key, now: datetime, refusal: str) -> Plan:
        """The plan for a job.

        Raises:
            LookupError: there is no such job.
        """
        custom = self.jobs.get(key)
        if custom is None:
            raise LookupError("/".join(key))
        try:
            status = TPUJobStatus.parse(custom.status)
        except ValidationError as error:
            # Without its history a job might run twice: better to leave it to a version that can read it.
            return Plan(events=(Event(True, "UnreadableStatus", explain(error)),))
        try:
            decoded = decode(TPUJob, custom)
        except ValidationError as error:
            return refused(status, custom.metadata.generation, now, explain(error))
        snapshot = JobSnapshot(
            job=decoded,
            pods=dict(self.pods.of(key)),
            services=dict(self.services.of(key)),
            nodes=self._cluster.view(now),
            refusal=refusal,
            pools=self._cluster.pools,
            pod_groups=dict(self.pod_groups.of(key)) if self.pod_groups.served else None,
            quotas=self._quotas_for(key),
            queues=self._cluster.kueue.view(self.workloads.of(key)) if self.workloads.served else None,
            gone=dict(self._gone.get(key, {})),
        )
        plan = job.plan(snapshot, now, self._settings)
        self._claim(key, replace(plan, creates=()) if refusal else plan)
        return plan


def job_of(item: Child) -> Key | None:
    """Key of the job that an object says it belongs to."""
    name = item.metadata.labels.get(names.LABEL_JOB)
    return (item.metadata.namespace, name) if name else None

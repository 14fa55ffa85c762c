"""TPUJob: what is read besides what all kinds read, and from its objects to a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpu_operator.api import TPUJob, TPUJobStatus
from tpu_operator.controllers.base import Controller, Kind
from tpu_operator.core import job, names
from tpu_operator.core.conditions import job_phase
from tpu_operator.core.kueue import Workload
from tpu_operator.core.snapshot import Custom, JobSnapshot
from tpu_operator.engine.informer import Informer
from tpu_operator.engine.optional import OptionalInformer
from tpu_operator.engine.resources import TPUJOBS, WORKLOADS

if TYPE_CHECKING:
    from datetime import datetime

    from tpu_operator.controllers.base import Sources
    from tpu_operator.core.plan import Plan
    from tpu_operator.core.settings import PodSettings
    from tpu_operator.engine.informer import Key

KIND = Kind(TPUJOBS, names.LABEL_JOB, TPUJob, TPUJobStatus, job_phase)


class JobController(Controller[TPUJob]):
    """Reads what decisions about TPUJobs need.

    Args:
        sources: where to read.
        settings: the installation's choices.
    """

    def __init__(self, sources: Sources, settings: PodSettings) -> None:
        jobs = Informer(sources.api, TPUJOBS, Custom, namespace=sources.namespace)
        super().__init__(KIND, jobs, sources)
        self._settings = settings
        self.workloads = OptionalInformer[Workload](sources.api, WORKLOADS, Workload, **self._children)
        self._read({"Workload": self.workloads})
        self._know(self._cluster.kueue.informers)
        # What is served since now, or another flavor, is a matter for all that waits.
        self.workloads.listen_served(self._wake)
        self._cluster.kueue.listen(self._wake)

    def _plan(self, item: TPUJob, key: Key, now: datetime, refusal: str) -> Plan:
        snapshot = JobSnapshot(
            job=item,
            pods=dict(self.pods.of(key)),
            services=dict(self.services.of(key)),
            nodes=self._cluster.view(now),
            refusal=refusal,
            pools=self._cluster.pools,
            pod_groups=dict(self.pod_groups.of(key)) if self.pod_groups.served else None,
            quotas=self._quotas.view(self.kind, key),
            queues=self._cluster.kueue.view(self.workloads.of(key)) if self.workloads.served else None,
            gone=dict(self._gone.get(key, {})),
        )
        return job.plan(snapshot, now, self._settings)

"""Puts the operator together: informers that always run, and reconcilers that run while we lead."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING, Final

from prometheus_client import REGISTRY

from tpu_operator.controllers.base import Sources
from tpu_operator.controllers.chipseconds import ChipSeconds
from tpu_operator.controllers.cluster import ClusterState
from tpu_operator.controllers.inference import InferenceController
from tpu_operator.controllers.inferencemetrics import InferenceMetrics
from tpu_operator.controllers.job import JobController
from tpu_operator.controllers.jobmetrics import JobMetrics
from tpu_operator.controllers.quotas import QuotaState
from tpu_operator.core.inference.view import Installation
from tpu_operator.core.names import FIELD_MANAGER
from tpu_operator.engine import metrics
from tpu_operator.engine.applier import Applier
from tpu_operator.engine.clock import wall_clock
from tpu_operator.engine.events import Recorder
from tpu_operator.engine.lease import Elector
from tpu_operator.engine.optional import OptionalInformer
from tpu_operator.engine.queue import WorkQueue
from tpu_operator.engine.reconciler import Reconciler

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from tpu_operator.core.snapshot import Custom
    from tpu_operator.engine.client import ApiServer
    from tpu_operator.engine.clock import Clock
    from tpu_operator.engine.informer import Informer
    from tpu_operator.settings import Settings

log = logging.getLogger(__name__)

INFERENCES: Final = "tpuinferences"
"""Tells the queues of one kind from those of the other, in metrics."""


class Runner:
    """One replica.

    Args:
        settings: its settings.
        api: the API server.
        clock: the time of day.
    """

    def __init__(self, settings: Settings, api: ApiServer, clock: Clock = wall_clock) -> None:
        self._settings = settings
        self._api = api
        self._clock = clock
        # Unique over restarts of a container, which keep the pod's name.
        identity = f"{settings.identity}_{uuid.uuid4().hex[:8]}"
        self._elector = Elector(api, settings.own_namespace, FIELD_MANAGER, identity, clock)
        api.write_time = self._elector.left
        namespaces = settings.namespaces or ("",)
        cluster = ClusterState(api, settings.node_lost_after, namespaces)
        self._strangers = cluster.strangers
        # A queue each: a controller knows nothing of the keys of another's namespace.
        share = max(1, settings.workers // 2)
        jobs = [WorkQueue(namespace, share) for namespace in namespaces]
        models = [WorkQueue(f"{namespace}/{INFERENCES}", share) for namespace in namespaces]
        self._queues = [*jobs, *models]
        quotas = [QuotaState(api, namespace) for namespace in namespaces]

        def sources(queues: list[WorkQueue]) -> Iterator[Sources]:
            for queue, quota, namespace in zip(queues, quotas, namespaces, strict=True):
                yield Sources(api, queue, cluster, quota, namespace)

        self._job_controllers = [JobController(each, settings.pods) for each in sources(jobs)]
        installation = Installation(settings.pods, settings.images, settings.prometheus)
        self._inference_controllers = [InferenceController(each, installation) for each in sources(models)]
        self._recorder = Recorder(api, settings.identity, clock)
        self._spent = ChipSeconds(clock)
        for controller in self._job_controllers:
            self._spent.follow(controller.objects)

    @property
    def _controllers(self) -> list[JobController | InferenceController]:
        return [*self._job_controllers, *self._inference_controllers]

    @property
    def informers(self) -> list[Informer[Any]]:
        """All that decisions rest on, each once."""
        every = [i for controller in self._controllers for i in controller.informers.values()]
        return list(dict.fromkeys(every))

    @property
    def _needed(self) -> list[Informer[Any]]:
        """Those without which there is nothing to decide."""
        return [each for each in self.informers if not isinstance(each, OptionalInformer)]

    def synced(self) -> bool:
        """Whether there is a first copy of all that no decision can do without."""
        return all(informer.synced.is_set() for informer in self._needed)

    def unready(self) -> str:
        """Why this replica could not take over now; empty if it could.

        An old copy is no copy: a rollout must not go on to the next replica while this one cannot read. That
        is for readiness alone, which restarts nobody: a leader that waits for its server is as it should be.
        """
        if not self.synced():
            return "not synced"
        limit = self._settings.silent_after
        old = next((i for i in self._needed if i.age() > limit), None)
        return f"nothing heard of {old.resource.plural} for {old.age():.0f} s" if old else ""

    def silent(self) -> str:
        """The resource whose watch has been silent for too long, or empty."""
        limit = self._settings.silent_after
        return next((i.resource.plural for i in self.informers if i.stalled() > limit), "")

    async def run(self) -> None:
        """Work until cancelled."""
        collectors = (
            JobMetrics(self._jobs, self._spent, self._elector.held, self._clock),
            InferenceMetrics(self._inferences, self._elector.held, self._clock),
        )
        for collector in collectors:
            REGISTRY.register(collector)
        try:
            await self._run()
        finally:
            for collector in collectors:
                REGISTRY.unregister(collector)

    def _jobs(self) -> list[Custom]:
        return [job for controller in self._job_controllers for job in controller.objects.values()]

    def _inferences(self) -> list[Custom]:
        return [each for controller in self._inference_controllers for each in controller.objects.values()]

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(metrics.LoopLag().measure())
            for informer in (*self.informers, *self._strangers):
                group.create_task(informer.run())
            group.create_task(self._lead())

    async def stop(self) -> None:
        """Let go, after `run` has ended."""
        await self._api.settle()
        await self._elector.release()
        await self._api.close()

    async def _lead(self) -> None:
        """Compete for the lease, and work while it is ours, for ever."""
        while True:
            await self._elector.acquire()
            work = asyncio.create_task(self._work())
            keep = asyncio.create_task(self._elector.keep())
            try:
                await asyncio.wait({work, keep}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (work, keep):
                    task.cancel()
                results = await asyncio.gather(work, keep, return_exceptions=True)
            for error in results:
                if isinstance(error, Exception):
                    raise error

    async def _work(self) -> None:
        """Reconcile, from a copy that is newer than what the last leader has written."""
        needed = self._needed
        await asyncio.gather(*(informer.refresh() for informer in needed))
        # Afterwards, so that an outage of the server itself is not taken for one of theirs.
        await asyncio.gather(*(each.refresh() for each in self.informers if each not in needed))
        applier = Applier(self._api, self._recorder)
        self._spent.start(self._jobs())
        try:
            await self._reconcile(applier)
        finally:
            self._spent.stop()

    async def _reconcile(self, applier: Applier) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._recorder.run())
            for controller, queue in zip(self._controllers, self._queues, strict=True):
                reconciler = Reconciler(controller, queue, applier, self._clock)
                group.create_task(reconciler.run(self._settings.workers))

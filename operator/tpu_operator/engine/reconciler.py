"""The loop: take a key, wait for our own writes, look, decide, act.

Knows nothing of any kind; a `Controller` brings the informers and the decision.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from tpu_operator.core.plan import Event, Plan
from tpu_operator.engine.client import ApiError, FencedError
from tpu_operator.engine.clock import wall_clock
from tpu_operator.engine.metrics import RECONCILE_ERRORS, RECONCILE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tpu_operator.engine.applier import Applier, Target
    from tpu_operator.engine.clock import Clock
    from tpu_operator.engine.informer import Informer, Key
    from tpu_operator.engine.queue import WorkQueue

log = logging.getLogger(__name__)

PATIENCE: Final = 5.0
"""Seconds to wait for our own writes to come back on the watch before going on without them."""
STALE_RETRY: Final = 1.0
"""Seconds between looks at an object whose copy does not come up to date."""
QUIET: Final = 2.0
"""Seconds without progress after which a status that tells of nothing else is written."""
LONGEST_HOLD: Final = 10.0
"""Seconds after which it is written while things still move."""
SHARE: Final = 10.0
"""For how many times as long as a decision took its object is left alone: the hosts of a large gang change
one by one, and other objects want their turn."""
LONGEST_REST: Final = 1.0
REFUSED_RETRY: Final = 10.0
"""Seconds after which a refused create is tried again, the first time and after each change of the spec; each
refusal that follows doubles them."""
LONGEST_REFUSED_RETRY: Final = 60.0
TELL_AFTER: Final = 5.0
"""Seconds after which the object itself says that the server does not do what it is asked for."""
TELL_LATE: Final = 30.0
"""Seconds after which it says so of what another try mends as a rule: conflicts, and lost connections."""
BROKEN: Final = "ReconcileFailed"


class Controller(Protocol):
    """One kind: where its objects are and how they are decided about."""

    kind: str
    informers: Mapping[str, Informer[Any]]
    """By kind, all that decisions read."""

    def all_keys(self) -> list[Key]:
        """All objects of the kind."""

    def target(self, key: Key) -> Target | None:
        """The object, or None when it is gone."""

    def decide(self, key: Key, now: datetime, refusal: str) -> Plan:
        """The plan for an object.

        Args:
            key: the object, which is there.
            now: the time.
            refusal: what the server said when it last refused to write a child of it, empty if it did not.
        """

    def forget(self, key: Key) -> None:
        """An object is gone."""


@dataclass(slots=True)
class _Memory:
    """What is remembered about an object between passes; all of it may be lost.

    Attributes:
        uid: which incarnation of the object it is about.
        written: the highest resource version that the last pass wrote, by kind.
        status: resource version that the copy of the object must have reached before the next decision.
        unsure: nobody knows whether the status of the last pass was written.
        deadline: until when to wait for `written`.
    """

    uid: str
    written: dict[str, int] = field(default_factory=dict)
    status: int = 0
    unsure: bool = False
    deadline: float = 0.0
    progress: str = ""
    progress_at: float = 0.0
    held_since: float = 0.0
    rest_until: float = float("-inf")
    refusal: str = ""
    refusals: int = 0
    refused_until: float = float("-inf")
    generation: int = 0
    failing_since: float = float("inf")
    not_before: float = float("-inf")


class Reconciler:
    """Passes over the objects of one kind.

    Args:
        controller: the kind.
        queue: keys that want a pass.
        applier: carries plans out.
        clock: tells the time that decisions go by.
    """

    def __init__(
        self, controller: Controller, queue: WorkQueue, applier: Applier, clock: Clock = wall_clock
    ) -> None:
        self._controller = controller
        self._queue = queue
        self._applier = applier
        self._clock = clock
        self._memory: dict[Key, _Memory] = {}

    async def run(self, workers: int) -> None:
        """Pass over all objects once, and then over those that want it, until cancelled."""
        self._queue.open()
        try:
            for key in self._controller.all_keys():
                self._queue.add(key)
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._work())
        finally:
            self._queue.close()

    async def _work(self) -> None:
        while True:
            key = await self._queue.take()
            try:
                await self.one_pass(key)
            finally:
                self._queue.done(key)
            # A pass that finds nothing to do never suspends, and the lease's renewal wants its turn as well.
            await asyncio.sleep(0)

    async def one_pass(self, key: Key) -> None:
        """Reconcile one object; failures lead to another pass later, never to an exception."""
        kind = self._controller.kind
        began = self._now()
        try:
            decided = await self._reconcile(key)
        except FencedError:
            log.info("%s %s/%s: not the leader for sure, nothing written", kind, *key)
            self._queue.retry(key)
        except ApiError as error:
            RECONCILE_ERRORS.labels(kind).inc()
            level = logging.INFO if error.conflict or error.gone else logging.WARNING
            log.log(level, "%s %s/%s: will retry: %s", kind, *key, error)
            self._remember_failure(key, error)
        except Exception:
            RECONCILE_ERRORS.labels(kind).inc()
            log.exception("%s %s/%s: pass failed, will retry", kind, *key)
            self._queue.retry(key)
        else:
            if decided:
                RECONCILE_SECONDS.labels(kind).observe(self._now() - began)
                self._queue.succeeded(key)

    async def _reconcile(self, key: Key) -> bool:
        """One pass; whether it came to a decision and carried it out."""
        target = self._controller.target(key)
        if target is None:
            self._memory.pop(key, None)
            self._controller.forget(key)
            return True
        memory = self._recall(key, target)
        if self._wait_until(key, max(memory.not_before, memory.rest_until)):
            return False
        if self._wait_for_own_writes(key, memory) or await self._wait_for_status(key, target, memory):
            return False
        plan = await self._decide(key, target, memory)
        plan = self._hold_back_progress(key, memory, plan)
        wanted, plan = plan, self._hold_back_creates(key, memory, plan)
        memory.written = {}
        try:
            refusal = await self._applier.carry_out(target, plan, memory.written)
        finally:
            memory.deadline = self._now() + PATIENCE
            memory.status = max(memory.status, memory.written.get(self._controller.kind, 0))
            memory.unsure = memory.written.get(self._controller.kind) == 0
            if plan.creates or plan.deletes:
                # The hosts of a large gang take longer to make than any progress is held back.
                memory.progress_at = memory.held_since = self._now()
        memory.failing_since = float("inf")
        if plan is wanted:
            self._remember_refusal(key, memory, refusal)
        if plan.requeue_after is not None:
            self._queue.add_after(key, plan.requeue_after)
        return True

    def _recall(self, key: Key, target: Target) -> _Memory:
        """What is remembered of this incarnation of an object; refusals are those of its spec."""
        memory = self._memory.get(key)
        if memory is None or memory.uid != target.regarding.uid:
            memory = self._memory[key] = _Memory(target.regarding.uid)
        if memory.generation != target.generation:
            memory.generation, memory.refusals = target.generation, 0
            memory.refused_until = min(memory.refused_until, self._now() + REFUSED_RETRY)
        return memory

    async def _decide(self, key: Key, target: Target, memory: _Memory) -> Plan:
        """Decide; an object that we cannot decide about has an event that says so."""
        began = self._now()
        try:
            return self._controller.decide(key, self._clock(), memory.refusal)
        except Exception as error:
            text = f"the operator cannot decide about it: {type(error).__name__}: {error}; its log says more"
            await self._applier.carry_out(target, Plan(events=(Event(True, BROKEN, text),)), {})
            raise
        finally:
            took = self._now() - began
            memory.rest_until = began + took + min(took * SHARE, LONGEST_REST)

    def _wait_until(self, key: Key, time: float) -> bool:
        """Whether it is too early for a pass: the server has asked for a pause, or others want their turn."""
        left = time - self._now()
        if left > 0:
            self._queue.add_after(key, left)
        return left > 0

    def _wait_for_own_writes(self, key: Key, memory: _Memory) -> bool:
        """Whether the pass has to wait; the events of our writes bring the key back by themselves."""
        informers = self._controller.informers
        behind = any(
            not informers[kind].has_seen(version)
            for kind, version in memory.written.items()
            if kind in informers
        )
        left = memory.deadline - self._now()
        if not behind or left <= 0:
            return False
        self._queue.add_after(key, left)
        return True

    async def _wait_for_status(self, key: Key, target: Target, memory: _Memory) -> bool:
        """Whether the pass has to wait until the copy of the object shows the status that we wrote last.

        The status is what remains of earlier decisions, so that there is no going on without it: a pod that
        was taken away from a gang that has started would be taken for one that was never made. A write whose
        answer was lost counts, if the server has carried it out.
        """
        if not target.version.isdecimal() or (int(target.version) >= memory.status and not memory.unsure):
            return False
        version = await self._applier.version(target)
        memory.unsure = False
        if version.isdecimal():
            # May be lower than what we wrote: versions begin anew after a restore of etcd.
            memory.status = int(version)
        if version == target.version:
            return False
        self._queue.add_after(key, STALE_RETRY)
        return True

    def _hold_back_progress(self, key: Key, memory: _Memory, plan: Plan) -> Plan:
        """Leave out a status that only tells of progress while there is more of it."""
        now = self._now()
        if plan.status is None or not plan.progress:
            memory.progress = ""
            return plan
        if not memory.progress:
            memory.held_since = now
        if plan.progress != memory.progress:
            memory.progress, memory.progress_at = plan.progress, now
        left = min(memory.progress_at + QUIET, memory.held_since + LONGEST_HOLD) - now
        if left <= 0:
            memory.progress = ""
            return plan
        self._queue.add_after(key, left)
        return replace(plan, status=None, events=(), observations=())

    def _hold_back_creates(self, key: Key, memory: _Memory, plan: Plan) -> Plan:
        """Leave creates out that were refused a moment ago; what is refused hammers nobody."""
        left = memory.refused_until - self._now()
        if not plan.creates or left <= 0:
            return plan
        self._queue.add_after(key, left)
        return replace(plan, creates=())

    def _remember_refusal(self, key: Key, memory: _Memory, refusal: str) -> None:
        """Have a refusal shown, or not shown any more, by the next decision."""
        if not refusal:
            memory.refusals, memory.refused_until = 0, float("-inf")
        elif self._now() >= memory.refused_until:
            pause = min(LONGEST_REFUSED_RETRY, REFUSED_RETRY * 2**memory.refusals)
            memory.refusals, memory.refused_until = min(memory.refusals + 1, 16), self._now() + pause
        if refusal:
            self._queue.add_after(key, memory.refused_until - self._now())
        if bool(refusal) != bool(memory.refusal):
            self._queue.add(key)
        memory.refusal = refusal

    def _remember_failure(self, key: Key, error: ApiError) -> None:
        """Try again later; what goes wrong for long is shown by the next decision."""
        memory = self._memory[key]
        asked = error.retry_after or 0.0
        # Events bring the key back earlier than the queue does.
        memory.not_before = self._now() + asked
        memory.failing_since = min(memory.failing_since, self._now())
        passing = not error.answered or error.conflict or error.gone
        self._queue.retry(key, asked)
        if self._now() - memory.failing_since >= (TELL_LATE if passing else TELL_AFTER):
            if not memory.refusal:
                self._queue.add(key)
            memory.refusal = error.message
            if not error.answered:
                # The status is not sent after what gets no answer: once, it goes without.
                memory.refused_until = self._now() + REFUSED_RETRY

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

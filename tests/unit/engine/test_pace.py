"""How soon an object gets its next pass, and when its status is written."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.sim.loop import SimLoop
from tpu_operator.core.plan import Plan
from tpu_operator.engine.applier import Target
from tpu_operator.engine.events import Regarding
from tpu_operator.engine.queue import WorkQueue
from tpu_operator.engine.reconciler import Reconciler
from tpu_operator.engine.resources import TPUJOBS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from tpu_operator.engine.applier import Applier
    from tpu_operator.engine.informer import Key

KEY = ("default", "train")


@dataclass
class Kind:
    """A kind whose decisions are the test's, and whose writes are noted with their time."""

    decision: Callable[[float], Plan]
    cost: float = 0.0
    writing: float = 0.0
    passes: list[float] = field(default_factory=list)
    statuses: list[tuple[float, Any]] = field(default_factory=list)
    uid: str = "1"
    kind = "TPUJob"
    informers: Mapping[str, Any] = field(default_factory=dict)

    def all_keys(self) -> list[Key]:
        return [KEY]

    def target(self, key: Key) -> Target:
        return Target(TPUJOBS, Regarding("v1", self.kind, *key, self.uid), "1")

    def forget(self, key: Key) -> None:
        raise AssertionError(key)

    def decide(self, key: Key, now: datetime, refusal: str) -> Plan:
        loop = asyncio.get_running_loop()
        self.passes.append(loop.time())
        plan = self.decision(loop.time())
        cast("SimLoop", loop)._now += self.cost
        return plan

    async def carry_out(self, target: Any, plan: Plan, written: dict[str, int]) -> str:
        if plan.creates:
            await asyncio.sleep(self.writing)
        if plan.status is not None:
            self.statuses.append((asyncio.get_running_loop().time(), plan.status["at"]))
        return ""


def play(kind: Kind, scenario: Callable[[WorkQueue], Coroutine[Any, Any, None]]) -> Kind:
    """Run the reconciler over the kind while the scenario plays, on virtual time."""

    async def whole() -> None:
        queue = WorkQueue()
        reconciler = Reconciler(kind, queue, cast("Applier", kind), lambda: datetime.now(UTC))
        work = asyncio.create_task(reconciler.run(1))
        await scenario(queue)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    with asyncio.Runner(loop_factory=SimLoop) as runner:
        runner.run(whole())
    return kind


def poke(every: float, until: float) -> Callable[[WorkQueue], Coroutine[Any, Any, None]]:
    """Changes of the object, and then a minute without any."""

    async def scenario(queue: WorkQueue) -> None:
        while asyncio.get_running_loop().time() < until:
            queue.add(KEY)
            await asyncio.sleep(every)
        await asyncio.sleep(60)

    return scenario


def test_progress_is_written_once_it_has_come_to_rest() -> None:
    def decision(now: float) -> Plan:
        ready = min(int(now / 0.1), 20)
        return Plan(status={"at": ready}, progress=f"Starting {ready}/20")

    kind = play(Kind(decision), poke(every=0.1, until=3.0))
    (when, ready), *_ = kind.statuses
    assert when == pytest.approx(4.0, abs=0.11)
    assert ready == 20


def test_progress_without_an_end_is_written_every_ten_seconds() -> None:
    kind = play(Kind(lambda now: Plan(status={"at": now}, progress=str(now))), poke(every=0.2, until=25.0))
    assert [round(at) for at, _ in kind.statuses][:2] == [10, 20]


def test_pods_that_are_being_made_are_progress() -> None:
    """Making them took two seconds; the next two belong to what becomes of them."""

    def decision(now: float) -> Plan:
        creates = ({"kind": "Pod"},) if now == 0 else ()
        return Plan(status={"at": now}, progress="Pending", creates=creates)

    kind = play(Kind(decision, writing=2.0), poke(every=0.1, until=0.2))
    assert round(kind.statuses[0][0], 1) == 4.0


def test_making_them_takes_nothing_from_the_time_for_what_becomes_of_them() -> None:
    def decision(now: float) -> Plan:
        creates = ({"kind": "Pod"},) if now == 0 else ()
        return Plan(status={"at": now}, progress=f"Starting {min(now, 17.0)}", creates=creates)

    kind = play(Kind(decision, writing=11.0), poke(every=0.1, until=25.0))
    assert [round(at, 1) for at, _ in kind.statuses][:1] == [19.0]


def test_news_do_not_wait() -> None:
    def decision(now: float) -> Plan:
        return Plan(status={"at": now}, progress="" if now >= 0.3 else str(now))

    kind = play(Kind(decision), poke(every=0.1, until=0.35))
    assert kind.statuses[0][0] == pytest.approx(0.3)


def test_what_is_dear_to_decide_about_is_left_alone_for_a_while() -> None:
    kind = play(Kind(lambda _: Plan(), cost=0.05), poke(every=0.01, until=6.0))
    gaps = [later - one for one, later in zip(kind.passes, kind.passes[1:], strict=False)]
    assert min(gaps) == pytest.approx(0.55)
    assert max(gaps[:-1]) < 0.6


def test_but_never_for_longer_than_a_second() -> None:
    kind = play(Kind(lambda _: Plan(), cost=3.0), poke(every=0.01, until=20.0))
    gaps = [later - one for one, later in zip(kind.passes, kind.passes[1:], strict=False)]
    assert min(gaps) == pytest.approx(4.0)
    assert max(gaps[:-1]) < 4.1

"""Jobs come and go for as long as asked, while everything between one operator and its server goes wrong.

People create jobs, break, suspend, resume and delete them; each of their steps has to lead to where it
should, whatever happens on the way. After every round the faults stop and all jobs are gone, and the
operator's memory is measured.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.cluster.faults import actions
from tests.cluster.faults.lab import HOSTS, wait
from tests.cluster.faults.proxy import EventRule, Rule
from tests.cluster.faults.scenarios import GONE, Case

if TYPE_CHECKING:
    from random import Random

    from tests.cluster.faults.lab import Lab, Process
    from tests.cluster.faults.proxy import Proxy

log = logging.getLogger(__name__)

PATIENCE: Final = 240.0
"""Seconds for one step of a job: pauses grow up to a minute and a half when try after try goes wrong."""
PACE: Final = 0.5
"""Seconds between looks at a job."""


@dataclass
class Soak:
    """One operator, the people and the faults around it.

    Attributes:
        lab: where.
        process: the operator.
        namespace: where its jobs are.
        random: decides about everything.
        samples: resident memory of the operator after each round, in KiB.
        lives: how many jobs have come and gone.
        faults: how many times something went wrong.
    """

    lab: Lab
    process: Process
    namespace: str
    random: Random
    samples: list[int] = field(default_factory=list)
    lives: int = 0
    faults: int = 0

    async def round(self, seconds: float, people: int) -> None:
        """Let jobs live for a while, and until the last of them is gone."""
        end = asyncio.get_running_loop().time() + seconds
        over = asyncio.Event()
        trouble = asyncio.create_task(self._trouble(over))
        try:
            await asyncio.gather(*(self._person(end) for _ in range(people)))
        finally:
            over.set()
            await trouble
        self.samples.append(resident(self.process))
        log.info(
            "%d jobs, %d faults, %d writes; RSS %.1f MiB",
            self.lives,
            self.faults,
            len(self.process.proxy.writes),
            self.samples[-1] / 1024,
        )

    async def _person(self, end: float) -> None:
        """Run one job after the other, each on a slice of its own."""
        while asyncio.get_running_loop().time() < end:
            async with self.lab.place() as place:
                await Life(self, place.pool).live()
            self.lives += 1

    async def _trouble(self, over: asyncio.Event) -> None:
        """Make things go wrong, and in the end let everything pass again."""
        proxy = self.process.proxy
        while not over.is_set():
            await asyncio.sleep(self.random.uniform(0.2, 2.0))
            self.faults += 1
            await self.random.choice(TROUBLES)(proxy, self.random)
        proxy.rules, proxy.event_rules = [], []


class Life:
    """One job, from its creation to the end.

    Args:
        soak: where.
        pool: its node pool.
    """

    def __init__(self, soak: Soak, pool: str) -> None:
        self._case = Case(soak.lab, soak.namespace, pool)
        self._random = soak.random
        self._process = soak.process
        self._restarts = 0

    async def live(self) -> None:
        """All of it."""
        await self._case.create(failurePolicy={"maxRestarts": 100, "coalesceSeconds": 1})
        if self._random.random() < 0.8:
            await self._reaches("Running")
            for _ in range(self._random.randint(0, 3)):
                await self._random.choice((self._fail, self._lose, self._suspend))()
            if self._random.random() < 0.5:
                await self._succeed()
        await self._case.delete()
        await wait(self._gone, f"{self._case.name} to be gone", PATIENCE, PACE)

    async def _fail(self) -> None:
        await self._case.end_pod(self._random.randrange(HOSTS), exit_code=3)
        await self._restarted()

    async def _lose(self) -> None:
        await self._case.api.delete(self._case.pod_path(self._random.randrange(HOSTS)), gracePeriodSeconds=0)
        await self._restarted()

    async def _restarted(self) -> None:
        self._restarts += 1
        await self._reaches("Running")

    async def _suspend(self) -> None:
        await self._case.suspend(True)
        if self._random.random() < 0.8:
            await self._reaches("Suspended", pods=0)
        await self._case.suspend(False)
        await self._reaches("Running")

    async def _succeed(self) -> None:
        for host in range(HOSTS):
            await self._case.end_pod(host, exit_code=0)
        await self._reaches("Succeeded")

    async def _reaches(self, phase: str, pods: int = HOSTS) -> None:
        """Wait until that is what the present spec has led to."""
        case, last = self._case, ""

        async def there() -> bool:
            nonlocal last
            self._process.check()
            job, found = await case.api.get(case.path), (await case.state())["pods"].values()
            status = job.get("status", {})
            current = status.get("observedGeneration") == job["metadata"]["generation"]
            last = f"{status}\n{found}"
            return (
                current
                and (status["phase"], status["restarts"]["total"]) == (phase, self._restarts)
                and len(found) == pods
                and all(pod["ours"] and not pod["going"] for pod in found)
            )

        try:
            await wait(there, f"{case.name} to be {phase} after {self._restarts} restarts", PATIENCE, PACE)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{last}") from None

    async def _gone(self) -> bool:
        self._process.check()
        return await self._case.state() == GONE


async def _some_writes(proxy: Proxy, random: Random) -> None:
    what = random.choice(sorted(actions.ONCE))
    proxy.rules = [Rule(actions.ONCE[what], where=lambda call: call.is_write, times=random.randint(1, 5))]


async def _some_requests(proxy: Proxy, random: Random) -> None:
    what = random.choice(sorted(actions.OUTAGES))
    proxy.rules = [Rule(actions.OUTAGES[what], times=random.randint(1, 8))]


async def _all_requests(proxy: Proxy, random: Random) -> None:
    what = random.choice(sorted(actions.OUTAGES))
    proxy.rules = [Rule(actions.OUTAGES[what])]
    if random.random() < 0.5:
        proxy.break_watches()
    await asyncio.sleep(random.uniform(0.5, 5.0))
    proxy.rules = []


async def _no_connection(proxy: Proxy, random: Random) -> None:
    await proxy.refuse()
    await asyncio.sleep(random.uniform(0.1, 12.0))
    await proxy.accept()


async def _delays(proxy: Proxy, random: Random) -> None:
    slow = actions.delay(lambda: asyncio.sleep(random.uniform(0.01, 2.0)))
    proxy.rules = [Rule(slow, times=random.randint(1, 20))]


async def _frozen_watches(proxy: Proxy, random: Random) -> None:
    proxy.freeze()
    await asyncio.sleep(random.uniform(0.5, 5.0))
    proxy.thaw()


async def _broken_watches(proxy: Proxy, random: Random) -> None:
    for watch in list(proxy.watches):
        match random.choice(("keep", "snap", "truncate", "410", "500")):
            case "snap":
                watch.snap()
            case "truncate":
                await watch.truncate(politely=random.random() < 0.5)
            case "410" | "500" as code:
                await watch.fail(int(code))
            case _:
                pass


async def _repeated_events(proxy: Proxy, random: Random) -> None:
    proxy.event_rules = [EventRule(copies=2, times=random.randint(1, 20))]


TROUBLES: Final = (
    _some_writes,
    _some_requests,
    _all_requests,
    _no_connection,
    _delays,
    _frozen_watches,
    _broken_watches,
    _repeated_events,
)


def resident(process: Process) -> int:
    """Resident memory of a process, in KiB."""
    lines = Path(f"/proc/{process.operator.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

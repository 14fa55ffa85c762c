"""Containers that are started again in their pods, and their launchers, who meet for another attempt."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from tests.sim import jobs
from tests.sim.jobs import attempt, deleting, finished

if TYPE_CHECKING:
    from tests.sim.kubelet import Kubelets
    from tests.sim.server import Key, Object, Stored
    from tests.sim.world import World

QUIET = 30.0
"""Seconds after a failure in which none is without a word: only time tells those from its echoes."""


class Containers:
    """Starts containers again, and opens the gate for the next attempt when those of all hosts run."""

    def __init__(self, kubelets: Kubelets, world: World) -> None:
        self._kubelets = kubelets
        self._world = world
        self._rng = world.rng("containers")
        self._told: defaultdict[str, list[Object]] = defaultdict(list)
        self._failed_at: dict[str, float] = {}

    def silent(self, pod: Stored, which: jobs.Attempt, cause: str) -> set[str]:
        """Causes of which the launcher may leave no word."""
        if not jobs.stays(pod):
            return {"UserError", "TPUFault"}
        now = self._world.loop.time()
        quiet = now - self._failed_at.get(which[0], -QUIET) >= QUIET
        self._failed_at[which[0]] = now
        if cause == "OutOfMemory" and quiet:
            # What comes after it in the same pod hides it from an operator that was away.
            self._world.ledger.disturbed.add(which)
            return {cause}
        return set()

    def fail(self, pod: Stored, which: jobs.Attempt, code: int, report: Object | None) -> None:
        """A container ends, and its peers stop their processes."""
        key, uid = pod.key, pod.meta["uid"]
        if report:
            report |= {"attempt": which[2], "earlier": self._told[uid][-4:]}
            brief = {name: report[name] for name in ("attempt", "cause", "time", "error")}
            self._told[uid] = [*self._told[uid], brief | {"exitCode": code}]
        current = self._world.server.find("pods", key)
        if current is None or current.meta["uid"] != uid or deleting(current) or finished(current):
            self._kubelets.over.discard(uid)
            return
        ended = self._kubelets.end_of(pod, code, report)
        self._kubelets.set_ready(key, uid, "False")
        self._write(key, uid, {"terminated": ended}, restarts=0)
        self._world.spawn(self._start_again(key, uid, which))
        for other in self._members(pod, which):
            if other.key != key and self._rng.random() < 0.5:
                self._world.spawn(self._notice(other, which))

    async def _notice(self, pod: Stored, which: jobs.Attempt) -> None:
        """A kubelet finds that the processes of a host do not run."""
        await asyncio.sleep(self._rng.uniform(0.0, 3.0))
        if self._kubelets.number(pod) == which:
            self._kubelets.set_ready(pod.key, pod.meta["uid"], "False")

    async def _start_again(self, key: Key, uid: str, which: jobs.Attempt) -> None:
        await asyncio.sleep(self._rng.uniform(0.1, 2.0))
        if self._rng.random() < 0.2 and await self._kubelets.reach(key, uid):
            self._write(key, uid, {"waiting": {"reason": "CrashLoopBackOff"}}, restarts=0)
            await asyncio.sleep(self._rng.uniform(1.0, 40.0))
        alive = await self._kubelets.reach(key, uid)
        self._kubelets.over.discard(uid)
        if not alive:
            return
        self._write(key, uid, {"running": {"startedAt": self._world.stamp()}}, restarts=1)
        await asyncio.sleep(self._rng.uniform(0.05, 1.0))
        pod = self._world.server.find("pods", key)
        if pod is not None and pod.meta["uid"] == uid:
            self._meet(pod, which)

    def _meet(self, pod: Stored, which: jobs.Attempt) -> None:
        """Open the gate, if all hosts are there and nobody has opened it before."""
        pods = self._members(pod, which)
        if pods and all(map(self._is_at_gate, pods)):
            self._world.ledger.rounds[which[0], which[1], attempt(pod)] += 1
            for each in pods:
                self._world.spawn(self._become_ready(each.key, each.meta["uid"]))

    async def _become_ready(self, key: Key, uid: str) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, 2.0))
        pod = self._world.server.find("pods", key)
        if await self._kubelets.reach(key, uid) and pod and self._is_at_gate(pod):
            self._kubelets.set_ready(key, uid, "True")
            self._kubelets.begin_to_end(key)

    def _members(self, pod: Stored, which: jobs.Attempt) -> list[Stored]:
        """All hosts of an attempt; none if there is one missing."""
        job = self._world.server.find("tpujobs", jobs.owner_key(pod))
        if job is None or job.meta["uid"] != which[0]:
            return []
        names = [name for name, gang in jobs.gangs(job.body).items() if gang == which[1]]
        names = [name for name in names if not name.endswith("-head")]
        found = [self._world.server.find("pods", (pod.key[0], name)) for name in names]
        there = [each for each in found if each and self._kubelets.number(each) == which]
        return there if len(there) == len(names) else []

    def _is_at_gate(self, pod: Stored) -> bool:
        (main,) = pod.body["status"].get("containerStatuses", [{}])
        runs = "running" in main.get("state", {}) and not finished(pod) and not deleting(pod)
        return runs and pod.meta["uid"] not in self._kubelets.over

    def _write(self, key: Key, uid: str, state: Object, *, restarts: int) -> None:
        def change(body: Object) -> None:
            (main,) = body["status"].get("containerStatuses", [{"name": "main"}])
            last = main.get("state", {}).get("terminated")
            main = main | {"state": state, "restartCount": main.get("restartCount", 0) + restarts}
            before = {"lastState": {"terminated": last}} if last else {}
            body["status"]["containerStatuses"] = [main | before]

        self._world.server.update("pods", key, "kubelet", change, uid=uid)

"""Kubelets: run pods on nodes, as the programs' scripts say."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING

from tests.sim import jobs
from tests.sim.containers import Containers
from tests.sim.jobs import deleting, finished, is_true, set_condition

if TYPE_CHECKING:
    from datetime import datetime

    from tests.sim.server import Change, Key, Object, Stored
    from tests.sim.world import World

ME = "kubelet"
LAUNCHERS = {"Hang", "LauncherError", "TPUFault"}
"""Causes that only the launcher can tell."""
EXITS = {"UserError": 1, "OutOfMemory": 137, "Hang": 77, "LauncherError": 69, "TPUFault": 76}


class Kubelets:
    """The kubelets of all nodes."""

    def __init__(self, world: World, skew: float) -> None:
        self.down: set[str] = set()
        """Nodes that nobody hears of."""
        self._world = world
        self._server = world.server
        self._rng = world.rng(ME)
        self._skew = skew
        self._skews: dict[str, float] = {}
        self.over: set[str] = set()
        """Pods whose programs have ended, whoever knows."""
        self._ending: set[tuple[int, frozenset[str]]] = set()
        self.containers = Containers(self, world)
        world.server.listeners.append(self._on_change)

    def _on_change(self, change: Change) -> None:
        old, new = change.old, change.new
        if change.plural != "pods" or new is None or not new.body["spec"].get("nodeName"):
            return
        uid = new.meta["uid"]
        if old is None or not old.body["spec"].get("nodeName"):
            self._world.spawn(self._start(new.key, uid))
        if deleting(new) and (old is None or not deleting(old)):
            self._world.spawn(self._stop(new.key, uid))

    async def _start(self, key: Key, uid: str) -> None:
        """From a node to ready."""
        await asyncio.sleep(self._rng.uniform(0.05, 2.0))
        if self._rng.random() < 0.03 and await self.reach(key, uid):
            waiting = {"reason": "ImagePullBackOff", "message": "not there yet"}
            self.set(key, uid, {"containerStatuses": [{"name": "main", "state": {"waiting": waiting}}]})
            await asyncio.sleep(self._rng.uniform(1.0, 20.0))
        if not await self.reach(key, uid):
            return
        running = {"running": {"startedAt": self._world.stamp()}}
        self.set(key, uid, {"phase": "Running", "containerStatuses": [{"name": "main", "state": running}]})
        await asyncio.sleep(self._rng.uniform(0.05, 2.0))
        if await self.reach(key, uid):
            self.set_ready(key, uid, "True")
            self.begin_to_end(key)

    async def reach(self, key: Key, uid: str) -> bool:
        """Wait until the pod's node is up; whether the pod is still to run there."""
        while pod := self._lives(key, uid):
            if self._is_up(pod):
                return True
            await asyncio.sleep(3.0)
        return False

    async def _hear_of(self, pod: Stored) -> None:
        while True:
            if self._is_up(pod):
                return
            await asyncio.sleep(3.0)

    def _is_up(self, pod: Stored) -> bool:
        return pod.body["spec"]["nodeName"] not in self.down

    def _lives(self, key: Key, uid: str) -> Stored | None:
        """The pod, if it is still to run."""
        pod = self._server.find("pods", key)
        here = pod is not None and pod.meta["uid"] == uid and not deleting(pod) and not finished(pod)
        return pod if here else None

    async def _stop(self, key: Key, uid: str) -> None:
        """From the wish that it goes to its end."""
        luck = self._rng.random()
        late = luck > 0.93
        await asyncio.sleep(
            self._rng.uniform(30.0, 75.0) if late else self._rng.uniform(0.05, 2.0 if luck < 0.7 else 20.0)
        )
        while (pod := self._server.find("pods", key)) and pod.meta["uid"] == uid:
            on_its_way = uid in self.over and not finished(pod) and not jobs.stays(pod)
            if self._is_up(pod) and not on_its_way:
                break
            await asyncio.sleep(1.0)
        else:
            return
        if pod.body["status"].get("phase") == "Running" and self._rng.random() < 0.8:
            self._terminate(key, uid, 143, {"v": 1, "terminated": True})
            await asyncio.sleep(self._rng.uniform(0.0, 0.5))
        pod = self._server.find("pods", key)
        if pod is not None and pod.meta["uid"] == uid:
            self._server.delete("pods", key, ME, uid=uid, grace=0)

    def begin_to_end(self, key: Key) -> None:
        """Once a gang is up, let happen what its script says comes next."""
        pod = self._server.find("pods", key)
        job = self._server.find("tpujobs", jobs.owner_key(pod)) if pod else None
        if pod is None or job is None or jobs.owner(pod) != job.meta["uid"]:
            return
        members = jobs.gangs(job.body)
        gang = members.get(key[1])
        if gang is None:
            return
        which = self.number(pod)
        names = [name for name, of in members.items() if of == gang]
        everyone = self._up(job.key[0], which, names)
        ending = (which[2], frozenset(pod.meta["uid"] for pod in everyone))
        if ending not in self._ending and len(everyone) == len(names):
            self._ending.add(ending)
            self._world.spawn(self._end(job.key[0], which, names))

    def _up(self, namespace: str, which: jobs.Attempt, names: list[str]) -> list[Stored]:
        """The pods of an attempt that are ready, or have ended well already."""
        found = [self._server.find("pods", (namespace, name)) for name in names]
        return [
            pod
            for pod in found
            if pod
            and self.number(pod) == which
            and not deleting(pod)
            and (is_true(pod.body, "Ready") or pod.body["status"].get("phase") == "Succeeded")
        ]

    async def _end(self, namespace: str, which: jobs.Attempt, names: list[str]) -> None:
        await asyncio.sleep(self._rng.uniform(0.5, 15.0))
        script = self._world.ledger.scripts[which[0]]
        pods = [pod for pod in self._up(namespace, which, names) if not finished(pod)]
        if not script.failures:
            for pod in pods if script.final == "succeed" else ():
                self._world.spawn(self._finish(pod, which, "", self._rng.uniform(0.0, 4.0)))
            return
        if not pods:
            return
        cause = script.failures.pop(0)
        victim = self._rng.choice(pods)
        self._world.spawn(self._finish(victim, which, cause, 0.0))
        for pod in pods:
            if pod is not victim and self._rng.random() < 0.6:
                self._world.spawn(self._finish(pod, which, "echo", self._rng.uniform(0.1, 4.0)))

    async def _finish(self, pod: Stored, which: jobs.Attempt, cause: str, after: float) -> None:
        """One host's program ends: well, by a failure, or as the echo of another host's."""
        await asyncio.sleep(after)
        key, uid = pod.key, pod.meta["uid"]
        alive = self._lives(key, uid)
        if not alive or uid in self.over or self.number(alive) != which:
            return
        self.over.add(uid)
        launched = not key[1].endswith("-head")
        if cause in LAUNCHERS and not launched:
            cause = "UserError"
        time = self._clock(pod).timestamp()
        if cause:
            self._world.ledger.failed[which].append(cause.replace("echo", "UserError"))
        if self._rng.random() < 0.3:
            await asyncio.sleep(self._rng.uniform(0.0, 3.0))  # the kubelet is slow to say so
        await self._hear_of(pod)
        if not cause:
            self._terminate(key, uid, 0, None)
            return
        if cause == "Evicted":
            self.set(key, uid, {"phase": "Failed", "reason": "Evicted", "message": "disk pressure"})
            return
        real = "UserError" if cause == "echo" else cause
        report: Object | None = {"v": 1, "cause": real, "time": time, "error": f"{cause} happened"}
        silent = self.containers.silent(pod, which, real)
        if not launched or (real in silent and self._rng.random() < 0.3):
            report = None  # no launcher's word, only the exit code
        if jobs.stays(pod):
            self.containers.fail(pod, which, EXITS[real], report)
        else:
            self._terminate(key, uid, EXITS[real], report)

    def _terminate(self, key: Key, uid: str, code: int, report: Object | None) -> None:
        pod = self._server.find("pods", key)
        if pod is None or pod.meta["uid"] != uid:
            return
        ended = self.end_of(pod, code, report)
        phase = "Failed" if code else "Succeeded"
        (main,) = pod.body["status"].get("containerStatuses", [{}])
        main = main | {"name": "main", "state": {"terminated": ended}}
        self.set(key, uid, {"phase": phase, "containerStatuses": [main]})

    def end_of(self, pod: Stored, code: int, report: Object | None) -> Object:
        """The end of a container, by the clock of its node."""
        return {
            "exitCode": code,
            "reason": "Completed" if code == 0 else "OOMKilled" if code == 137 else "Error",
            "finishedAt": self._clock(pod).strftime("%Y-%m-%dT%H:%M:%SZ"),
        } | ({"message": json.dumps(report)} if report else {})

    def number(self, pod: Stored) -> jobs.Attempt:
        """The attempt that a pod belongs to, as the ledger has it."""
        job = self._server.find("tpujobs", jobs.owner_key(pod))
        gang = jobs.gangs(job.body).get(pod.key[1], -1) if job else -1
        return (jobs.owner(pod), gang, self._world.ledger.number(pod, gang))

    def set_ready(self, key: Key, uid: str, status: str, writer: str = ME) -> None:
        """Write the Ready condition of a pod that runs."""

        def change(body: Object) -> None:
            if body["status"].get("phase") == "Running":
                set_condition(body, "Ready", status, self._world.stamp())

        self._server.update("pods", key, writer, change, uid=uid)

    def set(self, key: Key, uid: str, status: Object) -> None:
        """Write the status of a pod."""

        def change(body: Object) -> None:
            body["status"] |= status
            if status.get("phase") in {"Succeeded", "Failed"}:
                set_condition(body, "Ready", "False", self._world.stamp())

        self._server.update("pods", key, ME, change, uid=uid)

    def _clock(self, pod: Stored) -> datetime:
        """The time by the clock of a pod's node."""
        node = pod.body["spec"]["nodeName"]
        if node not in self._skews:
            self._skews[node] = self._rng.uniform(-self._skew, self._skew)
        return self._world.wall() + timedelta(seconds=self._skews[node])

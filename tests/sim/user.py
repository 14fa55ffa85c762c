"""People: create jobs and have second thoughts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.sim import jobs
from tests.sim.jobs import Script, deleting

if TYPE_CHECKING:
    from random import Random

    from tests.sim.server import Key, Object, Stored
    from tests.sim.world import World

ME = "user"
IN_PLACE = 0.3
"""Share of the jobs that restart in place."""
CAUSES = ["UserError", "UserError", "OutOfMemory", "Hang", "LauncherError", "TPUFault", "Evicted"]
ACTIONS = {
    "create": 10,
    "suspend": 3,
    "resume": 4,
    "delete": 2,
    "delete_pod": 4,
    "delete_service": 1,
    "break_service": 1,
    "edit_template": 2,
    "edit_policy": 1,
    "resize": 3,
    "stranger": 1,
    "pin_pod": 1,
    "limit": 1,
}


class User:
    """Everybody who types kubectl."""

    def __init__(self, world: World, namespaces: list[str]) -> None:
        self._world = world
        self._server = world.server
        self._rng = world.rng(ME)
        self._namespaces = namespaces

    async def act(self, count: int, until: float) -> None:
        """Do some things by a point of time."""
        centers = [self._rng.uniform(0.0, until) for _ in range(self._rng.choice([2, 4, count]))]
        spread = self._rng.choice([0.5, 5.0])
        times = sorted(abs(self._rng.gauss(self._rng.choice(centers), spread)) for _ in range(count))
        for time in [0.0, *(time for time in times if time < until)]:
            await asyncio.sleep(max(0.0, time - self._world.loop.time()))
            action = self._rng.choices([*ACTIONS], [*ACTIONS.values()])[0] if time else "create"
            self._world.trace.add(ME, action)
            getattr(self, action)()

    def settle(self) -> None:
        """Put away what would stand in the way of the jobs for ever."""
        self._server.quota = None
        for job in self._server.all("tpujobs"):
            if "spec" in job.body["spec"].get("template", {}):
                self._edit(job, template={})
        for pod in self._server.all("pods"):
            self._server.update("pods", pod.key, ME, lambda body: body["metadata"].pop("finalizers", None))
        for plural in ("pods", "services"):
            for thing in self._server.all(plural):
                if not jobs.owner(thing) and not thing.key[1].startswith("other"):
                    self._server.delete(plural, thing.key, ME)

    def create(self) -> None:
        """A new job, or one of a name that was there before."""
        key = (self._rng.choice(self._namespaces), self._rng.choice("abc"))
        if self._server.find("tpujobs", key):
            return
        job = draw_job(self._rng, key)
        failures = [self._rng.choice(CAUSES) for _ in range(self._rng.choice([0, 0, 1, 1, 2, 5]))]
        submit(self._world, job, Script(failures, "succeed" if self._rng.random() < 0.5 else "run"))

    def suspend(self) -> None:
        """Suspend a job."""
        if job := self._job():
            self._edit(job, suspend=True)
            self._disturb(job)

    def resume(self) -> None:
        """Resume a suspended job."""
        suspended = [j for j in self._server.all("tpujobs") if j.body["spec"].get("suspend")]
        if suspended:
            self._edit(self._rng.choice(suspended), suspend=False)

    def delete(self) -> None:
        """Delete a job, often to create another of that name."""
        if job := self._job():
            how = self._rng.choice(["Background", "Background", "Foreground", "Orphan"])
            self._server.delete("tpujobs", job.key, ME, propagation=how)
            if self._rng.random() < 0.5:
                self.create()

    def delete_pod(self) -> None:
        """Delete a pod by hand, also by force."""
        if pod := self._any("pods"):
            self._world.disturb(pod)
            self._server.delete("pods", pod.key, ME, grace=self._rng.choice([None, None, 0]))

    def delete_service(self) -> None:
        """Delete a Service by hand."""
        if service := self._any("services"):
            self._server.delete("services", service.key, ME)

    def break_service(self) -> None:
        """Change a Service by hand."""
        service = self._any("services")
        if service is None or not jobs.owner(service):
            return
        port = {"name": "mine", "port": 9090, "protocol": "TCP"}
        changes: list[Object] = [
            {"selector": {"app": "mine"}},
            {"publishNotReadyAddresses": False},
            {"ports": [*service.body["spec"]["ports"], port]},
            {"ports": []},
        ]
        change = self._rng.choice(changes)
        self._server.update("services", service.key, ME, lambda body: body["spec"].update(change))

    def edit_template(self) -> None:
        """Change what pods are made from, which takes effect with the next attempt."""
        if job := self._job():
            template: Object = {"metadata": {"labels": {"mine": str(self._rng.randrange(3))}}}
            if self._rng.random() < 0.2:
                template["spec"] = {"hostname": "mine"}  # no gang can work with that
            self._edit(job, template=template)
            self._disturb(job)

    def edit_policy(self) -> None:
        """Change what happens after failures."""
        if job := self._job():
            policy = dict(job.body["spec"].get("failurePolicy", {}))
            if job.body["spec"].get("suspend"):
                policy["restartScope"] = self._rng.choice(["Slice", "Job"])
            else:
                policy["maxRestarts"] = jobs.max_restarts(job.body) + 1
            self._edit(job, failurePolicy=policy)
            self._disturb(job)

    def resize(self) -> None:
        """Change the slices of a job whose suspension was seen."""
        suspended = [j for j in self._server.all("tpujobs") if j.body["spec"].get("suspend")]
        if seen := [j for j in suspended if "startTime" not in j.body.get("status", {})]:
            self._edit(self._rng.choice(seen), tpu=draw_tpu(self._rng))

    def stranger(self) -> None:
        """Take a name that a job wants."""
        key = (self._rng.choice(self._namespaces), self._rng.choice("abc"))
        plural, name = self._rng.choice(
            [("services", key[1]), ("pods", f"{key[1]}-0-1"), ("pods", f"{key[1]}-0-0")]
        )
        if self._server.find(plural, (key[0], name)):
            return
        labels = {f"{jobs.PREFIX}job": key[1]} if self._rng.random() < 0.5 else {}
        spec: Object = {"ports": []} if plural == "services" else {"nodeName": "cpu"}
        body = {"metadata": {"name": name, "namespace": key[0], "labels": labels}, "spec": spec}
        quota, self._server.quota = self._server.quota, None
        self._server.create(plural, body, ME)
        self._server.quota = quota

    def pin_pod(self) -> None:
        """A finalizer keeps a pod from going, for a while."""
        pod = self._any("pods")
        if pod is None:
            return
        key = pod.key

        def pin(body: Object) -> None:
            if "deletionTimestamp" not in body["metadata"]:
                body["metadata"]["finalizers"] = ["example.com/pin"]

        self._server.update("pods", key, ME, pin)
        self._world.loop.call_later(self._rng.uniform(1.0, 90.0), self._unpin, key)

    def limit(self) -> None:
        """A quota comes or goes."""
        self._server.quota = self._rng.choice([None, 1, 3])

    def _unpin(self, key: Key) -> None:
        self._server.update("pods", key, ME, lambda body: body["metadata"].pop("finalizers", None))

    def _job(self) -> Stored | None:
        return self._any("tpujobs")

    def _any(self, plural: str) -> Stored | None:
        found = [thing for thing in self._server.all(plural) if not deleting(thing)]
        return self._rng.choice(found) if found else None

    def _edit(self, job: Stored, **fields: Any) -> None:
        self._world.trace.add(ME, f"  {job.key} {fields}")
        self._server.update("tpujobs", job.key, ME, lambda body: body["spec"].update(fields))

    def _disturb(self, job: Stored) -> None:
        for pod in jobs.pods_of(self._server, job):
            self._world.disturb(pod)


def submit(world: World, job: Object, script: Script) -> Stored:
    """Create a job whose program does what the script says."""
    stored = world.server.create("tpujobs", job, ME)
    world.ledger.scripts[stored.meta["uid"]] = script
    world.trace.add(ME, f"  {job['spec']!r:.1000} {script}")
    return stored


def draw_tpu(rng: Random) -> Object:
    """Some slices."""
    topology = rng.choice(["2x2", "2x4", "2x4", "4x4"])
    slices = 1 if topology == "4x4" else rng.choice([1, 1, 2])
    tpu = {"accelerator": "v5e", "topology": topology, "chipsPerHost": 4, "slices": slices}
    return tpu | ({"spareSlices": 1} if rng.random() < 0.3 else {})


def draw_job(rng: Random, key: Key) -> Object:
    """A job with some of the fields that decisions read."""
    spec: Object = {"tpu": draw_tpu(rng), "run": {"command": ["python", "train.py"]}}
    optional: dict[str, Any] = {
        "suspend": True,
        "successPolicy": "Leader",
        "head": {"spec": {"containers": [{"name": "main", "image": "driver"}]}},
        "ttlSecondsAfterFinished": rng.choice([0, 20]),
        "activeDeadlineSeconds": rng.choice([10, 60]),
        "scheduling": {"placement": "Shared"},
        "managedBy": "kueue.x-k8s.io/multikueue",
        "maintenance": {
            "onNotice": rng.choice(["Checkpoint", "Restart", "Ignore"]),
            "leadSeconds": rng.choice([0, 20, 300]),
        },
    }
    chances = (0.2, 0.2, 0.2, 0.15, 0.08, 0.3, 0.04, 0.5)
    spec |= {
        name: value for (name, value), p in zip(optional.items(), chances, strict=True) if rng.random() < p
    }
    policy: Object = {
        "maxRestarts": rng.choice([0, 1, 2, 3]),
        "restartScope": rng.choice(["Job", "Job", "Slice"]),
        "coalesceSeconds": rng.choice([0, 2, 10]),
    } | ({"restartStrategy": "InPlace"} if rng.random() < IN_PLACE else {})
    if rng.random() < 0.15:
        cause, action = rng.choice(
            [("Hang", "FailJob"), ("OutOfMemory", "RestartUncounted"), ("TPUFault", "Restart")]
        )
        policy["rules"] = [{"onCauses": [cause], "action": action}]
    return {
        "apiVersion": "tpu-operator.dev/v1alpha1",
        "kind": "TPUJob",
        "metadata": {"name": key[1], "namespace": key[0]},
        "spec": spec | {"failurePolicy": policy},
    }

"""What jobs go through in fault tests, and what has to be true at the end whatever went wrong meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tests.cluster.faults.lab import HOSTS, JOBS, LEASE, TPU, Process, Replica, story, wait

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Mapping

    from tests.cluster.faults.lab import Lab
    from tests.cluster.faults.proxy import Call, Object

T = TypeVar("T")
R = TypeVar("R", Replica, Process)

LABEL: Final = "tpu-operator.dev/"
_numbers = itertools.count()


class Case:
    """One job, and the replicas that work on it.

    Args:
        lab: where.
        namespace: where the job and the replicas' Lease are.
        pool: node pool of the job.
    """

    def __init__(self, lab: Lab, namespace: str, pool: str) -> None:
        self.lab, self.api, self.namespace = lab, lab.api, namespace
        self._tpu = TPU | {"capacity": {"nodePool": pool}}
        # Unlike any name before, so that nothing of an earlier case can be mistaken for this one's.
        self.name = f"job-{next(_numbers)}"
        self.replicas: list[Replica | Process] = []

    async def replica(self) -> Replica:
        """Start a replica that leads at once."""
        return await self.lead(Replica(self.lab, self.namespace))

    async def standby(self) -> Replica:
        """Start a replica that waits for the Lease."""
        return await self.stand_by(Replica(self.lab, self.namespace))

    async def process(self, *arguments: str) -> Process:
        """Start a process that leads at once."""
        return await self.lead(Process(self.lab, self.namespace, *arguments))

    async def standby_process(self) -> Process:
        """Start a process that waits for the Lease."""
        return await self.stand_by(Process(self.lab, self.namespace))

    async def lead(self, made: R) -> R:
        """Start something that leads at once."""
        await self.free_lease()
        return await self.stand_by(made)

    async def stand_by(self, made: R) -> R:
        """Start something that waits for the Lease."""
        self.replicas.append(made)
        await made.start()
        return made

    async def free_lease(self) -> None:
        """Take the Lease away from a replica that is dead, so that nobody waits for it to run out."""
        await self.api.delete(LEASE.format(self.namespace))

    @property
    def path(self) -> str:
        """Path of the job."""
        return f"{JOBS.format(self.namespace)}/{self.name}"

    def pod_path(self, host: int) -> str:
        """Path of a pod."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}-0-{host}"

    async def create(self, **spec: Any) -> None:
        """Create the job."""
        body = {"tpu": self._tpu, "run": {"command": ["python", "train.py"]}} | spec
        manifest = {
            "apiVersion": "tpu-operator.dev/v1alpha1",
            "kind": "TPUJob",
            "metadata": {"name": self.name},
            "spec": body,
        }
        await self.api.create(JOBS.format(self.namespace), manifest)

    async def delete(self) -> None:
        """Delete the job; garbage collection does the rest."""
        await self.api.delete(self.path, propagationPolicy="Background")

    async def suspend(self, suspend: bool) -> None:
        """Set `spec.suspend`."""
        await self.api.patch(self.path, {"spec": {"suspend": suspend}})

    async def end_pod(self, host: int, exit_code: int) -> None:
        """End a pod as its kubelet would, with a report of the launcher."""
        report = {"v": 1, "cause": "UserError", "exitCode": exit_code, "time": time.time(), "error": "boom"}
        terminated = {
            "exitCode": exit_code,
            "reason": "Error" if exit_code else "Completed",
            "message": json.dumps(report) if exit_code else "",
        }
        main = {
            "name": "main",
            "image": "example",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": terminated},
        }
        phase = "Failed" if exit_code else "Succeeded"
        path = f"{self.pod_path(host)}/status"
        await self.api.patch(path, {"status": {"phase": phase, "containerStatuses": [main]}})

    async def state(self) -> Object:
        """All that is of the job, without what differs from run to run."""
        job = await self.api.get(self.path)
        selector = f"labelSelector={LABEL}job={self.name}"
        pods = await self.api.items(f"/api/v1/namespaces/{self.namespace}/pods?{selector}")
        services = await self.api.items(f"/api/v1/namespaces/{self.namespace}/services?{selector}")
        text = json.dumps(
            {
                "status": _status(job.get("status", {})),
                "pods": {pod["metadata"]["name"]: _pod(pod, job) for pod in pods},
                "services": {each["metadata"]["name"]: _service(each, job) for each in services},
            }
        )
        found: Object = json.loads(text.replace(self.name, "NAME"))
        return found

    async def at_rest(self) -> bool:
        """Whether no pod is on its way out."""
        return not any(pod["going"] for pod in (await self.state())["pods"].values())

    async def phase(self) -> str:
        """Phase of the job; empty when it is gone."""
        return str((await self.api.get(self.path)).get("status", {}).get("phase", ""))

    async def reaches(self, phase: str) -> None:
        """Wait for a phase, and until the replica has nothing to do."""

        async def there() -> bool:
            self.check()
            return any(r.might_be(self.name, phase) for r in self.replicas) and await self.phase() == phase

        await wait(there, f"phase {phase}")

    async def is_in(self, expected: Object) -> bool:
        """Whether the job is in a state, and the last replica has nothing to do."""
        self.check()
        phase = expected["status"].get("phase", "")
        pods = {
            name.replace("NAME", self.name): (pod["phase"], pod["attempt"])
            for name, pod in expected["pods"].items()
        }
        return self.replicas[-1].might_be(self.name, phase, pods) and await self.state() == expected

    async def settles(self, expected: Object) -> None:
        """Wait for a state, and that one more look at the job changes nothing of it.

        Raises:
            AssertionError: it does not get there, a replica has ended by itself, or a pod was made twice.
        """

        async def there() -> bool:
            return await self.is_in(expected)

        try:
            await wait(there, "the end state")
            await self.look_again()
            await wait(there, "the end state after another look")
        except AssertionError as error:
            found = difference(expected, await self.state())
            raise AssertionError(f"{error}\n{found}\n{self.story()}") from None
        assert not self.duplicates(), f"made twice: {self.duplicates()}\n{self.story()}"

    async def look_again(self) -> None:
        """Make the replica that leads look at the job once more."""
        job = await self.api.patch(self.path, {"metadata": {"annotations": {"look": str(time.time_ns())}}})
        if job:
            version = int(job["metadata"]["resourceVersion"])

            async def seen() -> bool:
                return self.replicas[-1].saw(version) and self.replicas[-1].idle

            await wait(seen, "the replica to look again")

    def check(self) -> None:
        """Fail if a replica has ended by itself."""
        for replica in self.replicas:
            replica.check()

    def writes(self) -> list[Call]:
        """What the replicas wrote, in the order in which it came to their proxies."""
        return sorted((w for r in self.replicas for w in r.proxy.writes), key=lambda call: call.at)

    def duplicates(self) -> list[str]:
        """Pods that were made more than once for one attempt of one job."""
        made = Counter(
            f"{call.name} of attempt {call.attempt} for {call.body['metadata']['ownerReferences'][0]['uid']}"
            for call in self.writes()
            if call.verb == "create" and call.resource == "pods" and call.status == 201
        )
        return [pod for pod, times in made.items() if times > 1]

    def story(self) -> str:
        """What the replicas wrote, one line each."""
        return story(self.replicas)

    async def close(self) -> None:
        """Stop the replicas."""
        for replica in self.replicas:
            await replica.close()


@asynccontextmanager
async def case(lab: Lab, *, reserved: bool = False) -> AsyncIterator[Case]:
    """A case in a place of its own, cleaned up afterwards."""
    async with lab.place(reserved=reserved) as place:
        made = Case(lab, *place)
        try:
            yield made
        finally:
            await made.close()


def _status(status: Object) -> Object:
    """A status without what depends on how fast things were."""
    found: Object = _without_times(status)
    for place in (found, *found.get("slices", [])):
        if place.get("lastFailure", {}).get("cause") == "PodDeleted":
            # Whether the pod was still there to be looked at.
            place["lastFailure"] |= {"container": "", "message": ""}
    conditions = found.get("conditions", [])
    # Whether a job was ever held up for a moment.
    found["conditions"] = [c for c in conditions if (c["type"], c["status"]) != ("Blocked", "False")]
    if found.get("phase") == "Failed":
        # How many of the survivors were still seen as ready.
        found["hosts"] = found["ready"] = ""
        found["slices"] = [each | {"ready": ""} for each in found["slices"]]
    return found


def _without_times(value: Any) -> Any:
    """The value without moments, and without node pools, of which any will do."""
    if isinstance(value, dict):
        skip = ("time", "Time", "since", "nodePool", "observedGeneration")
        return {key: _without_times(item) for key, item in value.items() if not key.endswith(skip)}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def _pod(pod: Object, job: Object) -> Object:
    return {
        "attempt": pod["metadata"]["labels"][f"{LABEL}attempt"],
        "ours": _owner(pod) == _uid(job),
        "going": "deletionTimestamp" in pod["metadata"],
        "phase": pod["status"]["phase"],
    }


def _service(service: Object, job: Object) -> Object:
    spec = service["spec"]
    return {
        "ours": _owner(service) == _uid(job),
        "selector": spec["selector"],
        "clusterIP": spec["clusterIP"],
        "unready": spec.get("publishNotReadyAddresses"),
    }


def _owner(item: Object) -> str:
    return str(item["metadata"]["ownerReferences"][0]["uid"])


def _uid(job: Object) -> str:
    return str(job.get("metadata", {}).get("uid", "gone"))


def difference(expected: Any, found: Any, path: str = "") -> str:
    """Where two states differ, one line for each place."""
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = sorted(expected.keys() | found.keys())
        lines = [difference(expected.get(k, "absent"), found.get(k, "absent"), f"{path}.{k}") for k in keys]
        return "\n".join(line for line in lines if line)
    return "" if expected == found else f"  {path}: expected {expected!r}, is {found!r}"


Step = Callable[[Case], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Something that happens to a job.

    Attributes:
        prepare: brings the job to where it begins, undisturbed.
        act: what happens.
        end: the phase that this leads to.
        writes: the operator's writes, each of which has a reason.
        events: about how many events its watches bring.
        interrupted: what happens in the middle of it, while the operator is down if it is killed; leads to
            `after` then.
        after: a scenario that ends in the same way.
    """

    prepare: Step
    act: Step
    end: str
    writes: Mapping[str, int]
    events: int
    interrupted: Step | None = None
    after: str = ""

    @property
    def numbers(self) -> range:
        """Each of its writes, from 1."""
        return range(1, sum(self.writes.values()) + 1)


async def _nothing(case: Case) -> None:
    pass


async def _create(case: Case) -> None:
    await case.create()


async def _run(case: Case) -> None:
    await case.create()
    await case.reaches("Running")


async def _run_without_budget(case: Case) -> None:
    await case.create(failurePolicy={"maxRestarts": 0, "coalesceSeconds": 1})
    await case.reaches("Running")


async def _run_and_suspend(case: Case) -> None:
    await _run(case)
    await case.suspend(True)
    await case.reaches("Suspended")


async def _fail_host(case: Case) -> None:
    await case.end_pod(1, exit_code=3)


async def _lose_host(case: Case) -> None:
    await case.api.delete(case.pod_path(0))


async def _suspend(case: Case) -> None:
    await case.suspend(True)


async def _resume(case: Case) -> None:
    await case.suspend(False)


async def _succeed(case: Case) -> None:
    for host in range(HOSTS):
        await case.end_pod(host, exit_code=0)


async def _delete(case: Case) -> None:
    await case.delete()


async def _replace(case: Case) -> None:
    await case.delete()
    await case.create()


STATUS: Final = "patch tpujobs/status"
EVENT: Final = "create events"
EVENT_AGAIN: Final = "patch events"
"""All hosts were ready a moment ago already."""
PODS: Final = {"create pods": HOSTS}
OLD_PODS: Final = {"delete pods": HOSTS}
# Hosts + 4, and an event: Pending, Starting, Running.
CREATION: Final = {"create services": 1, **PODS, STATUS: 3, EVENT: 1}
SCENARIOS: Final = {
    "create": Scenario(_nothing, _create, "Running", CREATION, 18),
    # Restarting, Pending, Starting, Running.
    "restart": Scenario(
        _run, _fail_host, "Running", {EVENT: 1, **OLD_PODS, **PODS, STATUS: 4, EVENT_AGAIN: 1}, 28
    ),
    "lost-pod": Scenario(
        _run,
        _lose_host,
        "Running",
        {EVENT: 1, "delete pods": HOSTS - 1, **PODS, STATUS: 4, EVENT_AGAIN: 1},
        28,
    ),
    "suspend": Scenario(_run, _suspend, "Suspended", {STATUS: 1, EVENT: 1, **OLD_PODS}, 14),
    "resume": Scenario(_run_and_suspend, _resume, "Running", {**PODS, STATUS: 3, EVENT_AGAIN: 1}, 16),
    "succeed": Scenario(_run, _succeed, "Succeeded", {STATUS: 1, EVENT: 1}, 6),
    # The failure, and the end of the job once the other host was stopped.
    "fail": Scenario(
        _run_without_budget, _fail_host, "Failed", {"delete pods": HOSTS - 1, STATUS: 2, EVENT: 1}, 12
    ),
    "delete": Scenario(_nothing, _create, "Running", CREATION, 18, _delete, "gone"),
    "replace": Scenario(_nothing, _create, "Running", CREATION, 18, _replace, "create"),
}
GONE: Final[Object] = {"status": {"conditions": []}, "pods": {}, "services": {}}


class Oracle:
    """The states that scenarios end in when nothing goes wrong, each found out once.

    Args:
        lab: where.
    """

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._found: dict[str, asyncio.Task[Object]] = {}

    async def undisturbed(self, scenario: str) -> Object:
        """The state after `act`."""
        if scenario == "gone":
            return GONE
        if scenario not in self._found:
            self._found[scenario] = asyncio.create_task(self._play(SCENARIOS[scenario]))
        return await asyncio.shield(self._found[scenario])

    async def end(self, scenario: str) -> Object:
        """The state at the end."""
        return await self.undisturbed(SCENARIOS[scenario].after or scenario)

    async def _play(self, story: Scenario) -> Object:
        """Play a scenario, again if the machine stalls: replicas then go on before they see their writes."""
        problem = ""
        for _ in range(3):
            async with case(self.lab, reserved=True) as job:
                writes = await self._writes(job, story)
                extra = unexplained(writes, story.writes)
                problem = f"writes without a reason: {extra}\n{job.story()}"
                if not extra and not job.duplicates():
                    return await job.state()
        raise AssertionError(problem)

    async def _writes(self, job: Case, story: Scenario) -> list[Call]:
        replica = await job.replica()
        await story.prepare(job)
        before = len(replica.proxy.writes)
        await story.act(job)
        await wait(_async(lambda: len(replica.proxy.writes) > before), "a first write")
        await job.reaches(story.end)
        await wait(job.at_rest, "deleted pods to be gone")
        return replica.proxy.writes[before:]


def unexplained(writes: list[Call], reasons: Mapping[str, int]) -> Counter[str]:
    """Writes beyond those that have a reason, by what they are.

    Counts of hosts are told once a second at most, which is more often if the machine is slow; being held up
    by the cluster is no news of the operator's.
    """
    made: Counter[str] = Counter()
    last: Object = {}
    for call in writes:
        news = _news(call.body["status"]) if call.subresource == "status" else {}
        if not news or news != last:
            made[f"{call.verb} {call.resource}{'/status' if news else ''}"] += 1
        last = news or last
    return made - Counter(reasons)


def _news(status: Object) -> Object:
    conditions = [c for c in status["conditions"] if c["type"] != "Blocked"]
    attempts = [each["attempt"] for each in status["slices"]]
    return {"phase": status["phase"], "conditions": _without_times(conditions), "attempts": attempts}


def _async(what: Callable[[], T]) -> Callable[[], Awaitable[T]]:
    async def ask() -> T:
        return what()

    return ask

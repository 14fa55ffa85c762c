"""TPUJobs as their users know them: what they ask for, and what becomes of their programs.

Written without the operator's code, so that a mistake there is not repeated here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tests.sim.server import Key, Object, Server, Stored

PREFIX = "tpu-operator.dev/"
HOSTS = {"2x2": 1, "2x4": 2, "4x4": 4}
COUNTED = {"UserError", "OutOfMemory", "Hang", "LauncherError", "StartupTimeout"}

Attempt = tuple[str, int, int]
"""UID of the job, gang, number."""


@dataclass
class Script:
    """What a job's program does: fails a few times, a cause for each attempt, and then runs or ends well."""

    failures: list[str]
    final: Literal["run", "succeed"]


@dataclass
class Ledger:
    """What really happened, whoever noticed.

    Attributes:
        scripts: by UID of the job.
        failed: causes of the failures of hosts.
        disturbed: attempts that somebody else may have ended.
        owned: UIDs of the jobs that the operator is to run.
    """

    scripts: dict[str, Script] = field(default_factory=dict)
    failed: defaultdict[Attempt, list[str]] = field(default_factory=lambda: defaultdict(list))
    disturbed: set[Attempt] = field(default_factory=set)
    rounds: defaultdict[Attempt, int] = field(default_factory=lambda: defaultdict(int))
    """By the pods' attempt: how often their processes were started again in them."""

    def number(self, pod: Stored, gang: int) -> int:
        """The attempt that a pod runs, or would if its gang were complete."""
        return first_attempt(pod) + self.rounds[owner(pod), gang, attempt(pod)]

    def counted(self, uid: str, *, surely: bool) -> int:
        """Attempts that ended by a failure that counts; surely, if nothing else can have ended them."""
        return sum(
            attempt[0] == uid
            and bool(COUNTED & set(causes))
            and not (surely and (attempt in self.disturbed or set(causes) - COUNTED))
            for attempt, causes in self.failed.items()
        )


def hosts(job: Object) -> int:
    """Hosts of one slice."""
    return HOSTS[job["spec"]["tpu"]["topology"]]


def slices(job: Object) -> int:
    """Slices of a job."""
    return int(job["spec"]["tpu"].get("slices", 1))


def gangs(job: Object) -> dict[str, int]:
    """The pods that a job should have, with the gang of each."""
    meta, spec = job["metadata"], job["spec"]
    alone = spec.get("failurePolicy", {}).get("restartScope") == "Slice"
    found = {
        f"{meta['name']}-{index}-{host}": index if alone else 0
        for index in range(slices(job))
        for host in range(hosts(job))
    }
    return found | ({f"{meta['name']}-head": 0} if spec.get("head") else {})


def max_restarts(job: Object) -> int:
    """Restarts that a job may use up."""
    return int(job["spec"].get("failurePolicy", {}).get("maxRestarts", 3))


def attempt(pod: Stored) -> int:
    """Attempt that a pod was made for; -1 if it does not say."""
    return int(pod.labels.get(f"{PREFIX}attempt", "-1"))


def first_attempt(pod: Stored) -> int:
    """Number of the attempt that a pod was made for, restarts in place counted."""
    return int(pod.labels.get(f"{PREFIX}first-attempt", attempt(pod)))


def stays(pod: Stored) -> bool:
    """Whether the kubelet starts the containers of a pod again that have failed."""
    return bool(pod.body["spec"].get("restartPolicy") == "OnFailure")


def owner(stored: Stored) -> str:
    """UID of the controlling owner, or empty."""
    references = stored.meta.get("ownerReferences", ())
    return next((str(r["uid"]) for r in references if r.get("controller")), "")


def owner_key(pod: Stored) -> Key:
    """Key of the job that a pod says it belongs to."""
    return pod.key[0], pod.labels.get(f"{PREFIX}job", "")


def pods_of(server: Server, job: Stored) -> list[Stored]:
    """All pods that a job owns."""
    return [pod for pod in server.all("pods") if owner(pod) == job.meta["uid"]]


def is_spare(pod: Stored) -> bool:
    """Whether a pod is of a slice that only waits to take over."""
    return pod.labels.get(f"{PREFIX}component") == "spare"


def condition(body: Object, kind: str) -> Object:
    """A condition, empty if it is not there."""
    found = body.get("status", {}).get("conditions", ())
    return next((c for c in found if c["type"] == kind), {})


def is_true(body: Object, kind: str) -> bool:
    """Whether a condition is there and true."""
    return condition(body, kind).get("status") == "True"


def set_condition(body: Object, kind: str, status: str, stamp: str, **more: str) -> None:
    """Write a condition into an object."""
    status_body = body.setdefault("status", {})
    old = condition(body, kind)
    moved = stamp if old.get("status") != status else old["lastTransitionTime"]
    rest = [c for c in status_body.get("conditions", ()) if c["type"] != kind]
    status_body["conditions"] = [*rest, {"type": kind, "status": status, "lastTransitionTime": moved, **more}]


def finished(pod: Stored) -> bool:
    """Whether nothing of a pod runs any more."""
    return pod.body["status"].get("phase") in {"Succeeded", "Failed"}


def deleting(stored: Stored) -> bool:
    """Whether an object has been asked to go."""
    return "deletionTimestamp" in stored.meta

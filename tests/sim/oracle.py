"""What must always hold, checked at every change of the server's state, and what must hold in the end."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING

from tests.sim import jobs
from tests.sim.cluster import POOL, SLICE_ID
from tests.sim.jobs import attempt, condition, deleting, finished, is_true, owner
from tests.sim.replica import PREFIX
from tests.sim.server import parse
from tpu_operator.api import TPUJobStatus

if TYPE_CHECKING:
    from tests.sim.server import Change, Object, Request, Stored
    from tests.sim.world import World

FINAL = ("Succeeded", "Failed")
MISTAKE = 45.0
"""Seconds by which the time of day of a replica may be wrong."""
FORGETFUL = 4.9
"""Seconds for which a replica has to remember what it has made."""
MANAGED_BY_OTHERS = "managedBy"


class Oracle:
    """The judge of one run.

    Attributes:
        violations: what was wrong.
        last_write: when the operator last wrote anything but its Lease.
        holder: the replica, in its present life, that holds the Lease; empty if none does.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._server = world.server
        self.violations: list[str] = []
        self.last_write = 0.0
        self._made: dict[tuple[str, str, str], tuple[str, float]] = {}
        self._said: set[str] = set()
        self.holder = ""
        self._writes: defaultdict[str, int] = defaultdict(int)
        self._reasons: defaultdict[str, int] = defaultdict(int)

    def complain(self, what: str) -> None:
        """Note a violation."""
        self._world.trace.add("ORACLE", what)
        if what not in self._said:
            self._said.add(what)
            self.violations.append(f"at {self._world.loop.time():.3f} s: {what}")

    # Always.

    def on_change(self, change: Change) -> None:
        """Judge a change."""
        ours = change.writer.startswith(PREFIX)
        if change.plural == "leases":
            self._follow_lease(change)
            return
        self._count(change, ours=ours)
        if change.plural == "pods" and change.writer == "scheduler" and change.new:
            self._check_pool(change.new)
        if ours:
            self.last_write = self._world.loop.time()
            self._check_litter(change)
            match change.plural:
                case "pods":
                    self._check_pod(change)
                case "services":
                    self._check_owned(change)
                case "tpujobs":
                    self._check_job(change)

    def _check_pool(self, pod: Stored) -> None:
        """No two slices in one node pool, unless one does not mind."""
        name = pod.body["spec"].get("nodeName")
        node = self._server.find("nodes", ("", name)) if name else None
        if node is None or not self._exclusive(pod):
            return
        bound = [p for p in self._server.all("pods") if p.body["spec"].get("nodeName") and not finished(p)]
        tenants = self._world.scheduler.tenants([p for p in bound if self._exclusive(p)])
        if len(found := tenants.get(node.labels[POOL], ())) > 1:
            self.complain(f"pod {pod.key} joins the slices {sorted(found)} in pool {node.labels[POOL]}")

    def _exclusive(self, pod: Stored) -> bool:
        job = self._server.find("tpujobs", jobs.owner_key(pod))
        placement = job.body["spec"].get("scheduling", {}).get("placement") if job else "Shared"
        return (
            SLICE_ID in pod.labels and placement != "Shared" and job is not None and jobs.hosts(job.body) > 1
        )

    def _follow_lease(self, change: Change) -> None:
        holder = change.new.body["spec"].get("holderIdentity") if change.new else ""
        self.holder = change.writer if holder else ""

    def _count(self, change: Change, *, ours: bool) -> None:
        """Writes of ours, and what there was to react to, by job."""
        stored = change.new or change.old
        assert stored is not None
        if change.plural == "events":
            key = (stored.key[0], stored.body["regarding"]["name"])
        else:
            key = stored.key if change.plural == "tpujobs" else jobs.owner_key(stored)
        (self._writes if ours else self._reasons)["/".join(key)] += 1

    def on_request(self, request: Request) -> None:
        """Judge a request: only the holder of the Lease writes, whether or not the server lets it."""
        if request.method == "GET":
            return
        target = parse(request.path)
        if target.plural == "leases":
            return
        what = f"{request.writer} sends {request.method} {request.path}"
        if request.writer != self.holder:
            self.complain(f"{what} while {self.holder or 'nobody'} leads")
        if request.method == "POST" and target.plural == "pods":
            name = json.loads(request.body)["metadata"]["name"]
            uid, time = self._made.get((request.writer, target.namespace, name), ("", 0.0))
            pod = self._server.find("pods", (target.namespace, name))
            if pod and pod.meta["uid"] == uid and self._world.loop.time() - time < FORGETFUL:
                self.complain(f"{what} for {name}, which it has just made")

    def on_success(self, request: Request, answer: bytes) -> None:
        """Note what a replica knows that it has made."""
        if request.method == "POST" and parse(request.path).plural == "pods":
            meta = json.loads(answer)["metadata"]
            made = (meta["uid"], self._world.loop.time())
            self._made[request.writer, meta["namespace"], meta["name"]] = made

    def _check_litter(self, change: Change) -> None:
        """No finalizer of ours on anything, and no annotation but that of maintenance on pods."""
        if change.new is None:
            return
        for field in ("finalizers", "annotations"):
            before, after = (_left(each, field) for each in (change.old, change.new))
            if after != before:
                self.complain(f"{change.writer} leaves {field} on {change.plural} {change.key}")

    def _check_pod(self, change: Change) -> None:
        if change.old is None and change.new is not None:
            self._check_new_pod(change.new)
        else:
            self._check_owned(change)

    def _check_new_pod(self, pod: Stored) -> None:
        job = self._server.find("tpujobs", jobs.owner_key(pod))
        if job is None or job.meta["uid"] != owner(pod):
            return  # the garbage collector's case: the job went while the request was on its way
        if any(is_true(job.body, kind) for kind in FINAL):
            self.complain(f"pod {pod.key} made for a job that is over")
        members = jobs.gangs(job.body)
        for other in jobs.pods_of(self._server, job):
            if members.get(other.key[1], -1) == members.get(pod.key[1], -2) and attempt(other) != attempt(
                pod
            ):
                self.complain(
                    f"pod {pod.key} of attempt {attempt(pod)} made while {other.key}"
                    f" of attempt {attempt(other)} exists"
                )

    def _check_owned(self, change: Change) -> None:
        """Pods and Services are only touched if a job owns them."""
        stored = change.old or change.new
        assert stored is not None
        references = stored.meta.get("ownerReferences", ())
        if not any(r["kind"] == "TPUJob" and r["controller"] for r in references):
            self.complain(f"{change.writer} touches {change.plural} {change.key}, which no job owns")

    def _check_job(self, change: Change) -> None:
        old, new = change.old, change.new
        assert old is not None
        if old.body["spec"].get(MANAGED_BY_OTHERS):
            self.complain(f"{change.writer} touches {change.key}, which another controller manages")
        if new is None or deleting(new):
            self._check_ttl(old)
            return
        self._check_status(old, new)

    def _check_ttl(self, job: Stored) -> None:
        ttl, ended = (
            job.body["spec"].get("ttlSecondsAfterFinished"),
            job.body.get("status", {}).get("completionTime"),
        )
        if ttl is None or ended is None:
            self.complain(f"job {job.key} deleted without a reason")
            return
        age = (self._world.wall() - datetime.fromisoformat(ended)).total_seconds()
        if age < ttl - MISTAKE:
            self.complain(f"job {job.key} deleted {age} s after its end, not {ttl} s")

    def _check_status(self, old: Stored, new: Stored) -> None:
        status = new.body["status"]
        TPUJobStatus.parse(status)
        # That its spec was changed is noted of an ended job, and nothing else.
        noted = old.body.get("status", {}) | {"observedGeneration": status.get("observedGeneration")}
        for kind in FINAL:
            if is_true(old.body, kind) and noted != status:
                self.complain(f"status of {new.key} changed after it was {kind}")
        if sum(is_true(new.body, kind) for kind in FINAL) > 1:
            self.complain(f"job {new.key} has both failed and succeeded")
        counted = status.get("restarts", {}).get("counted", 0)
        possible = self._world.ledger.counted(new.meta["uid"], surely=False)
        if counted > min(jobs.max_restarts(new.body), possible) and not _special(new.body):
            self.complain(f"job {new.key} counts {counted} restarts of {possible}")
        if is_true(new.body, "Failed") and not is_true(old.body, "Failed"):
            self._check_failed(new, possible)
        before = {s["index"]: s.get("attempt", 0) for s in old.body.get("status", {}).get("slices", ())}
        for entry in status.get("slices", ()):
            index, number = entry["index"], entry.get("attempt", 0)
            if number < before.get(index, 0):
                self.complain(f"attempt of slice {index} of {new.key} went back to {number}")

    def _check_failed(self, job: Stored, possible: int) -> None:
        """A job fails when its restarts are used up, by its deadline, or by a rule of its own."""
        body, reason = job.body, condition(job.body, "Failed")["reason"]
        if reason == "MaxRestartsReached":
            right = _special(body) or possible > jobs.max_restarts(body)
        elif reason == "DeadlineExceeded":
            right = "activeDeadlineSeconds" in body["spec"]
        else:
            right = reason == "FailureRule" and _special(body)
        if not right:
            self.complain(f"job {job.key} failed by {reason}: {self._causes(job)}")

    def excuse(self, job: tuple[str, str], writes: int) -> None:
        """Note that something other than a change of a job's objects is a reason for writes."""
        self._reasons["/".join(job)] += writes

    # In the end.

    def unsettled(self) -> list[str]:
        """What is not in its place."""
        found: list[str] = []
        live = {job.meta["uid"] for job in self._server.all("tpujobs")}
        for plural in ("pods", "services"):
            found += [
                f"{plural} {thing.key} is left over"
                for thing in self._server.all(plural)
                if owner(thing) and owner(thing) not in live
            ]
        for job in self._server.all("tpujobs"):
            found += [f"job {job.key}: {problem}" for problem in self._problems(job)]
        if not any(replica.label == self.holder and not replica.dead for replica in self._world.replicas):
            found.append("nobody leads")
        return found

    def check_budget(self) -> None:
        """No more writes than there were reasons for."""
        for key, writes in self._writes.items():
            allowed = 10 + 2 * self._reasons[key]
            if writes > allowed:
                self.complain(f"{writes} writes for {key}, for {self._reasons[key]} changes by others")

    def _problems(self, job: Stored) -> list[str]:
        body = job.body
        pods = jobs.pods_of(self._server, job)
        if body["spec"].get(MANAGED_BY_OTHERS):
            return (
                ["has pods or a status, but another controller manages it"]
                if pods or "status" in body
                else []
            )
        if deleting(job):
            return ["is still being deleted"]
        if any(is_true(body, kind) for kind in FINAL):
            return self._problems_at_the_end(job, pods)
        if self._must_fail(job):
            return [f"should have failed: {self._causes(job)}"]
        if body["spec"].get("suspend"):
            return _problems_of_suspended(job, pods)
        return self._problems_of_active(job, [pod for pod in pods if not jobs.is_spare(pod)])

    def _problems_at_the_end(self, job: Stored, pods: list[Stored]) -> list[str]:
        body = job.body
        found = [f"{pod.key[1]} still runs" for pod in pods if not finished(pod) or deleting(pod)]
        if "ttlSecondsAfterFinished" in body["spec"]:
            found.append("should be gone")
        if is_true(body, "Succeeded") and self._world.ledger.scripts[job.meta["uid"]].final != "succeed":
            found.append("succeeded, though its program runs for ever")
        return found

    def _problems_of_active(self, job: Stored, pods: list[Stored]) -> list[str]:
        body, status = job.body, job.body.get("status", {})
        found = _problems_of_status(job)
        by_name = {pod.key[1]: pod for pod in pods}
        waiting = [pod for pod in pods if not pod.body["spec"].get("nodeName")]
        if any(self._world.scheduler.fits(pod) for pod in waiting):
            found.append("pods could be scheduled")
        strangers = [
            name
            for name in jobs.gangs(body)
            if (pod := self._server.find("pods", (job.key[0], name))) and owner(pod) != job.meta["uid"]
        ]
        service = self._server.find("services", job.key)
        if strangers or (service and owner(service) != job.meta["uid"]):
            return found if is_true(body, "Blocked") else [*found, "is blocked and does not say so"]
        done = [s["index"] for s in status.get("slices", ()) if s["state"] == "Succeeded"]
        found += [
            f"{name} is missing"
            for name in jobs.gangs(body)
            if name not in by_name and not any(name.startswith(f"{job.key[1]}-{index}-") for index in done)
        ]
        found += [f"{name} is too much" for name in by_name if name not in jobs.gangs(body)]
        found += [f"{name} is being deleted" for name, pod in by_name.items() if deleting(pod)]
        found += self._problems_of_attempts(job, by_name)
        if service is None or not _in_order(service):
            found.append("its Service is not in order")
        return found + self._problems_of_phase(job, pods, waiting)

    def _problems_of_attempts(self, job: Stored, by_name: dict[str, Stored]) -> list[str]:
        """Pods of another attempt than the status says, or that run another."""
        found = []
        slices = {str(s["index"]): s for s in job.body.get("status", {}).get("slices", ())}
        for name, pod in by_name.items():
            index = pod.labels.get(f"{jobs.PREFIX}slice")
            if index is None:
                continue
            told = slices.get(index, {})
            number = told.get("attempt", 0)
            made = number - told.get("restartsInPlace", 0)
            runs = self._world.ledger.number(pod, jobs.gangs(job.body)[name])
            if (attempt(pod), runs) != (made, number):
                found.append(f"{name} is of attempt {attempt(pod)} and runs {runs}, the status says {told}")
        return found

    def _problems_of_phase(self, job: Stored, pods: list[Stored], waiting: list[Stored]) -> list[str]:
        body = job.body
        phase = body.get("status", {}).get("phase")
        if waiting:
            told = is_true(body, "Blocked") and condition(body, "Blocked")["reason"]
            right = told in {"Unschedulable", "NoMatchingNodes", "CapacityInUse"} and phase == "Pending"
            return [] if right else [f"waits for nodes, but is {phase}, blocked: {told}"]
        if is_true(body, "Blocked"):
            return [f"is blocked by nothing: {condition(body, 'Blocked')['reason']}"]
        ready = [
            pod for pod in pods if is_true(pod.body, "Ready") or pod.body["status"]["phase"] == "Succeeded"
        ]
        script = self._world.ledger.scripts[job.meta["uid"]]
        if len(ready) < len(pods) or script.failures:
            return [f"{len(ready)} of {len(pods)} pods are ready, {script} is not over"]
        if script.final == "succeed":
            return ["should have succeeded"]
        counts = (
            body.get("status", {}).get("ready"),
            f"{sum('-head' not in p.key[1] for p in pods)}/{jobs.slices(body) * jobs.hosts(body)}",
        )
        if phase != "Running" or len(set(counts)) > 1:
            return [f"runs, but is {phase} {counts[0]}, should be Running {counts[1]}"]
        return []

    def _must_fail(self, job: Stored) -> bool:
        counted = self._world.ledger.counted(job.meta["uid"], surely=True)
        return counted > jobs.max_restarts(job.body) and not _special(job.body)

    def _causes(self, job: Stored) -> list[object]:
        return [
            (which[1:], causes, which in self._world.ledger.disturbed)
            for which, causes in self._world.ledger.failed.items()
            if which[0] == job.meta["uid"]
        ]


def _special(job: Object) -> bool:
    """Whether the job's own rules decide what counts."""
    return bool(job["spec"]["failurePolicy"].get("rules"))


def _problems_of_status(job: Stored) -> list[str]:
    status = job.body.get("status", {})
    found = []
    if status.get("observedGeneration") != job.meta["generation"]:
        found.append(f"status speaks of generation {status.get('observedGeneration')}")
    blocked = is_true(job.body, "Blocked")
    if blocked != ("pending" in status):
        found.append(f"blocked is {blocked}, pending is {status.get('pending')}")
    return found


def _problems_of_suspended(job: Stored, pods: list[Stored]) -> list[str]:
    left = [pod for pod in pods if not finished(pod)]
    found = _problems_of_status(job) + [f"{pod.key[1]} runs while it is suspended" for pod in left]
    phase = job.body.get("status", {}).get("phase")
    return found if phase == "Suspended" else [*found, f"is suspended, but {phase}"]


def _left(stored: Stored | None, field: str) -> object:
    """Finalizers or annotations, without what pods may be told."""
    found = (stored.meta.get(field) if stored else None) or ()
    return [item for item in found if item != f"{jobs.PREFIX}maintenance"]


def _in_order(service: Stored) -> bool:
    spec, name = service.body["spec"], service.key[1]
    return (
        spec.get("publishNotReadyAddresses") is True
        and spec.get("selector") == {f"{jobs.PREFIX}job": name}
        and any(port["port"] == 8090 for port in spec.get("ports", ()))
    )

"""The rest of Kubernetes: scheduler, node controller, garbage collector, and the nodes' misfortunes."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from tests.sim import jobs
from tests.sim.jobs import deleting, finished, set_condition

if TYPE_CHECKING:
    from tests.sim.kubelet import Kubelets
    from tests.sim.server import Change, Key, Object, Stored
    from tests.sim.world import World

CPU_NODE = "cpu"
POOL = "cloud.google.com/gke-nodepool"
SCHEDULED = "cloud.google.com/scheduled-maintenance-time"
ACTIVE = "cloud.google.com/active-node-maintenance"
SLICE_ID = f"{jobs.PREFIX}slice-id"


def add_pool(world: World, name: str, topology: str) -> None:
    """A node pool: one slice of v5e."""
    for index in range(jobs.HOSTS[topology]):
        add_node(world, f"{name}-{index}", name, topology)


def add_node(world: World, name: str, pool: str, topology: str) -> None:
    """One machine of a pool, or one without chips."""
    if not pool:
        world.server.create(
            "nodes", {"metadata": {"name": name, "labels": {}}, "status": _up(world)}, "cloud"
        )
        return
    labels = {
        POOL: pool,
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": topology,
        "cloud.google.com/gke-accelerator-count": "4",
    }
    status = _up(world) | {"allocatable": {"google.com/tpu": "4"}}
    world.server.create("nodes", {"metadata": {"name": name, "labels": labels}, "status": status}, "cloud")


def _up(world: World) -> Object:
    return {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": world.stamp()}]}


class Scheduler:
    """Binds pods to nodes, one pod of ours to a node, late, or never when all are taken."""

    def __init__(self, world: World, kubelets: Kubelets) -> None:
        self._world = world
        self._server = world.server
        self._kubelets = kubelets
        self._rng = world.rng("scheduler")
        add_node(world, CPU_NODE, "", "")
        world.server.listeners.append(self._on_change)

    def _on_change(self, change: Change) -> None:
        new = change.new
        if change.plural == "pods" and change.old is None and new and not new.body["spec"].get("nodeName"):
            self._world.spawn(self._schedule(new.key, new.meta["uid"]))

    async def _schedule(self, key: Key, uid: str) -> None:
        await asyncio.sleep(self._rng.expovariate(5.0))
        while True:
            pod = self._server.find("pods", key)
            if pod is None or pod.meta["uid"] != uid or deleting(pod):
                return
            node = self.fits(pod)
            if node:
                self._server.update("pods", key, "scheduler", partial(self._bind, node=node))
                return
            self._server.update("pods", key, "scheduler", self._put_off)
            await asyncio.sleep(self._rng.uniform(1.0, 6.0))

    def _bind(self, body: Object, *, node: str) -> None:
        body["spec"]["nodeName"] = node
        set_condition(body, "PodScheduled", "True", self._world.stamp())

    def _put_off(self, body: Object) -> None:
        message = "0 nodes are available"
        set_condition(
            body, "PodScheduled", "False", self._world.stamp(), reason="Unschedulable", message=message
        )

    def fits(self, pod: Stored) -> str:
        """A node for the pod, or nothing."""
        wanted = pod.body["spec"].get("nodeSelector")
        if not wanted:
            return CPU_NODE
        bound = [p for p in self._server.all("pods") if p.body["spec"].get("nodeName") and not finished(p)]
        taken = {p.body["spec"]["nodeName"] for p in bound} | self._kubelets.down
        free = [
            n
            for n in self._server.all("nodes")
            if wanted.items() <= n.labels.items() and n.key[1] not in taken
        ]
        free = self._exclusive(pod, bound, free)
        return free[0].key[1] if free else ""

    def _exclusive(self, pod: Stored, bound: list[Stored], free: list[Stored]) -> list[Stored]:
        """The nodes that affinity allows: the pod's own, and that of the pods that are there already."""
        pools, shut = self.tenants(bound), self.tenants([p for p in bound if _keeps_apart(p)])
        mine = pod.labels[SLICE_ID]
        free = [n for n in free if shut.get(n.labels[POOL], {mine}) == {mine}]
        if not _keeps_apart(pod):
            return free
        home = {pool for pool, ids in pools.items() if mine in ids}
        return [n for n in free if (n.labels[POOL] in home if home else n.labels[POOL] not in pools)]

    def tenants(self, bound: list[Stored]) -> dict[str, set[str]]:
        """Slices, by the pool that they are in."""
        pools: dict[str, set[str]] = {}
        for pod in bound:
            node = self._server.find("nodes", ("", pod.body["spec"]["nodeName"]))
            if node and SLICE_ID in pod.labels:
                pools.setdefault(node.labels[POOL], set()).add(pod.labels[SLICE_ID])
        return pools


def _keeps_apart(pod: Stored) -> bool:
    """Whether affinity keeps a pod with its own slice, and others away from it."""
    return "podAntiAffinity" in pod.body["spec"].get("affinity", {})


class Collector:
    """The garbage collector: what has lost its owner goes, some time later."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._server = world.server
        self._rng = world.rng("collector")
        world.server.listeners.append(self._on_change)

    def _on_change(self, change: Change) -> None:
        new, old = change.new, change.old
        if change.plural == "tpujobs":
            if new is None and old is not None:
                self._world.spawn(self._orphans(old.meta["uid"]))
            elif new is not None and deleting(new) and new.meta.get("finalizers"):
                self._world.spawn(self._finalize(new))
        elif change.plural in {"pods", "services"} and old is None and new is not None and jobs.owner(new):
            self._world.spawn(self._orphans(jobs.owner(new)))

    async def _orphans(self, uid: str) -> None:
        await asyncio.sleep(self._rng.choice([0.1, 1.0, 12.0]))
        if any(job.meta["uid"] == uid for job in self._server.all("tpujobs")):
            return
        self._delete_all(uid)

    def _delete_all(self, uid: str) -> None:
        for plural in ("pods", "services"):
            for child in self._server.all(plural):
                if jobs.owner(child) == uid and not deleting(child):
                    self._server.delete(plural, child.key, "collector", uid=child.meta["uid"])

    async def _finalize(self, job: Stored) -> None:
        """Foreground and orphan deletion."""
        uid, finalizers = job.meta["uid"], job.meta["finalizers"]
        await asyncio.sleep(self._rng.choice([0.1, 1.0, 5.0]))
        if "orphan" in finalizers:
            for plural in ("pods", "services"):
                for child in [c for c in self._server.all(plural) if jobs.owner(c) == uid]:
                    self._server.update(
                        plural, child.key, "collector", lambda body: body["metadata"].pop("ownerReferences")
                    )
        while "foregroundDeletion" in finalizers:
            self._delete_all(uid)
            if not any(jobs.owner(pod) == uid for pod in self._server.all("pods")):
                break
            await asyncio.sleep(1.0)
        self._server.update(
            "tpujobs", job.key, "collector", lambda body: body["metadata"].pop("finalizers", None), uid=uid
        )


class Misfortunes:
    """What befalls nodes, and the pods on them."""

    def __init__(self, world: World, kubelets: Kubelets) -> None:
        self._world = world
        self._server = world.server
        self._kubelets = kubelets
        self._rng = world.rng("misfortunes")

    async def lose_node(self) -> None:
        """A node is not heard of any more; it comes back, or its pods are evicted, or it is replaced."""
        nodes = [n for n in self._server.all("nodes") if n.labels and n.key[1] not in self._kubelets.down]
        if not nodes:
            return
        node = self._rng.choice(nodes)
        name = node.key[1]
        self._world.trace.add("cloud", f"node {name} is lost")
        self._kubelets.down.add(name)
        self._disturb(name)
        await asyncio.sleep(self._rng.uniform(0.5, 30.0))
        self._set_ready(node, "Unknown")
        for pod in self._on(name):
            self._kubelets.set_ready(pod.key, pod.meta["uid"], "False", "nodes")
        await asyncio.sleep(self._rng.choice([self._rng.uniform(0.5, 30.0), 90.0]))
        fate = self._rng.choice(["returns", "evicts", "replaced"])
        if fate != "returns":
            self._evict(name, "DeletionByTaintManager")
            await asyncio.sleep(self._rng.uniform(1.0, 40.0))
        if fate == "replaced":
            await self._replace(node)
        self._kubelets.down.discard(name)
        self._set_ready(node, "True")
        self._disturb(name)
        for pod in self._on(name):
            self._kubelets.set_ready(pod.key, pod.meta["uid"], "True")

    def _set_ready(self, node: Stored, status: str) -> None:
        stamp = self._world.stamp()
        self._server.update("nodes", node.key, "nodes", lambda b: set_condition(b, "Ready", status, stamp))

    async def _replace(self, node: Stored) -> None:
        """The machine is gone for good; the pod garbage collector removes what was on it."""
        name, labels = node.key[1], node.labels
        self._server.delete("nodes", node.key, "cloud")
        await asyncio.sleep(self._rng.uniform(0.5, 10.0))
        for pod in self._on(name):
            self._server.update("pods", pod.key, "podgc", self._fail)
            self._server.delete("pods", pod.key, "podgc", uid=pod.meta["uid"], grace=0)
        await asyncio.sleep(self._rng.uniform(0.5, 10.0))
        add_node(self._world, name, labels[POOL], labels["cloud.google.com/gke-tpu-topology"])

    async def maintain(self) -> None:
        """Maintenance of a node pool is announced; when it comes, or is called off, the notice goes."""
        names = {n.labels[POOL] for n in self._server.all("nodes") if n.labels}
        if not names:
            return
        pool = self._rng.choice(sorted(names))
        left = self._rng.choice([5.0, 40.0, 120.0])
        self._world.trace.add("cloud", f"maintenance of pool {pool} in {left:.0f} s")
        start = int((self._world.wall() + timedelta(seconds=left)).timestamp())
        self._notify(pool, **{SCHEDULED: str(start)})
        await self._meanwhile(pool, left)
        if self._rng.random() < 0.7:
            self._notify(pool, **{ACTIVE: "ONGOING"})
            for node in self._members(pool):
                self._evict(node.key[1], "TerminationByKubelet")
            await self._meanwhile(pool, self._rng.uniform(1.0, 20.0))
        self._notify(pool)

    async def _meanwhile(self, pool: str, seconds: float) -> None:
        """Whatever comes to the pool while a notice stands may be moved away again."""
        end = self._world.loop.time() + seconds
        while self._world.loop.time() < end:
            for node in self._members(pool):
                self._disturb(node.key[1])
            await asyncio.sleep(0.5)

    def _notify(self, pool: str, **notices: str) -> None:
        def change(body: Object) -> None:
            labels = body["metadata"]["labels"]
            body["metadata"]["labels"] = {
                key: value for key, value in labels.items() if key not in {SCHEDULED, ACTIVE}
            } | notices

        for node in self._members(pool):
            self._server.update("nodes", node.key, "cloud", change)
            for pod in self._on(node.key[1]):
                # The condition, an attempt, and an annotation for each of the job's pods.
                self._world.oracle.excuse(jobs.owner_key(pod), 8)

    def _members(self, pool: str) -> list[Stored]:
        return [n for n in self._server.all("nodes") if n.labels.get(POOL) == pool]

    def preempt(self) -> None:
        """A pod has to make room."""
        pods = [p for p in self._server.all("pods") if p.body["spec"].get("nodeName") and not finished(p)]
        if pods:
            pod = self._rng.choice(pods)
            self._take(pod, "PreemptionByScheduler", "scheduler")

    def _evict(self, node: str, reason: str) -> None:
        for pod in self._on(node):
            if not finished(pod):
                self._take(pod, reason, "nodes")

    def _take(self, pod: Stored, reason: str, writer: str) -> None:
        self._world.disturb(pod)
        stamp = self._world.stamp()
        self._server.update(
            "pods",
            pod.key,
            writer,
            lambda b: set_condition(b, "DisruptionTarget", "True", stamp, reason=reason),
        )
        self._server.delete("pods", pod.key, writer, uid=pod.meta["uid"])

    def _fail(self, body: Object) -> None:
        if body["status"].get("phase") not in {"Succeeded", "Failed"}:
            body["status"]["phase"] = "Failed"
        set_condition(
            body, "DisruptionTarget", "True", self._world.stamp(), reason="DeletionByPodGC", message=""
        )

    def _on(self, node: str) -> list[Stored]:
        return [pod for pod in self._server.all("pods") if pod.body["spec"].get("nodeName") == node]

    def _disturb(self, node: str) -> None:
        for pod in self._on(node):
            self._world.disturb(pod)

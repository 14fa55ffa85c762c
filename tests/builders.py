"""Builders of snapshots for tests: a job, and pods in whatever state a case needs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tpu_operator.api import TPUJob, TPUJobSpec, TPUJobStatus
from tpu_operator.core import job as job_module
from tpu_operator.core.kueue import Queues, Workload
from tpu_operator.core.nodes import Nodes
from tpu_operator.core.placement import Pools
from tpu_operator.core.quota import Quotas
from tpu_operator.core.settings import PodSettings
from tpu_operator.core.snapshot import JobSnapshot, Node, Pod, PodGroup, Service

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpu_operator.core.plan import Delete, Manifest, Plan

T = TypeVar("T")

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
UID = "6f1c2d3e-0000-4000-8000-000000000001"
SETTINGS = PodSettings(runtime_image="example/runtime:1", launcher_image="example/operator:1")


def job(name: str = "train", **spec: Any) -> TPUJob:
    """A v5e 4x4 job (4 hosts of 4 chips); `spec` replaces whole fields of the spec."""
    wire = {
        "tpu": {"accelerator": "v5e", "topology": "4x4"},
        "run": {"command": ["python", "train.py"]},
    } | spec
    metadata = {"name": name, "namespace": "default", "uid": UID, "generation": 1, "resourceVersion": "1"}
    return TPUJob.parse({"metadata": metadata, "spec": wire})


def decode_pod(manifest: dict[str, Any], **status: Any) -> Pod:
    """A pod as the informer shows it, from a manifest that we would create."""
    wire = json.loads(json.dumps(manifest))
    wire["metadata"].setdefault(
        "uid", f"uid-{wire['metadata']['name']}-{wire['metadata']['labels'].get('tpu-operator.dev/attempt')}"
    )
    wire["status"] = status
    return msgspec.json.decode(json.dumps(wire), type=Pod)


def stamp(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def terminated(
    exit_code: int, message: str = "", at: datetime = NOW, reason: str = "Error"
) -> dict[str, Any]:
    """Status of a pod whose main container has ended."""
    state = {
        "terminated": {
            "exitCode": exit_code,
            "reason": "Completed" if exit_code == 0 else reason,
            "message": message,
            "finishedAt": stamp(at),
        }
    }
    return {
        "phase": "Succeeded" if exit_code == 0 else "Failed",
        "containerStatuses": [{"name": "main", "state": state}],
    }


def report(cause: str | None = "UserError", exit_code: int = 1, at: datetime = NOW, **more: Any) -> str:
    """A termination message of the launcher."""
    return json.dumps({"v": 1, "cause": cause, "exitCode": exit_code, "time": at.timestamp()} | more)


RUNNING: dict[str, Any] = {
    "phase": "Running",
    "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
    "containerStatuses": [{"name": "main", "state": {"running": {}}}],
}
STARTING: dict[str, Any] = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}],
}


def node(name: str, pool: str, *, ready: str = "True", **more: Any) -> Node:
    """A host of a v5e 4x4 slice; `more` replaces whole fields: `taints`, `unschedulable`, `since`."""
    labels = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
        "cloud.google.com/gke-accelerator-count": "4",
        "cloud.google.com/gke-nodepool": pool,
    }
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": stamp(more.get("since", NOW))}
    wire = {
        "metadata": {
            "name": name,
            "labels": labels | more.get("labels", {}),
            "annotations": more.get("annotations", {}),
        },
        "spec": {"taints": more.get("taints", []), "unschedulable": more.get("unschedulable", False)},
        "status": {"conditions": [condition], "allocatable": {"google.com/tpu": more.get("chips", "4")}},
    }
    return msgspec.json.decode(json.dumps(wire), type=Node)


def node_pool(name: str, hosts: int = 4, **more: Any) -> dict[str, Node]:
    """The nodes of a pool, named after it."""
    return {f"{name}-{i}": node(f"{name}-{i}", name, **more) for i in range(hosts)}


def pools_of(nodes: Iterable[Node], pods: Iterable[Pod]) -> Pools:
    """Node pools as they follow from nodes and pods."""
    pools = Pools()
    for item in nodes:
        pools.put_node(item)
    for pod in pods:
        pools.put_pod(pod)
    return pools


@dataclass
class World:
    """A tiny cluster around one job: carries plans out to the letter, and nothing else.

    Kubelets, schedulers and people are the test's business: it changes `pods` as they would.
    """

    job: TPUJob
    now: datetime = NOW
    pods: dict[str, Pod] = field(default_factory=dict)
    gone: dict[str, Pod] = field(default_factory=dict)
    """Pods as they were when they went, until there are others of their names."""
    services: dict[str, Service] = field(default_factory=dict)
    config_maps: dict[str, Manifest] = field(default_factory=dict)
    pod_groups: dict[str, PodGroup] | None = None
    """None where PodGroups are not served."""
    queues: Queues | None = None
    """None where Kueue is not served; its Workloads are below."""
    workloads: dict[str, Workload] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    nodes_version: int = -1
    """How new the copy of the nodes is; -1 when nothing is known of nodes that are not in it."""
    others: list[Pod] = field(default_factory=list)
    """Pods of other jobs."""
    strangers: list[Pod] = field(default_factory=list)
    """Pods that are of no job."""
    events: list[str] = field(default_factory=list)
    refusal: str = ""
    quotas: Quotas = field(default_factory=Quotas)
    """What the operator knows of the namespace's quotas."""
    quota: int | None = None
    """Pods that there may be: more are refused, and the next decision is told."""
    alive: bool = True
    keep_deleted: bool = False
    """Deleted pods stay, terminating, until `vanish`."""
    made: int = 0
    """Pods made so far, for their UIDs."""

    def plan(self) -> Plan:
        return job_module.plan(self.snapshot(), self.now, SETTINGS)

    def snapshot(self) -> JobSnapshot:
        """What the controller would show to a decision."""
        nodes = Nodes(dict(self.nodes), self.nodes_version, heard=self.now)
        pools = pools_of(self.nodes.values(), [*self.pods.values(), *self.others])
        for pod in self.strangers:
            pools.put_stranger(pod)
        groups = None if self.pod_groups is None else dict(self.pod_groups)
        queues = replace(self.queues, workloads=dict(self.workloads)) if self.queues else None
        return JobSnapshot(
            self.job,
            dict(self.pods),
            dict(self.services),
            nodes,
            self.refusal,
            pools,
            groups,
            self.quotas,
            queues,
            dict(self.gone),
        )

    def step(self) -> Plan:
        """One pass: decide, and carry out."""
        plan = self.plan()
        self.carry_out(plan)
        return plan

    def carry_out(self, plan: Plan, writes: int | None = None, *, status: bool = True) -> None:
        """Do what a plan says; or only its first writes, with or without the status, as after a crash."""
        if plan.creates and self.quota is not None:
            self.refusal = ""
        effects = [
            *(partial(self._apply, manifest) for manifest in plan.applies),
            *(partial(self._delete, delete) for delete in plan.deletes),
            *(partial(self._create, manifest) for manifest in plan.creates),
        ]
        for effect in effects[:writes]:
            effect()
        if status and plan.status is not None:
            self.set_status(dict(plan.status))
            self.events += [event.reason for event in plan.events]
        for patch in plan.patches if status else ():
            there: Any = self.services if patch.kind == "Service" else self.workloads
            there[patch.name] = patched(there[patch.name], patch.change)

    def settle(self, limit: int = 60) -> World:
        """Passes until they change nothing any more."""
        for _ in range(limit):
            before = self._state()
            plan = self.step()
            if self._state() == before:
                return self
        raise AssertionError(f"no fixpoint after {limit} passes: {plan}")

    def _state(self) -> tuple[Any, ...]:
        more = dict(self.pod_groups or {}), dict(self.workloads)
        return self.job, dict(self.pods), dict(self.services), more, self.refusal, self.alive

    def patch_workload(self, name: str, **status: Any) -> None:
        """Change parts of a Workload's status; None removes one."""
        self.workloads[name] = patched(self.workloads[name], {"status": status})

    def set_status(self, status: dict[str, Any]) -> None:
        """Store a status, by way of the wire."""
        parsed = TPUJobStatus.parse(json.loads(json.dumps(status)))
        self.job = self.job.model_copy(update={"status": parsed})

    def patch_spec(self, **spec: Any) -> None:
        """Edit the spec as a user would."""
        old = self.job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        meta = self.job.metadata.model_copy(update={"generation": self.job.metadata.generation + 1})
        self.job = self.job.model_copy(update={"spec": TPUJobSpec.parse(old | spec), "metadata": meta})

    def set_pod(self, name: str, node: str | None = "node", **status: Any) -> None:
        """Change what the kubelet says of a pod."""
        wire = msgspec.to_builtins(self.pods[name])
        wire["status"] = status
        wire["spec"] |= {"nodeName": node or ""}
        self.pods[name] = msgspec.convert(wire, Pod)

    def all_pods(self, **status: Any) -> World:
        for name in self.pods:
            self.set_pod(name, **status)
        return self

    def run(self) -> World:
        """Bring the present attempt up."""
        return self.settle().all_pods(**RUNNING).settle()

    def vanish(self, *names: str) -> World:
        """Pods that are gone from one moment to the next; those being deleted if none is named."""
        for name in names or [name for name, pod in self.pods.items() if pod.deleting]:
            self.gone[name] = self.pods.pop(name)
        return self

    def condition(self, kind: str) -> str:
        """`status/reason` of a condition, empty when it is not there."""
        found = next((c for c in self.job.status.conditions if c.type == kind), None)
        return f"{found.status}/{found.reason}" if found else ""

    def delete_pod(self, name: str) -> None:
        """Delete a pod as Kubernetes does: one that never ran or has ended is gone at once."""
        pod = self.pods[name]
        if pod.deleting:
            return
        if not self.keep_deleted or not pod.spec.node_name or pod.finished:
            self.vanish(name)
            return
        wire = msgspec.to_builtins(pod)
        wire["metadata"]["deletionTimestamp"] = stamp(self.now + timedelta(seconds=30))
        wire["metadata"]["deletionGracePeriodSeconds"] = 30
        self.pods[name] = msgspec.convert(wire, Pod)

    def _create(self, manifest: Manifest) -> None:
        name = manifest["metadata"]["name"]
        if manifest["kind"] == "Service":
            if name not in self.services:
                self._add(manifest)
        elif manifest["kind"] == "ConfigMap":
            self.config_maps.setdefault(name, manifest)
        elif manifest["kind"] == "PodGroup":
            assert self.pod_groups is not None
            self.made += 1
            metadata = manifest["metadata"] | {"uid": f"uid-{name}-{self.made}"}
            group = msgspec.convert(manifest | {"metadata": metadata}, PodGroup)
            self.pod_groups.setdefault(name, group)
        elif manifest["kind"] == "Workload":
            self.made += 1
            metadata = manifest["metadata"] | {"uid": f"uid-{name}-{self.made}"}
            made = msgspec.convert({"metadata": metadata, "spec": manifest["spec"]}, Workload)
            self.workloads.setdefault(name, made)
        elif name not in self.pods:
            if self.quota is not None and len(self.pods) >= self.quota:
                self.refusal = f"pods {name!r} is forbidden: exceeded quota"
            else:
                self._add(manifest)

    def _apply(self, manifest: Manifest) -> None:
        if manifest["kind"] != "Pod":
            self._add(manifest)
            return
        meta = manifest["metadata"]
        wire = msgspec.to_builtins(self.pods[meta["name"]])
        assert meta["uid"] == wire["metadata"]["uid"]
        wire["metadata"]["annotations"] = meta.get("annotations", {})
        self.pods[meta["name"]] = msgspec.convert(wire, Pod)

    def _add(self, manifest: Manifest) -> None:
        name = manifest["metadata"]["name"]
        if manifest["kind"] == "Pod":
            self.made += 1
            self.gone.pop(name, None)
            metadata = manifest["metadata"] | {"uid": f"uid-{name}-{self.made}"}
            self.pods[name] = decode_pod(manifest | {"metadata": metadata})
        else:
            self.services[name] = msgspec.json.decode(json.dumps(manifest), type=Service)

    def _delete(self, delete: Delete) -> None:
        if delete.kind == "TPUJob":
            assert delete.uid == self.job.metadata.uid
            self.alive = False
            return
        if delete.kind == "PodGroup":
            assert self.pod_groups is not None
            assert self.pod_groups[delete.name].metadata.uid == delete.uid
            del self.pod_groups[delete.name]
            return
        if delete.kind == "Workload":
            assert self.workloads.pop(delete.name).metadata.uid == delete.uid
            return
        assert self.pods[delete.name].metadata.uid == delete.uid
        if delete.grace_seconds == 0:
            self.vanish(delete.name)
        else:
            self.delete_pod(delete.name)


def patched(item: T, change: Mapping[str, Any]) -> T:
    """An object after a JSON merge patch."""
    return msgspec.convert(merged(msgspec.to_builtins(item), change), type(item))


def merged(base: Any, change: Any) -> Any:
    """RFC 7386."""
    if not isinstance(change, dict):
        return change
    base = base if isinstance(base, dict) else {}
    found = base | {key: merged(base.get(key), value) for key, value in change.items()}
    return {key: value for key, value in found.items() if value is not None}


def lives(*ends: dict[str, Any], now: str = "running", ready: bool = False) -> dict[str, Any]:
    """Status of a pod whose main container was started again after each of these ends, but maybe the last.

    Args:
        ends: as `ended` makes them.
        now: running; waiting or terminated if the last end was the last so far.
        ready: the pod is ready.
    """
    gone = [] if now != "terminated" else [ends[-1]]
    before = ends[:-1] if gone else ends
    state = {"running": {"running": {}}, "waiting": {"waiting": {"reason": "CrashLoopBackOff"}}}
    main: dict[str, Any] = {"name": "main", "ready": ready, "restartCount": len(ends) - (now != "running")}
    main["state"] = {"terminated": gone[0]} if gone else state[now]
    if before:
        main["lastState"] = {"terminated": before[-1]}
    conditions = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": "True" if ready else "False"},
    ]
    return {"phase": "Running", "conditions": conditions, "containerStatuses": [main]}


def ended(code: int = 1, message: str = "", at: datetime = NOW, reason: str = "Error") -> dict[str, Any]:
    """The end of a container."""
    return {"exitCode": code, "reason": reason, "message": message, "finishedAt": stamp(at)}

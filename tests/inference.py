"""Builders for tests of TPUInference: an object, and a tiny cluster around it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tests.builders import NOW, RUNNING, SETTINGS, STARTING, decode_pod, patched, pools_of, stamp
from tpu_operator.api import TPUInference, TPUInferenceSpec, TPUInferenceStatus
from tpu_operator.core import names
from tpu_operator.core.inference import plan as plan_module
from tpu_operator.core.inference.images import Images
from tpu_operator.core.inference.snapshot import ControllerRevision, InferenceSnapshot
from tpu_operator.core.inference.view import Installation, observe
from tpu_operator.core.nodes import Nodes
from tpu_operator.core.quota import Quotas
from tpu_operator.core.snapshot import Node, Pod, PodGroup, Scaler, Service

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpu_operator.core.inference.view import InferenceView
    from tpu_operator.core.inquiry import Answers
    from tpu_operator.core.kueue import Workload
    from tpu_operator.core.plan import Delete, Manifest, Patch, Plan

UID = "6f1c2d3e-0000-4000-8000-00000000000a"
IMAGES = Images(engine="example/runtime:1", endpoint_picker="example/picker:1", sidecar="example/sidecar:1")
INSTALLATION = Installation(SETTINGS, IMAGES)
TPU = {"accelerator": "v5e", "topology": "4x4"}
"""Four hosts of four chips."""


def role(name: str, replicas: int = 1, kind: str | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind or name, "replicas": replicas, "tpu": TPU} | more


def inference(name: str = "qwen", **spec: Any) -> TPUInference:
    """Two prefill and one decode, each a v5e 4x4; `spec` replaces whole fields of the spec."""
    wire = {
        "model": {"name": "Qwen/Qwen3-32B"},
        "engine": {"type": "vllm"},
        "roles": [role("prefill", 2), role("decode", 1)],
    } | spec
    metadata = {"name": name, "namespace": "default", "uid": UID, "generation": 1, "resourceVersion": "1"}
    return TPUInference.parse({"metadata": metadata, "spec": wire})


def image(tag: str) -> dict[str, Any]:
    """An engine of another image: another revision."""
    return {"type": "vllm", "image": f"example/vllm:{tag}"}


@dataclass
class InferenceWorld:
    """A tiny cluster around one TPUInference: carries plans out to the letter, and nothing else.

    Kubelets, schedulers and people are the test's business: it changes `pods` as they would.
    """

    inference: TPUInference = field(default_factory=inference)
    now: datetime = NOW
    pods: dict[str, Pod] = field(default_factory=dict)
    services: dict[str, Service] = field(default_factory=dict)
    revisions: dict[str, ControllerRevision] = field(default_factory=dict)
    scalers: dict[str, Scaler] = field(default_factory=dict)
    pod_groups: dict[str, PodGroup] | None = None
    gone: dict[str, Pod] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    refusal: str = ""
    quotas: Quotas = field(default_factory=Quotas)
    installation: Installation = INSTALLATION
    answers: Answers | None = None
    """What the last inquiry was answered."""
    workloads: dict[str, Workload] = field(default_factory=dict)
    """Those of pods, by their names."""
    keep_deleted: bool = False
    """Deleted pods stay, terminating, until `vanish`."""
    made: int = 0

    @property
    def status(self) -> TPUInferenceStatus:
        return self.inference.status

    @property
    def view(self) -> InferenceView:
        return observe(self.snapshot(), self.now, self.installation)

    def plan(self) -> Plan:
        return plan_module.plan(self.snapshot(), self.now, self.installation)

    def snapshot(self) -> InferenceSnapshot:
        return InferenceSnapshot(
            inference=self.inference,
            pods=dict(self.pods),
            services=dict(self.services),
            revisions=dict(self.revisions),
            scalers=dict(self.scalers),
            pod_groups=dict(self.pod_groups) if self.pod_groups is not None else None,
            gone=dict(self.gone),
            nodes=Nodes(dict(self.nodes), heard=self.now),
            pools=pools_of(self.nodes.values(), self.pods.values()),
            refusal=self.refusal,
            quotas=self.quotas,
            answers=self.answers,
            workloads=dict(self.workloads),
        )

    def step(self) -> Plan:
        """One pass: decide, and carry out."""
        plan = self.plan()
        self.carry_out(plan)
        return plan

    def carry_out(self, plan: Plan, writes: int | None = None, *, status: bool = True) -> None:
        """Do what a plan says; or only its first writes, with or without the status, as after a crash."""
        effects = [
            *(partial(self._apply, manifest) for manifest in plan.applies),
            *(partial(self._delete, delete) for delete in plan.deletes),
            *(partial(self._create, manifest) for manifest in plan.creates),
        ]
        for effect in effects[:writes]:
            effect()
        if status and plan.status is not None:
            parsed = TPUInferenceStatus.parse(json.loads(json.dumps(plan.status)))
            self.inference = self.inference.model_copy(update={"status": parsed})
            self.events += [event.reason for event in plan.events]
        for patch in plan.patches if status else ():
            self._patch(patch)

    def settle(self, limit: int = 60) -> InferenceWorld:
        """Passes until they change nothing any more."""
        for _ in range(limit):
            before = self._state()
            plan = self.step()
            if self._state() == before:
                return self
        raise AssertionError(f"no fixpoint after {limit} passes: {plan}")

    def run(self, limit: int = 60) -> InferenceWorld:
        """Passes, with kubelets that make every pod ready at once and end every pod that goes."""
        for _ in range(limit):
            before = self._state()
            self.settle().vanish().all_pods(**RUNNING).settle()
            if self._state() == before:
                return self
        raise AssertionError("no end")

    def _state(self) -> tuple[Any, ...]:
        children = (dict(self.pods), dict(self.services), dict(self.revisions), dict(self.scalers))
        return (self.inference, *children, dict(self.pod_groups or {}), self.refusal)

    def patch_spec(self, **spec: Any) -> InferenceWorld:
        """Edit the spec as a user would."""
        old = self.inference.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        meta = self.inference.metadata
        meta = meta.model_copy(update={"generation": meta.generation + 1})
        parsed = TPUInferenceSpec.parse(old | spec)
        self.inference = self.inference.model_copy(update={"spec": parsed, "metadata": meta})
        return self

    def set_pod(self, name: str, node: str | None = "node", **status: Any) -> None:
        """Change what the kubelet says of a pod."""
        wire = msgspec.to_builtins(self.pods[name])
        wire["status"] = status
        wire["spec"] |= {"nodeName": node or ""}
        self.pods[name] = msgspec.convert(wire, Pod)

    def all_pods(self, **status: Any) -> InferenceWorld:
        """The same for all pods that are not going."""
        for name, pod in self.pods.items():
            if not pod.deleting:
                self.set_pod(name, **status)
        return self

    def of(self, role: str, revision: str = "", host: int | None = None) -> list[str]:
        """Names of the pods of a role."""
        wanted = {names.LABEL_ROLE: role}
        wanted |= {names.LABEL_REVISION: revision} if revision else {}
        wanted |= {names.LABEL_HOST: str(host)} if host is not None else {}
        return [n for n, pod in self.pods.items() if wanted.items() <= pod.metadata.labels.items()]

    def start(self, *pods: str) -> InferenceWorld:
        """Give pods nodes, without making them ready."""
        for name in pods or list(self.pods):
            self.set_pod(name, **STARTING)
        return self

    def vanish(self, *pods: str) -> InferenceWorld:
        """Pods that are gone from one moment to the next; those being deleted if none is named."""
        for name in pods or [name for name, pod in self.pods.items() if pod.deleting]:
            self.gone[name] = self.pods.pop(name)
        return self

    def condition(self, kind: str) -> str:
        """`status/reason` of a condition, empty when it is not there."""
        found = next((c for c in self.status.conditions if c.type == kind), None)
        return f"{found.status}/{found.reason}" if found else ""

    def counts(self) -> dict[str, dict[str, int]]:
        """Replicas that are to stay, by revision and role."""
        return {
            revision.name: {each.name: each.replicas for each in revision.roles}
            for revision in self.status.revisions
        }

    def scale(self, role: str, replicas: int) -> None:
        """What an autoscaler does."""
        name = names.scaler_name(self.inference.metadata.name, role)
        wire = msgspec.to_builtins(self.scalers[name])
        wire["spec"]["replicas"] = replicas
        self.scalers[name] = msgspec.convert(wire, Scaler)

    def _create(self, manifest: Manifest) -> None:
        stores: Mapping[str, tuple[dict[str, Any], type]] = {
            "Pod": (self.pods, Pod),
            "Service": (self.services, Service),
            "ControllerRevision": (self.revisions, ControllerRevision),
            "TPUInferenceScaler": (self.scalers, Scaler),
            "PodGroup": ({} if self.pod_groups is None else self.pod_groups, PodGroup),
        }
        if manifest["kind"] not in stores:
            return
        store, view = stores[manifest["kind"]]
        name = manifest["metadata"]["name"]
        if name in store:
            return
        self.made += 1
        made = manifest | {"metadata": manifest["metadata"] | {"uid": f"uid-{name}-{self.made}"}}
        if view is Pod:
            self.gone.pop(name, None)
            self.pods[name] = decode_pod(made)
        else:
            store[name] = msgspec.json.decode(json.dumps(made), type=view)

    def _apply(self, manifest: Manifest) -> None:
        name = manifest["metadata"]["name"]
        if manifest["kind"] == "ControllerRevision":
            old = self.revisions[name]
            assert manifest["data"] == old.data, "the API server has data immutable"
            self.revisions[name] = msgspec.structs.replace(old, revision=manifest["revision"])
        elif manifest["kind"] == "Service":
            self.services[name] = msgspec.json.decode(json.dumps(manifest), type=Service)
        else:
            wire = msgspec.to_builtins(self.pods[name])
            wire["metadata"]["labels"] |= manifest["metadata"]["labels"]
            self.pods[name] = msgspec.convert(wire, Pod)

    def _delete(self, delete: Delete) -> None:
        stores: dict[str, dict[str, Any]] = {
            "ControllerRevision": self.revisions,
            "TPUInferenceScaler": self.scalers,
            "PodGroup": {} if self.pod_groups is None else self.pod_groups,
        }
        if delete.kind in stores:
            assert stores[delete.kind].pop(delete.name).metadata.uid == delete.uid
            return
        pod = self.pods[delete.name]
        assert pod.metadata.uid == delete.uid
        if delete.grace_seconds == 0 or not self.keep_deleted or not pod.spec.node_name or pod.finished:
            del self.pods[delete.name]
            return
        grace = 75 if delete.grace_seconds is None else delete.grace_seconds
        wire = msgspec.to_builtins(pod)
        wire["metadata"]["deletionTimestamp"] = stamp(self.now + timedelta(seconds=grace))
        wire["metadata"]["deletionGracePeriodSeconds"] = grace
        self.pods[delete.name] = msgspec.convert(wire, Pod)

    def _patch(self, patch: Patch) -> None:
        there: Any = self.services if patch.kind == "Service" else self.scalers
        there[patch.name] = patched(there[patch.name], patch.change)


def replicas(pods: Iterable[Pod]) -> set[str]:
    """The replicas that pods belong to."""
    return {pod.name.rsplit("-", 1)[0] for pod in pods}

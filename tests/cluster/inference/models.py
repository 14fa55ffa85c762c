"""The TPUInferences of a test: made, broken and looked at, and a watch that judges what is to be seen."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Self

from tests.kube import POD, Kube, Object, wait_for

if TYPE_CHECKING:
    from pathlib import Path

INFERENCE = ("tpu-operator.dev/v1alpha1", "TPUInference")
SCALER = ("tpu-operator.dev/v1alpha1", "TPUInferenceScaler")
REVISION = ("apps/v1", "ControllerRevision")
PREFIX = "tpu-operator.dev/"
TPU = {"accelerator": "v5e", "topology": "4x4"}
"""Four hosts of four chips: one node pool of the cluster's four."""
HOSTS = 4
ONE_HOST = {"accelerator": "v5e", "topology": "2x2"}
HELD: Object = {"metadata": {"annotations": {"devcluster/hold": "true"}}}
"""A template whose pods never become ready."""


def role(name: str, replicas: int = 1, **more: Any) -> Object:
    return {"name": name, "type": name, "replicas": replicas, "tpu": TPU} | more


def image(tag: str) -> Object:
    return {"type": "vllm", "image": f"example/vllm:{tag}"}


class Models:
    """The TPUInferences of one namespace."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self.kube, self.namespace = kube, namespace

    def create(self, name: str = "qwen", **spec: Any) -> Object:
        """One prefill and one decode replica, of four hosts each."""
        body = {
            "model": {"name": "Qwen/Qwen3-32B"},
            "engine": {"type": "vllm"},
            "drain": {"routeAwaySeconds": 0, "engineSeconds": 0},
            "roles": [role("prefill"), role("decode")],
        } | spec
        return self.kube.create(INFERENCE, {"metadata": {"name": name}, "spec": body}, self.namespace)

    def get(self, name: str = "qwen") -> Object:
        return self.kube.get(INFERENCE, name, self.namespace) or {}

    def status(self, name: str = "qwen") -> Object:
        return dict(self.get(name).get("status", {}))

    def change(self, name: str = "qwen", **spec: Any) -> None:
        """Edit the spec."""
        self.kube.patch(INFERENCE, name, self.namespace, {"spec": spec})

    def reaches(self, phase: str, name: str = "qwen", **wanted: Any) -> Object:
        """Wait until the status is about the latest spec, of that phase, and says what is wanted."""

        def there() -> Object | None:
            found = self.get(name)
            status: Object = found.get("status", {})
            seen = status.get("observedGeneration") == found.get("metadata", {}).get("generation")
            right = all(status.get(key) == value for key, value in wanted.items())
            return status if seen and right and status.get("phase") == phase else None

        try:
            return wait_for(there, f"phase {phase} of {name} and {wanted}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {json.dumps(self.status(name), indent=1)}") from None

    def serves(self, name: str = "qwen", **wanted: Any) -> Object:
        """Wait until all replicas are ready, and of the revision that the spec has."""

        def done() -> Object | None:
            status = self.reaches("Serving", name, **wanted)
            over = status["currentRevision"] == status["updatedRevision"] and len(status["revisions"]) == 1
            return status if over else None

        return wait_for(done, f"{name} to serve by one revision")

    def pods(self, name: str = "qwen", **labels: str) -> dict[str, Object]:
        """Pods by name; labels without their prefix."""
        selector = ",".join(f"{PREFIX}{key}={value}" for key, value in {"inference": name, **labels}.items())
        return {pod["metadata"]["name"]: pod for pod in self.kube.list(POD, self.namespace, selector)}

    def condition(self, kind: str, name: str = "qwen") -> Object:
        """A condition; empty if it is not there."""
        found = self.status(name).get("conditions", [])
        return next((dict(condition) for condition in found if condition["type"] == kind), {})

    def has_condition(self, kind: str, status: str, reason: str, name: str = "qwen") -> Object:
        """Wait for a condition."""

        def there() -> Object | None:
            found = self.condition(kind, name)
            return found if (found.get("status"), found.get("reason")) == (status, reason) else None

        try:
            return wait_for(there, f"{kind} of {name} to be {status}/{reason}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {json.dumps(self.status(name), indent=1)}") from None

    def end_pod(self, pod: str, exit_code: int = 1) -> None:
        """End a pod as its kubelet would, with a report of the launcher."""
        report = {"v": 1, "cause": "UserError", "exitCode": exit_code, "time": time.time(), "error": "boom"}
        state = {"terminated": {"exitCode": exit_code, "reason": "Error", "message": json.dumps(report)}}
        container = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
        status = {"phase": "Failed", "containerStatuses": [container | {"state": state}]}
        self.kube.patch_status(POD, pod, self.namespace, status)

    def scale(self, kind: tuple[str, str], name: str, replicas: int | None = None) -> Object:
        """Read or write `/scale`, as kubectl and autoscalers do."""
        scale = self.kube.resource(kind).subresources["scale"]
        if replicas is None:
            found: Object = scale.get(name=name, namespace=self.namespace).to_dict()
            return found
        body = {"spec": {"replicas": replicas}}
        merge = "application/merge-patch+json"
        written: Object = scale.patch(
            name=name, namespace=self.namespace, body=body, content_type=merge
        ).to_dict()
        return written


def uids(pods: dict[str, Object]) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in pods.items()}


def label(pod: Object, key: str) -> str:
    return str(pod["metadata"]["labels"].get(PREFIX + key, ""))


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    ready = any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


class Judge:
    """Watches the pods of a TPUInference at the API server, and judges every state that there is.

    Attributes:
        complaints: what was not as it should be.
        states: how many states there were.
        revisions: all revisions that pods were of.
        uids: of all pods that there were, by name.
        drift: by how much the parts that roles of one revision have of `least` ever differed.

    Args:
        kubeconfig: how to reach the cluster.
        namespace: where it is.
        most: by role, the replicas that there may be, those included that are on their way out.
        least: by role, the replicas that have to be ready.
        name: its name.
        hosts: of each replica.
    """

    def __init__(
        self,
        kubeconfig: Path,
        namespace: str,
        most: dict[str, int],
        least: dict[str, int],
        name: str = "qwen",
        hosts: int = HOSTS,
    ) -> None:
        self._kube, self._namespace, self._name = Kube(kubeconfig), namespace, name
        self._most, self._least, self._hosts = most, least, hosts
        self._pods: dict[str, Object] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.complaints: list[str] = []
        self.states = 0
        self.revisions: set[str] = set()
        self.uids: defaultdict[str, set[str]] = defaultdict(set)
        self.drift = 0.0

    def __enter__(self) -> Self:
        found = self._kube.resource(POD).get(namespace=self._namespace, label_selector=self._selector)
        raw = found.to_dict()
        self._version = raw["metadata"]["resourceVersion"]
        self._pods = {pod["metadata"]["name"]: pod for pod in raw["items"]}
        self._judge()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        assert not self.complaints, "\n".join(self.complaints[:20])
        assert self.states > 1, "nothing was seen"

    def stop(self) -> None:
        """Judge no more."""
        self._over.set()
        self._thread.join(timeout=30)
        assert not self._thread.is_alive()

    @property
    def _selector(self) -> str:
        return f"{PREFIX}inference={self._name}"

    def _run(self) -> None:
        watch = self._kube.resource(POD).watch
        while not self._over.is_set():
            events = watch(
                namespace=self._namespace,
                label_selector=self._selector,
                resource_version=self._version,
                timeout=2,
            )
            for event in events:
                pod = event["raw_object"]
                self._version = pod["metadata"]["resourceVersion"]
                if event["type"] == "DELETED":
                    self._pods.pop(pod["metadata"]["name"], None)
                else:
                    self._pods[pod["metadata"]["name"]] = pod
                self._judge()

    def _judge(self) -> None:
        self.states += 1
        there: defaultdict[str, set[str]] = defaultdict(set)
        ready: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        for name, pod in self._pods.items():
            self.uids[name].add(pod["metadata"]["uid"])
            replica = f"{label(pod, 'revision')}-{label(pod, 'replica')}"
            there[label(pod, "role")].add(replica)
            if is_ready(pod):
                ready[label(pod, "role"), label(pod, "revision"), replica] += 1
        whole = [key for key, hosts in ready.items() if hosts == self._hosts]
        for role_name, most in self._most.items():
            if len(there[role_name]) > most:
                self.complaints.append(f"{role_name}: more than {most} replicas: {sorted(there[role_name])}")
        for role_name, least in self._least.items():
            found = [replica for name, _, replica in whole if name == role_name]
            if len(found) < least:
                self.complaints.append(f"{role_name}: fewer than {least} ready replicas: {found}")
        if self._least and not self._complete(whole):
            self.complaints.append(f"no revision has a ready replica of every role: {whole}")
        self._weigh()

    def _weigh(self) -> None:
        """See how far the roles of each revision are apart, by the replicas that are to stay."""
        kept: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for pod in self._pods.values():
            if pod["metadata"]["labels"].get("llm-d.ai/inference-serving") == "true":
                kept[label(pod, "revision")][label(pod, "role")] += "deletionTimestamp" not in pod["metadata"]
        self.revisions |= kept.keys()
        for counts in kept.values():
            parts = [counts[role_name] / least for role_name, least in self._least.items() if least]
            self.drift = max(self.drift, max(parts, default=0) - min(parts, default=0))

    def _complete(self, whole: list[tuple[str, str, str]]) -> bool:
        roles: defaultdict[str, set[str]] = defaultdict(set)
        for name, revision, _ in whole:
            roles[revision].add(name)
        return any(self._least.keys() <= found for found in roles.values())

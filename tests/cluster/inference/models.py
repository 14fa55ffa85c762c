"""The TPUInferences of a test: made, broken, looked at and judged."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from tests.judge import Bounds, Judge
from tests.kube import POD, Kube, Object, unready, wait_for

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
            raise AssertionError(f"{error}; {self.shown(name)}") from None

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
            raise AssertionError(f"{error}; {self.shown(name)}") from None

    def shown(self, name: str = "qwen") -> str:
        """What the operator says, and how the API server has the pods."""
        return f"it is {json.dumps(self.status(name), indent=1)}{unready(self.pods(name).values())}"

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


def judged(
    kubeconfig: Path, namespace: str, most: dict[str, int], least: dict[str, int], hosts: int = HOSTS
) -> Judge:
    """A watch of the TPUInference `qwen` by which the test fails if a promise is broken.

    Args:
        kubeconfig: how to reach the cluster.
        namespace: where it is.
        most: by role, the replicas that there may be, those included that are on their way out.
        least: by role, the replicas that have to serve.
        hosts: of each replica.
    """
    return Judge(kubeconfig, namespace, "qwen", Bounds(hosts, most, least))

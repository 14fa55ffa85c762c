"""The jobs of a test: made, broken and looked at as people, kubelets and schedulers do."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.kube import POD, TPUJOB, Kube, Object, unready, wait_for

ATTEMPT = "tpu-operator.dev/attempt"
HOLD = {"metadata": {"finalizers": ["example.com/hold"]}}
"""Keeps a deleted pod where it is, as a kubelet does that has not ended its processes yet."""
RELEASE: Object = {"metadata": {"finalizers": None}}


class Jobs:
    """The jobs of one namespace."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self.kube, self.namespace = kube, namespace

    def create(self, name: str = "train", **spec: Any) -> Object:
        body = {
            "tpu": {"accelerator": "v5e", "topology": "4x4"},
            "run": {"command": ["python", "train.py"]},
        } | spec
        return self.kube.create(TPUJOB, {"metadata": {"name": name}, "spec": body}, self.namespace)

    def get(self, name: str = "train") -> Object:
        return self.kube.get(TPUJOB, name, self.namespace) or {}

    def status(self, name: str = "train") -> Object:
        return dict(self.get(name).get("status", {}))

    def reaches(self, phase: str, name: str = "train", restarts: int | None = None) -> Object:
        """Wait for a phase, and for a number of restarts."""

        def there() -> Object | None:
            status = self.status(name)
            counted = restarts is None or status.get("restarts", {}).get("total") == restarts
            return status if counted and status.get("phase") == phase else None

        try:
            return wait_for(there, f"phase {phase} of {name}")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.shown(name)}") from None

    def blocked(self, reason: str, name: str = "train") -> str:
        """Wait until the job is blocked for that reason; the message."""
        try:
            condition = wait_for(lambda: self._blocked(name, reason), f"{name} to be blocked by {reason}")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.shown(name)}") from None
        return str(condition["message"])

    def _blocked(self, name: str, reason: str) -> Object | None:
        for condition in self.status(name).get("conditions", []):
            if (condition["type"], condition["status"], condition["reason"]) == ("Blocked", "True", reason):
                return dict(condition)
        return None

    def shown(self, name: str = "train") -> str:
        """What the operator says, and how the API server has the pods."""
        return f"it is {json.dumps(self.status(name), indent=1)}{unready(self.pods(name).values())}"

    def pods(self, name: str = "train") -> dict[str, Object]:
        found = self.kube.list(POD, self.namespace, f"tpu-operator.dev/job={name}")
        return {pod["metadata"]["name"]: pod for pod in found}

    def pod_status(self, pod: str, **status: Any) -> None:
        """Say something of a pod, as its kubelet would."""
        self.kube.patch_status(POD, pod, self.namespace, status)

    def change(self, name: str = "train", **spec: Any) -> None:
        """Edit a job's spec."""
        self.kube.patch(TPUJOB, name, self.namespace, {"spec": spec})

    def restarted(self, times: int) -> None:
        """Wait until that many restarts are on record."""
        wait_for(lambda: self.status()["restarts"]["total"] == times, f"restart number {times}")

    def seen(self, name: str = "train") -> None:
        """Wait until the operator has seen a job's latest spec."""
        generation = self.get(name)["metadata"]["generation"]
        wait_for(lambda: self.status(name).get("observedGeneration") == generation, "the spec to be seen")

    def condition(self, kind: str, name: str = "train") -> Object:
        """A condition of a job; empty if it is not there."""
        found = self.status(name).get("conditions", [])
        return next((dict(condition) for condition in found if condition["type"] == kind), {})

    def end_pod(self, pod: str, exit_code: int, after: float = 0.0, error: str = "") -> None:
        """End a pod as its kubelet would, with a report of the launcher."""
        report = {
            "v": 1,
            "cause": "UserError",
            "exitCode": exit_code,
            "time": time.time() + after,
            "error": error,
        }
        terminated = {
            "exitCode": exit_code,
            "reason": "Error" if exit_code else "Completed",
            "message": json.dumps(report) if exit_code else "",
        }
        status = {
            "phase": "Failed" if exit_code else "Succeeded",
            "containerStatuses": [
                {
                    "name": "main",
                    "image": "example",
                    "imageID": "",
                    "ready": False,
                    "restartCount": 0,
                    "state": {"terminated": terminated},
                }
            ],
        }
        self.pod_status(pod, **status)


def uids(pods: dict[str, Object]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods.values()}


def restarts(status: Object) -> tuple[int, int, dict[str, int]]:
    """Restarts in all, those that count, and all by cause."""
    found = status["restarts"]
    return found["total"], found["counted"], found["byCause"]


def attempts(pods: dict[str, Object]) -> set[str]:
    return {pod["metadata"]["labels"][ATTEMPT] for pod in pods.values()}


def of_slice(pods: dict[str, Object], index: int) -> dict[str, Object]:
    """The pods of one slice."""
    return {
        name: pod
        for name, pod in pods.items()
        if pod["metadata"]["labels"]["tpu-operator.dev/slice"] == str(index)
    }

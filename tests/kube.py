"""What tests ask of a cluster: objects as plain dicts, and waiting for what they should become."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, TypeVar

import kubernetes
import kubernetes.dynamic
from kubernetes.dynamic.exceptions import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

Object = dict[str, Any]
T = TypeVar("T")

TPUJOB = ("tpu-operator.dev/v1alpha1", "TPUJob")
POD = ("v1", "Pod")
NODE = ("v1", "Node")
SERVICE = ("v1", "Service")
NAMESPACE = ("v1", "Namespace")
EVENT = ("events.k8s.io/v1", "Event")
LEASE = ("coordination.k8s.io/v1", "Lease")
QUOTA = ("v1", "ResourceQuota")
NODE = ("v1", "Node")
POD_GROUP = ("scheduling.k8s.io/v1beta1", "PodGroup")
MERGE = "application/merge-patch+json"
PATIENCE = 180.0
"""Seconds; generous, as a loaded machine is no bug of the operator's."""


class Kube:
    """A cluster.

    Args:
        kubeconfig: how to reach it.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self._client = kubernetes.dynamic.DynamicClient(
            kubernetes.config.new_client_from_config(str(kubeconfig))
        )

    def resource(self, kind: tuple[str, str]) -> Any:
        """The client of one kind."""
        return self._client.resources.get(api_version=kind[0], kind=kind[1])

    def create(self, kind: tuple[str, str], manifest: Object, namespace: str = "") -> Object:
        body = {"apiVersion": kind[0], "kind": kind[1]} | manifest
        found: Object = self.resource(kind).create(body=body, namespace=namespace or None).to_dict()
        return found

    def get(self, kind: tuple[str, str], name: str, namespace: str = "") -> Object | None:
        try:
            found: Object = self.resource(kind).get(name=name, namespace=namespace or None).to_dict()
        except NotFoundError:
            return None
        return found

    def list(self, kind: tuple[str, str], namespace: str, selector: str = "") -> list[Object]:
        found = self.resource(kind).get(namespace=namespace, label_selector=selector)
        return list(found.to_dict()["items"])

    def delete(self, kind: tuple[str, str], name: str, namespace: str = "", **options: Any) -> None:
        with contextlib.suppress(NotFoundError):
            self.resource(kind).delete(name=name, namespace=namespace or None, body=options or None)

    def patch(self, kind: tuple[str, str], name: str, namespace: str, patch: Object) -> Object:
        found: Object = (
            self.resource(kind)
            .patch(name=name, namespace=namespace, body=patch, content_type=MERGE)
            .to_dict()
        )
        return found

    def patch_status(self, kind: tuple[str, str], name: str, namespace: str, status: Object) -> None:
        self.resource(kind).status.patch(
            name=name, namespace=namespace, body={"status": status}, content_type=MERGE
        )


def unready(pods: Iterable[Object]) -> str:
    """The pods that the API server has as not ready, for the message of a test that has waited in vain.

    An operator has missed what it does not show here; what it does show, kubelet or kwok has not done.
    """
    return "; not ready at the API server: " + (", ".join(filter(None, map(_unready, pods))) or "no pod")


def _unready(pod: Object) -> str:
    status = pod.get("status", {})
    ready = next((each["status"] for each in status.get("conditions") or () if each["type"] == "Ready"), None)
    going = "deletionTimestamp" in pod["metadata"]
    if ready == "True" and not going:
        return ""
    node = pod["spec"].get("nodeName", "no node")
    state = f"{status.get('phase')}, Ready={ready}" + (", Terminating" if going else "")
    return f"{pod['metadata']['name']} on {node} ({state})"


def wait_for(what: Callable[[], T | None], why: str, patience: float = PATIENCE) -> T:
    """Ask until the answer is true.

    Raises:
        AssertionError: it was not in time; says what was waited for and what came last.
    """
    deadline = time.monotonic() + patience
    while True:
        answer = what()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {patience:.0f} s for {why}; last answer: {answer!r}")
        time.sleep(0.1)

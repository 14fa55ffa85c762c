"""A client that puts TPUJobs before the real API server."""

import json
import subprocess
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from kubernetes import client, config

from tpu_operator.api import GROUP, VERSION

CRDS = Path(__file__).parents[3] / "crds"
Object = dict[str, Any]
_NAMESPACE: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "api-"}}


class ControlPlane(Protocol):
    """What these tests need of a running cluster."""

    kubeconfig: Path
    kubectl: Path


def job(changes: dict[str, Any] | None = None, *, name: str = "hello") -> Object:
    """Return the smallest TPUJob with fields replaced by dotted path; None removes a field."""
    result: Object = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TPUJob",
        "metadata": {"name": name},
        "spec": {
            "tpu": {"accelerator": "v5e", "topology": "4x4"},
            "run": {"command": ["python", "train.py"]},
        },
    }
    for path, value in (changes or {}).items():
        *parents, last = path.split(".")
        target = result["spec"]
        for parent in parents:
            target = target.setdefault(parent, {})
        if value is None:
            del target[last]
        else:
            target[last] = deepcopy(value)
    return result


def inference(spec: Object) -> Object:
    """Return the smallest TPUInference with fields added."""
    serve = {"name": "serve", "type": "prefill-decode", "tpu": {"accelerator": "v6e", "topology": "2x2"}}
    engine = {"type": "vllm", "image": "vllm:v1"}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TPUInference",
        "metadata": {"name": "hello"},
        "spec": {"model": {"name": "m"}, "engine": engine, "roles": [serve], **spec},
    }


class Jobs:
    """TPUJobs in a namespace of their own."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane
        self.kubectl("apply", "--server-side", "--filename", str(CRDS))
        # A CRD that was made a moment ago has no conditions, which kubectl does not wait for by itself.
        for state in ("jsonpath={.status.conditions}", "condition=Established"):
            self.kubectl("wait", f"--for={state}", "--filename", str(CRDS), "--timeout=60s")
        created = self.kubectl("create", "--filename=-", "--output=json", stdin=_NAMESPACE)
        self.namespace: str = json.loads(created)["metadata"]["name"]
        self._path = (GROUP, VERSION, self.namespace, "tpujobs")
        self._objects = client.CustomObjectsApi(config.new_client_from_config(str(control_plane.kubeconfig)))

    def kubectl(self, *arguments: str, stdin: Object | None = None) -> str:
        """Run kubectl and return what it prints."""
        done = subprocess.run(
            [self._control_plane.kubectl, "--kubeconfig", self._control_plane.kubeconfig, *arguments],
            input=json.dumps(stdin) if stdin else None,
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refusal(self, body: Object) -> str:
        """Offer an object of any of our kinds; return the API server's objection, or "" if it has none."""
        path = (*self._path[:-1], f"{body['kind'].lower()}s")
        create = partial(self._objects.create_namespaced_custom_object, *path, body)
        return objection(partial(create, dry_run="All", field_validation="Strict"))

    def create(self, body: Object) -> Object:
        """Create an object."""
        return _object(self._objects.create_namespaced_custom_object(*self._path, body))

    def get(self, name: str) -> Object:
        """Read an object."""
        return _object(self._objects.get_namespaced_custom_object(*self._path, name))

    def update(self, name: str, changes: Object) -> str:
        """Put `job(changes)` in place of an object; return the API server's objection, or ""."""
        body = job(changes, name=name)
        body["metadata"]["resourceVersion"] = self.get(name)["metadata"]["resourceVersion"]
        return objection(partial(self._objects.replace_namespaced_custom_object, *self._path, name, body))

    def write_status(self, name: str, status: Object) -> Object:
        """Put a status in place of the present one."""
        body = {**self.get(name), "status": status}
        return _object(self._objects.replace_namespaced_custom_object_status(*self._path, name, body))

    def apply(self, body: Object) -> Object:
        """Apply an object as a user of server-side apply does."""
        command = ("apply", "--server-side", "--filename=-", "--output=json")
        return _object(json.loads(self.kubectl(*command, f"--namespace={self.namespace}", stdin=body)))


def objection(call: Callable[[], object]) -> str:
    """Return the message of the API server's refusal of a call, or "" if it accepts."""
    try:
        call()
    except client.ApiException as error:
        return str(json.loads(error.body or "{}")["message"])
    return ""


def _object(value: Any) -> Object:
    return dict(value)

"""The API of custom metrics, by which an autoscaler learns the load of pods: as much as the test says."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, unquote, urlsplit

from tests.kube import POD, SERVICE, Kube, wait_for

if TYPE_CHECKING:
    from hack.devcluster import Cluster
    from tests.kube import Object

GROUP: Final = "custom.metrics.k8s.io"
VERSION: Final = f"{GROUP}/v1beta2"
API_SERVICE: Final = ("apiregistration.k8s.io/v1", "APIService")
AUTOSCALER: Final = ("autoscaling/v2", "HorizontalPodAutoscaler")
METRIC: Final = "load"


class Loads:
    """Serves the load of pods: the same for each of those that are asked about, `total` for all of them.

    Attributes:
        total: the load of all.
        selectors: by which pods were asked about.

    Args:
        cluster: the cluster that asks.
        namespace: where the Service is by which it finds us.
    """

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.total = 0
        self.selectors: set[str] = set()
        self._kube, self._namespace = Kube(cluster.kubeconfig), namespace
        self._host = cluster.host_ip
        loads = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                loads._answer(self)

            def log_message(self, *_: object) -> None:
                """Be silent."""

        self._server = ThreadingHTTPServer((self._host, 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Whose certificate it is does not matter to the API server, as it is told below.
        config = cluster.layout.config
        context.load_cert_chain(config / "apiserver.crt", config / "apiserver.key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def start(self) -> None:
        """Begin to serve, as a part of the cluster's API."""
        self._thread.start()
        service = {"type": "ExternalName", "externalName": self._host}
        self._kube.create(SERVICE, {"metadata": {"name": "loads"}, "spec": service}, self._namespace)
        spec: Object = {
            "group": GROUP,
            "version": "v1beta2",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {
                "namespace": self._namespace,
                "name": "loads",
                "port": self._server.server_address[1],
            },
        }
        self._kube.create(API_SERVICE, {"metadata": {"name": f"v1beta2.{GROUP}"}, "spec": spec})
        wait_for(self._is_available, "the API of custom metrics to be there")

    def _is_available(self) -> bool:
        found = self._kube.get(API_SERVICE, f"v1beta2.{GROUP}") or {}
        conditions = found.get("status", {}).get("conditions") or ()
        return any((each["type"], each["status"]) == ("Available", "True") for each in conditions)

    def stop(self) -> None:
        """Take the API away, and end."""
        self._kube.delete(API_SERVICE, f"v1beta2.{GROUP}")
        wait_for(lambda: self._kube.get(API_SERVICE, f"v1beta2.{GROUP}") is None, "the API to be gone")
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        path = unquote(url.path).removeprefix(f"/apis/{VERSION}")
        selector = parse_qs(url.query).get("labelSelector", [""])[0]
        if path == f"/namespaces/{self._namespace}/pods/*/{METRIC}":
            self.selectors.add(selector)
            found = self._loads(selector)
        elif path == "":
            found = RESOURCES
        else:
            request.send_error(404)
            return
        data = json.dumps(found).encode()
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        with contextlib.suppress(ConnectionError):
            request.wfile.write(data)

    def _loads(self, selector: str) -> Object:
        found = self._kube.list(POD, self._namespace, selector)
        pods = [pod for pod in found if pod.get("status", {}).get("phase") == "Running" and not _goes(pod)]
        each = {
            "metric": {"name": METRIC},
            "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "value": f"{1000 * self.total // max(1, len(pods))}m",
        }
        items = [
            each | {"describedObject": {"kind": "Pod", "apiVersion": "v1", **_named(pod)}} for pod in pods
        ]
        return {"kind": "MetricValueList", "apiVersion": VERSION, "metadata": {}, "items": items}


RESOURCES: Final[Object] = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": VERSION,
    "resources": [
        {
            "name": f"pods/{METRIC}",
            "singularName": "",
            "namespaced": True,
            "kind": "MetricValueList",
            "verbs": ["get"],
        }
    ],
}


def _goes(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _named(pod: Object) -> Object:
    return {key: pod["metadata"][key] for key in ("name", "namespace")}


def autoscaler(scaler: str, load: int, most: int) -> Object:
    """A HorizontalPodAutoscaler that is as quick to go down as up.

    Args:
        scaler: the TPUInferenceScaler.
        load: what each replica can bear.
        most: most replicas.
    """
    target = {"apiVersion": "tpu-operator.dev/v1alpha1", "kind": "TPUInferenceScaler", "name": scaler}
    metric = {"metric": {"name": METRIC}, "target": {"type": "AverageValue", "averageValue": str(load)}}
    return {
        "metadata": {"name": scaler},
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": 1,
            "maxReplicas": most,
            "metrics": [{"type": "Pods", "pods": metric}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    }

"""Fake TPU hosts: node objects that kwok keeps alive, and whose pods it reports as running."""

import json
from pathlib import Path
from typing import Any

from hack.devcluster import tpu
from hack.devcluster.api import Api
from hack.devcluster.process import Component
from hack.devcluster.state import Layout, Record

LABEL = {"type": "kwok"}
"""Tells fake nodes from real ones."""
_ANNOTATION = "kwok.x-k8s.io/node"
HOLD = "devcluster/hold"
"""Annotation that makes kwok leave a node or a pod as it is: pending, running, not ready or terminating."""
_IP = "10.200.0.1"
_PODS = "10.128.0.0/12"
NOWHERE = (f"{_IP}/32", _PODS)
"""Addresses of fake nodes and their pods, at which nobody answers."""
_PORT = 10247
_RESOURCES = {"cpu": "96", "memory": "192Gi", "pods": "110", **tpu.RESOURCES}
_NODE_STATUS = """
{{ $now := Now }}
conditions:
{{ range NodeConditions }}
- type: {{ .type | Quote }}
  status: {{ .status | Quote }}
  reason: {{ .reason | Quote }}
  message: {{ .message | Quote }}
  lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
"""
_POD_STATUS = """
{{ $now := Now }}
phase: Running
startTime: {{ $now | Quote }}
conditions:
{{ range (list "Initialized" "ContainersReady" "Ready") }}
- {type: {{ . }}, status: "True", lastTransitionTime: {{ $now | Quote }}}
{{ end }}
{{ range .spec.readinessGates }}
- {type: {{ .conditionType | Quote }}, status: "True", lastTransitionTime: {{ $now | Quote }}}
{{ end }}
initContainerStatuses:
{{ range .spec.initContainers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  restartCount: 0
  ready: true
  {{ if eq .restartPolicy "Always" }}
  started: true
  state: {running: {startedAt: {{ $now | Quote }}}}
  {{ else }}
  state:
    terminated:
      {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}
  {{ end }}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  restartCount: 0
  ready: true
  started: true
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
{{ with NodeIPsWith .spec.nodeName }}
hostIP: {{ index . 0 | Quote }}
hostIPs: [{ip: {{ index . 0 | Quote }}}]
{{ end }}
{{ $meta := .metadata }}
{{ with PodIPsWith .spec.nodeName (or .spec.hostNetwork false) $meta.uid $meta.name $meta.namespace }}
podIP: {{ index . 0 | Quote }}
podIPs: [{ip: {{ index . 0 | Quote }}}]
{{ end }}
"""


def component(layout: Layout, record: Record, bins: dict[str, Path]) -> Component:
    """Describe the kwok process."""
    flags = [f"--kubeconfig={layout.credentials('kwok')}", f"--config={_config(layout)}", "-v=WARN"]
    return Component("kwok", [bins["kwok"], *flags], f"http://{record.server_ip}:{_PORT}/healthz")


def write_files(layout: Layout) -> None:
    """Write kwok's configuration."""
    documents = [_configuration(), *_stages()]
    # JSON is YAML, one document after the other.
    _config(layout).write_text("\n---\n".join(json.dumps(document) for document in documents))


def create_nodes(api: Api, count: int) -> None:
    """Create the node objects."""
    for index in range(count):
        api.create("/api/v1/nodes", node(index))
        # New nodes get a not-ready taint, which the controller manager takes off some 7 nodes a second.
        api.merge(f"/api/v1/nodes/{name(index)}", {"spec": {"taints": [tpu.TAINT]}})


def name(index: int) -> str:
    """Name of a fake node."""
    return f"fake-node-{index}"


def node(index: int) -> dict[str, Any]:
    """Build the object of a fake host; four in a row are one slice and one node pool."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name(index),
            "labels": {
                "kubernetes.io/hostname": name(index),
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                **LABEL,
                **tpu.labels(index, "fake-pool"),
            },
            "annotations": {_ANNOTATION: "fake"},
        },
        "spec": {"taints": [tpu.TAINT]},
        "status": {
            "capacity": _RESOURCES,
            "allocatable": _RESOURCES,
            "addresses": [
                {"type": "InternalIP", "address": _IP},
                {"type": "Hostname", "address": name(index)},
            ],
            "conditions": [{"type": "Ready", "status": "True", "reason": "Fake"}],
        },
    }


def _config(layout: Layout) -> Path:
    return layout.config / "kwok.yaml"


def _configuration() -> dict[str, Any]:
    return {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {
            "manageNodesWithAnnotationSelector": f"{_ANNOTATION}=fake",
            "cidr": _PODS,
            "nodeIP": _IP,
            "nodePort": _PORT,
            # Renewed every quarter of it: a thousand nodes would keep the API server busy with less.
            "nodeLeaseDurationSeconds": 120,
            "nodeLeaseParallelism": 4,
            "nodePlayStageParallelism": 4,
            # Few at a time, the pods of a large job would start one after the other.
            "podPlayStageParallelism": 32,
            "podsOnNodeSyncParallelism": 4,
            "enablePodsOnNodeSyncStreamWatch": True,
        },
    }


def _stages() -> list[dict[str, Any]]:
    """No stage ends a pod: kwok's own would end pods of a Job at once."""
    alive = {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}
    deleted = {"key": ".metadata.deletionTimestamp", "operator": "Exists"}
    pending = {"key": ".status.phase", "operator": "In", "values": ["Pending"]}
    ready = '.status.conditions.[] | select(.type == "Ready") | .status'
    # Its own deletion shows the pod once more, with no grace left; to delete by that would hit a successor.
    grace = ".metadata.deletionGracePeriodSeconds | tostring"
    undecided = {"key": grace, "operator": "NotIn", "values": ["0"]}
    not_ready = {"key": ready, "operator": "NotIn", "values": ["True"]}
    return [
        _stage("Node", "node-ready", [alive, not_ready], {"statusTemplate": _NODE_STATUS}),
        _stage("Pod", "pod-ready", [alive, pending, not_ready], {"statusTemplate": _POD_STATUS}),
        _stage("Pod", "pod-delete", [deleted, undecided], {"delete": True}),
    ]


def _stage(kind: str, name: str, when: list[dict[str, Any]], then: dict[str, Any]) -> dict[str, Any]:
    held = {"key": f'.metadata.annotations["{HOLD}"]', "operator": "DoesNotExist"}
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": [held, *when]},
            "next": then,
        },
    }

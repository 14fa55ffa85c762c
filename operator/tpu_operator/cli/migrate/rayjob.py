"""A RayJob of KubeRay as a TPUJob, and what of it has no place there."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, Final

import msgspec
import yaml

from tpu_operator.api import API_VERSION
from tpu_operator.catalog import CatalogError, find, resolve
from tpu_operator.cli.command import CommandError, Exit

if TYPE_CHECKING:
    from collections.abc import Mapping

Object = dict[str, Any]

TPU: Final = "google.com/tpu"
ACCELERATOR: Final = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY: Final = "cloud.google.com/gke-tpu-topology"
QUEUE: Final = "kueue.x-k8s.io/queue-name"
SAME: Final = ("activeDeadlineSeconds", "suspend", "ttlSecondsAfterFinished", "managedBy")
KUBERAY: Final = "ray.io/kuberay-operator"
"""Manages RayJobs that name nobody else."""
NEEDLESS: Final = {
    "entrypoint",
    "runtimeEnvYAML",
    "rayClusterSpec",
    "backoffLimit",
    "shutdownAfterJobFinishes",
    "submissionMode",
    *SAME,
}
"""Fields that are carried over, or that a TPUJob needs no word for: its cluster ends with its driver."""
OURS: Final = {"name", "image", "command", "args", "env", "resources", "ports", "lifecycle"}
"""Fields of Ray's containers that have a place of their own, or that the launcher sees to."""
SHELL: Final = re.compile(r"[;&|<>$`*?~(){}\n]")


class Translation(msgspec.Struct, frozen=True):
    """A RayJob as a TPUJob.

    Attributes:
        job: the TPUJob.
        left: what has no place in it, each with where it was.
    """

    job: Object
    left: list[str]


def is_rayjob(body: Any) -> bool:
    """Whether a document is a RayJob."""
    if not isinstance(body, dict):
        return False
    return body.get("kind") == "RayJob" and str(body.get("apiVersion", "")).startswith("ray.io/")


def translate(body: Mapping[str, Any]) -> Translation:
    """Make a TPUJob of a RayJob.

    Raises:
        CommandError: it has no group of workers with TPUs, or several, or no slice that exists.
    """
    meta, spec = body.get("metadata") or {}, body.get("spec") or {}
    cluster = spec.get("rayClusterSpec") or {}
    left = [f"spec.{name}" for name in spec if name not in NEEDLESS]
    group = _tpu_group(cluster, left)
    pod = group["template"]["spec"]
    container = pod["containers"][0]
    env = _environment(spec, container, left)
    command = _command(str(spec.get("entrypoint", "")))
    head = _head(cluster, left)
    labels = dict(meta.get("labels") or {})
    queue = labels.pop(QUEUE, None)
    made: Object = {
        "tpu": _tpu(group, pod, container),
        "run": {
            "launcher": "ray",
            **_given(image=container.get("image"), command=command, env=env),
            **_given(resources=_resources(container)),
        },
        **_given(head=head, template=_template(group, pod, container)),
        **_given(scheduling=_given(queueName=queue)),
        **_given(failurePolicy=_given(maxRestarts=spec.get("backoffLimit"))),
        **_given(**{name: spec.get(name) for name in SAME if spec.get(name) != KUBERAY}),
    }
    metadata = _given(name=meta.get("name"), namespace=meta.get("namespace"), labels=labels)
    return Translation(
        {"apiVersion": API_VERSION, "kind": "TPUJob", "metadata": metadata, "spec": made}, sorted(left)
    )


def _tpu_group(cluster: Mapping[str, Any], left: list[str]) -> Object:
    """The group of workers that has TPUs."""
    groups = {
        f"spec.rayClusterSpec.workerGroupSpecs[{index}]": group
        for index, group in enumerate(cluster.get("workerGroupSpecs") or [])
    }
    chips = {where: group for where, group in groups.items() if _chips(group)}
    left += [f"{where}: a group without TPUs" for where in groups.keys() - chips.keys()]
    if len(chips) != 1:
        raise CommandError(
            f"spec.rayClusterSpec.workerGroupSpecs: {len(chips)} groups have a limit of {TPU}",
            Exit.USAGE,
            "a TPUJob is the slices of one kind: write a job for each group, or leave the others out",
        )
    ((where, group),) = chips.items()
    left += [
        f"{where}.{name}" for name in ("minReplicas", "maxReplicas", "rayStartParams") if group.get(name)
    ]
    return dict(group)


def _chips(group: Mapping[str, Any]) -> int:
    containers = group.get("template", {}).get("spec", {}).get("containers") or [{}]
    return int(((containers[0].get("resources") or {}).get("limits") or {}).get(TPU, 0))


def _tpu(group: Mapping[str, Any], pod: Mapping[str, Any], container: Mapping[str, Any]) -> Object:
    selector = pod.get("nodeSelector") or {}
    label, topology = str(selector.get(ACCELERATOR, "")), str(selector.get(TOPOLOGY, ""))
    chips = int(container["resources"]["limits"][TPU])
    try:
        shape = resolve(label, topology, chips)
    except CatalogError as error:
        advice = f"the group of workers needs the node selectors {ACCELERATOR} and {TOPOLOGY}"
        raise CommandError(f"spec.rayClusterSpec.workerGroupSpecs: {error}", Exit.USAGE, advice) from error
    hosts = int(group.get("numOfHosts") or 1)
    if hosts != shape.hosts:
        raise CommandError(
            f"spec.rayClusterSpec.workerGroupSpecs.numOfHosts: {hosts}, but a {topology} with {chips} chips "
            f"on each host has {shape.hosts} hosts",
            Exit.USAGE,
            "correct one of them",
        )
    known = find(label)
    slices = int(group.get("replicas") or 1)
    ambiguous = _needs_chips(label, topology)
    return {
        "accelerator": known.name if known else label,
        "topology": topology,
        **_given(chipsPerHost=chips if ambiguous else None, slices=slices if slices > 1 else None),
    }


def _needs_chips(label: str, topology: str) -> bool:
    try:
        resolve(label, topology)
    except CatalogError:
        return True
    return False


def _command(entrypoint: str) -> list[str]:
    """What a shell would be needed for goes through one."""
    if SHELL.search(entrypoint):
        return ["sh", "-c", entrypoint]
    return shlex.split(entrypoint)


def _environment(spec: Mapping[str, Any], container: Mapping[str, Any], left: list[str]) -> list[Object]:
    runtime = yaml.safe_load(spec.get("runtimeEnvYAML") or "{}") or {}
    left += [f"spec.runtimeEnvYAML: {name}" for name in runtime if name != "env_vars"]
    more = [{"name": name, "value": str(value)} for name, value in (runtime.get("env_vars") or {}).items()]
    return [*(container.get("env") or []), *more]


def _resources(container: Mapping[str, Any]) -> Object:
    """Those beside the chips, which the operator sets."""
    resources = container.get("resources") or {}
    kinds = {kind: {k: v for k, v in (resources.get(kind) or {}).items() if k != TPU} for kind in resources}
    return _given(**kinds)


def _template(group: Mapping[str, Any], pod: Mapping[str, Any], container: Mapping[str, Any]) -> Object:
    """What the pods of workers have of their own."""
    mine = {name: value for name, value in container.items() if name not in OURS}
    selector = {k: v for k, v in (pod.get("nodeSelector") or {}).items() if k not in (ACCELERATOR, TOPOLOGY)}
    tolerations = [each for each in pod.get("tolerations") or [] if each.get("key") != TPU]
    handled = ("containers", "initContainers", "nodeSelector", "tolerations", "restartPolicy", "subdomain")
    rest = {name: value for name, value in pod.items() if name not in handled}
    spec = _given(
        **rest,
        nodeSelector=selector,
        tolerations=tolerations,
        containers=[{"name": "main", **mine}, *pod["containers"][1:]] if mine else pod["containers"][1:],
    )
    return _given(metadata=group["template"].get("metadata"), spec=spec)


def _head(cluster: Mapping[str, Any], left: list[str]) -> Object:
    """The pod of the head, whose main container runs the command."""
    group = cluster.get("headGroupSpec") or {}
    if group.get("rayStartParams"):
        left.append("spec.rayClusterSpec.headGroupSpec.rayStartParams")
    pod = (group.get("template") or {}).get("spec")
    if not pod:
        return {}
    first, *others = pod["containers"]
    main = {k: v for k, v in first.items() if k not in ("name", "command", "args", "ports", "lifecycle")}
    rest = {name: value for name, value in pod.items() if name not in ("containers", "restartPolicy")}
    spec = {**rest, "containers": [{"name": "main", **main}, *others]}
    return _given(metadata=(group.get("template") or {}).get("metadata"), spec=spec)


def _given(**fields: Any) -> Object:
    """Only the fields that have a value."""
    return {name: value for name, value in fields.items() if value not in (None, [], {}, "")}

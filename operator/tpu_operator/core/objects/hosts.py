"""Pods of hosts with TPUs, whatever runs on them: what every kind has in common."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final

from tpu_operator.api import Launcher
from tpu_operator.core import names, notices
from tpu_operator.core.environment import (
    GangSpec,
    Place,
    head_environment,
    overridden,
    tpu_environment,
    with_defaults,
)
from tpu_operator.core.kueue import Grant
from tpu_operator.core.numbers import whole
from tpu_operator.core.objects import hostpaths
from tpu_operator.core.objects.merge import merge
from tpu_operator.core.objects.preflight import preflight
from tpu_operator.core.placement import Demand

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tpu_operator.api import Capacity, RunSpec, Scheduling
    from tpu_operator.core.plan import Manifest
    from tpu_operator.core.settings import PodSettings

LAUNCHER_DIR: Final = "/tpu-operator"
LAUNCHER_FILE: Final = "/usr/local/share/tpu-operator/tpu-launch.pyz"
TOLERATION: Final = {"key": names.TPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}
MAX_VARIABLE: Final = 128 * 1024
LAST_WORDS: Final = 5
"""Seconds of a pod's grace period in which the launcher kills what is left and writes its report."""
STATE_DIR: Final = "/run/tpu-operator"
"""What the launcher remembers over restarts of its container."""
MAINTENANCE_FILE: Final = {
    "path": "maintenance",
    "fieldRef": {"fieldPath": f"metadata.annotations['{names.ANNOTATION_MAINTENANCE}']"},
}
NOTICES_DIR: Final = "/etc/tpu-operator/notices"
"""Where the main container finds what its pod is told while it runs."""
CACHE_DIR: Final = "/var/cache/tpu-operator"


@dataclass(frozen=True, slots=True)
class BuiltPod:
    """A pod, and what in the user's template stands against what we need.

    Attributes:
        manifest: the pod, complete.
        conflicts: fields that the template sets to values under which the pod could not do its work.
        overrides: variables of ours that the user has set differently; the user's values stand.
        lists: the ConfigMap that it refers to, where its lists of hosts are long.
    """

    manifest: Manifest
    conflicts: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    lists: Manifest | None = None


@dataclass(frozen=True, slots=True)
class Fields:
    """Where people find in the object what its pods are made from, for messages."""

    program: str = "spec.run"
    template: str = "spec.template"
    owner: str = "job"


@dataclass(frozen=True, slots=True)
class Seat:
    """Which host a pod is for.

    Attributes:
        name: name of the pod.
        labels: its labels.
        place: its slice, host and attempt.
        slice_id: by which its slice keeps others out of its node pool.
        pool: its node pool; empty to leave that to the scheduler.
        group: the PodGroup that it is scheduled with; empty for none.
    """

    name: str
    labels: Mapping[str, str]
    place: Place
    slice_id: str
    pool: str = ""
    group: str = ""


@dataclass(frozen=True)
class HostFactory:
    """Builds pods of hosts with TPUs.

    Attributes:
        namespace: where they are.
        owner: reference to the object that they go with.
        gang: its slices.
        settings: the installation's choices.
        run: the program of the main container.
        scheduling: how the pods get their nodes.
        capacity: which kind of nodes.
        overlay: merged over the pod before the user's template, in the same form.
        template: the user's, merged over the pod.
        grant: what the admission by a queue adds.
        avoided: nodes that pods without a node pool of our choice should not go to, where there are others.
        fields: what all that is called in the object.
    """

    namespace: str
    owner: Mapping[str, Any]
    gang: GangSpec
    settings: PodSettings
    run: RunSpec
    scheduling: Scheduling
    capacity: Capacity
    overlay: Mapping[str, Any] | None = None
    template: Mapping[str, Any] | None = None
    grant: Grant = field(default_factory=Grant)
    avoided: Sequence[str] = ()
    fields: Fields = field(default_factory=Fields)

    def build(self, seat: Seat) -> BuiltPod:
        """The pod of one host."""
        grouped = {"schedulingGroup": {"podGroupName": seat.group}} if seat.group else {}
        base = self.pod(seat.name, seat.labels, self.spec(seat.slice_id, seat.pool) | grouped, self.grant)
        if self.overlay:
            base = merge(base, self.overlay)
        pod = merge(base, pod_template(self.template))
        _add_dns(pod["spec"])
        overrides = self._add_environment(pod["spec"], seat.place)
        faults = (
            *conflicts(base, pod, self.fields.template),
            *self._main_conflicts(base, pod),
            *hostpaths.refused(base, self.settings, self.fields.program),
            *_oversized(pod["spec"], self.fields.owner),
        )
        return BuiltPod(pod, faults, overrides)

    def head(self, name: str, labels: Mapping[str, str], attempt: int) -> BuiltPod:
        """The pod of a Ray cluster's head: under the launcher, as hosts are, and without TPUs.

        Args:
            name: of the pod.
            labels: its labels.
            attempt: restarts of the gang so far, of any kind.
        """
        granted = {"nodeSelector": {**self.grant.node_selector}, "tolerations": [*self.grant.tolerations]}
        spec = self._launched() | {key: value for key, value in granted.items() if value}
        base = self.pod(name, labels, spec, self.grant)
        pod = merge(base, pod_template(self.template))
        _add_dns(pod["spec"])
        ours = head_environment(self.gang, attempt, _launcher_grace(pod["spec"]), self.settings)
        main = next(each for each in pod["spec"]["containers"] if each["name"] == names.MAIN_CONTAINER)
        overrides = _add_variables(main, ours)
        faults = (
            *conflicts(base, pod, self.fields.template),
            *self._command_conflicts(base, pod),
            *_oversized(pod["spec"], self.fields.owner),
        )
        return BuiltPod(pod, faults, tuple(sorted(overrides)))

    def _command_conflicts(self, base: Manifest, pod: Manifest) -> Iterable[str]:
        """The launcher has to be what runs."""
        command = base["spec"]["containers"][0]["command"]
        mains = (each for each in pod["spec"]["containers"] if each["name"] == names.MAIN_CONTAINER)
        program, template = self.fields.program, self.fields.template
        if any(main.get("command") != command for main in mains):
            yield f"{template}.spec.containers[main].command goes around the launcher: use {program}.command"

    def _main_conflicts(self, base: Manifest, pod: Manifest) -> Iterable[str]:
        """What a template must leave as it is in the containers that hold the chips."""
        by_name = {container["name"]: container for container in pod["spec"]["containers"]}
        main = by_name.get(names.MAIN_CONTAINER, {})
        program, template = self.fields.program, self.fields.template
        yield from self._command_conflicts(base, pod)
        chips = sum(_chips(container) for container in by_name.values())
        needed = self.gang.shape.chips_per_host
        if not _requests_tpu(main):
            yield (
                f"{template}.spec.containers[main] asks for no {names.TPU_RESOURCE}: "
                f"what {program} starts has to hold chips, other containers may hold some of them"
            )
        if chips != needed:
            yield (
                f"{program}.resources and {template}.spec.containers ask for {chips} "
                f"{names.TPU_RESOURCE} in all, a host has {needed} and its slice needs every one"
            )

    def pod(self, name: str, labels: Mapping[str, str], spec: Manifest, grant: Grant) -> Manifest:
        """A pod that its peers find by its name."""
        common = {
            "restartPolicy": "Never",
            "hostname": name,
            "subdomain": self.gang.subdomain,
            "enableServiceLinks": False,
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": {**grant.labels, **labels},
                "ownerReferences": [dict(self.owner)],
                **({"annotations": dict(grant.annotations)} if grant.annotations else {}),
            },
            "spec": common | spec,
        }

    def spec(self, slice_id: str, pool: str) -> Manifest:
        """The spec of a host's pod, without the overlay and the template."""
        spec = self._launched() | {
            "nodeSelector": self.node_selector() | ({names.NODE_POOL: pool} if pool else {}),
            "tolerations": [TOLERATION, *self.grant.tolerations],
        }
        main, chips = spec["containers"][0], {names.TPU_RESOURCE: str(self.gang.shape.chips_per_host)}
        main["resources"] = merge({"limits": chips}, _resources(self.run))
        if self.gang.in_place:
            spec["restartPolicy"] = "OnFailure"  # the kubelet starts the launcher again
        if not pool:
            spec["affinity"] = {"nodeAffinity": _away_from_maintenance(self.avoided)}
        if self.exclusive and not pool:
            spec["affinity"] |= _affinity(slice_id)
        self._add_compile_cache(spec)
        return spec

    def _launched(self) -> Manifest:
        """What all pods have whose main container is run by the launcher."""
        spec: Manifest = {
            "automountServiceAccountToken": False,
            "containers": [self._main_container()],
            "volumes": [
                {"name": "dshm", "emptyDir": {"medium": "Memory"}},
                {"name": "tmp", "emptyDir": {}},
                {"name": "notices", "downwardAPI": {"items": [MAINTENANCE_FILE]}},
            ],
        }
        if self.gang.in_place:
            _add_state(spec)
        if self.scheduling.priority_class_name:
            spec["priorityClassName"] = self.scheduling.priority_class_name
        if self.foreign_image():
            self._add_launcher(spec)
        return spec

    @property
    def exclusive(self) -> bool:
        """Whether each slice needs a node pool of its own."""
        return self.scheduling.placement == "Exclusive" and self.gang.shape.hosts > 1

    @property
    def priority_class(self) -> str:
        """PriorityClass of the workers, empty for the cluster's default."""
        chosen = pod_template(self.template).get("spec", {}).get("priorityClassName")
        return str(chosen or self.scheduling.priority_class_name or "")

    @property
    def chooses_pools(self) -> bool:
        """Whether slices get node pools of our choice, as far as there are any; the user's choice stands."""
        return self.exclusive and names.NODE_POOL not in self.demand.selector

    @cached_property
    def demand(self) -> Demand:
        """What a slice needs of its node pool, the user's own wishes included."""
        spec = pod_template(self.template).get("spec", {})
        chosen = {key: value for key, value in (spec.get("nodeSelector") or {}).items() if value is not None}
        return Demand(
            selector=self.node_selector() | chosen,
            tolerations=[TOLERATION, *self.grant.tolerations, *(spec.get("tolerations") or [])],
            hosts=self.gang.shape.hosts,
            chips=self.gang.shape.chips_per_host,
            shared=self.scheduling.placement == "Shared",
        )

    def node_selector(self) -> dict[str, str]:
        """Labels of the nodes that the workers need."""
        shape = self.gang.shape
        return {
            names.NODE_ACCELERATOR: shape.accelerator,
            names.NODE_TOPOLOGY: shape.topology,
            names.NODE_CHIPS: str(shape.chips_per_host),
            **_capacity_selector(self.capacity),
            **self.grant.node_selector,
        }

    def _main_container(self) -> Manifest:
        run = self.run
        container: Manifest = {
            "name": names.MAIN_CONTAINER,
            "image": run.image or self.settings.runtime_image,
            "command": [*self.launch_command(), "--", *run.command],
            "env": [env.wire() for env in run.env],
            # What a container says that the launcher never got to speak in, or for.
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "ports": [
                {"name": name, "containerPort": port, "protocol": "TCP"}
                for name, port in self.gang.ports.items()
            ],
            "readinessProbe": {
                "httpGet": {"path": "/readyz", "port": self.gang.launcher_port},
                "periodSeconds": 2,
            },
            "volumeMounts": [
                {"name": "dshm", "mountPath": "/dev/shm"},  # noqa: S108
                {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
                {"name": "notices", "mountPath": NOTICES_DIR, "readOnly": True},
            ],
        }
        optional = {"args": run.args, "workingDir": run.working_dir}
        return container | {key: value for key, value in optional.items() if value}

    @property
    def image(self) -> str | None:
        """The image that the user has chosen for the main container."""
        main: Manifest = next(
            (c for c in _containers(pod_template(self.template)) if c.get("name") == names.MAIN_CONTAINER),
            {},
        )
        return main.get("image") or self.run.image

    def foreign_image(self) -> bool:
        """Whether the main container runs an image that does not bring the launcher along."""
        return self.image not in {None, self.settings.runtime_image}

    def launch_command(self) -> list[str]:
        """The launcher, as it is called in the image."""
        if self.foreign_image():
            return ["python3", f"{LAUNCHER_DIR}/tpu-launch.pyz"]
        return ["tpu-launch"]

    def _add_launcher(self, spec: Manifest) -> None:
        mount = {"name": "tpu-operator", "mountPath": LAUNCHER_DIR}
        spec["volumes"].append({"name": "tpu-operator", "emptyDir": {}})
        spec["containers"][0]["volumeMounts"].append(mount)
        spec["initContainers"] = [
            {
                "name": "tpu-launch",
                "image": self.settings.launcher_image,
                "command": ["cp", LAUNCHER_FILE, f"{LAUNCHER_DIR}/"],
                "volumeMounts": [mount],
                # What namespaces of the level "restricted" demand of a container.
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            }
        ]

    def _add_compile_cache(self, spec: Manifest) -> None:
        cache = self.run.compile_cache
        if cache is None:
            return
        main = spec["containers"][0]
        if cache.persistent_volume_claim or cache.host_path:
            source: Manifest = (
                {"persistentVolumeClaim": {"claimName": cache.persistent_volume_claim}}
                if cache.persistent_volume_claim
                else {"hostPath": {"path": cache.host_path, "type": "DirectoryOrCreate"}}
            )
            spec["volumes"].append({"name": "compile-cache", **source})
            main["volumeMounts"].append({"name": "compile-cache", "mountPath": CACHE_DIR})
        root = cache.uri or CACHE_DIR
        ours = {"TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": root, "JAX_COMPILATION_CACHE_DIR": root}
        main["env"] = with_defaults(main["env"], ours)

    def _add_environment(self, spec: Manifest, place: Place) -> tuple[str, ...]:
        """Give every TPU container its variables; returns those that the user has set otherwise."""
        tpu = [container for container in spec["containers"] if _requests_tpu(container)]
        ports = process_ports(tpu, self.gang)
        place = replace(place, grace=_launcher_grace(spec))
        overrides: set[str] = set()
        for index, container in enumerate(tpu):
            here = replace(place, container=index, containers=len(tpu), process_ports=ports)
            overrides |= self._equip(container, here)
        for container in filter(_requests_tpu, spec.get("initContainers", ())):
            here = replace(place, process_ports=ports[:1] or (names.PROCESS_PORT,))
            overrides |= self._equip(container, here)
        if self.run.preflight:
            self._add_preflight(spec)
        return tuple(sorted(overrides))

    def _add_preflight(self, spec: Manifest) -> None:
        main = next(each for each in spec["containers"] if each["name"] == names.MAIN_CONTAINER)
        doctor = preflight(main, self.launch_command(), self.run.command[0])
        spec["initContainers"] = [*spec.get("initContainers", ()), doctor]

    def _equip(self, container: Manifest, place: Place) -> set[str]:
        container["resources"] = _matched(container["resources"])
        return _add_variables(container, tpu_environment(self.gang, place, self.settings))


def _add_variables(container: Manifest, ours: dict[str, str]) -> set[str]:
    """Give a container its variables; returns those that the user has set otherwise."""
    user = container.get("env", [])
    if user:
        ours["TPU_OPERATOR_SET_BY_USER"] = ",".join(sorted({variable["name"] for variable in user}))
    container["env"] = with_defaults(user, ours)
    return set(overridden(user, ours))


def _affinity(slice_id: str) -> Manifest:
    """One slice in one node pool, one pool for one slice: what makes the chips' links a torus."""
    mine: Manifest = {
        "key": names.LABEL_SLICE_ID,
        "operator": "In",
        "values": [slice_id],
    }
    others = [mine | {"operator": "NotIn"}, {"key": names.LABEL_SLICE_ID, "operator": "Exists"}]
    return {
        "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_pool_term([mine])]},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_pool_term(others)]},
    }


def _away_from_maintenance(nodes: Iterable[str]) -> Manifest:
    """What choosing a pool does, for pods that the scheduler finds a place for.

    Maintenance that is scheduled shows in a label of the nodes, which may get it later; of others it takes
    their names. Kubernetes allows one name for each requirement.
    """
    preference: Manifest = {"matchExpressions": [{"key": notices.SCHEDULED, "operator": "DoesNotExist"}]}
    if fields := [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]:
        preference["matchFields"] = fields
    preferred = [{"weight": 100, "preference": preference}]
    return {"preferredDuringSchedulingIgnoredDuringExecution": preferred}


def _add_state(spec: Manifest) -> None:
    """Let the launcher remember what has been, over restarts of its container."""
    main = spec["containers"][0]
    spec["volumes"].append({"name": "state", "emptyDir": {}})
    main["volumeMounts"].append({"name": "state", "mountPath": STATE_DIR})
    main["env"] = with_defaults(main["env"], {"TPU_LAUNCH_STATE_DIR": STATE_DIR})


def pod_template(template: Mapping[str, Any] | None) -> Manifest:
    """The parts of a PodTemplateSpec that a pod takes over."""
    template = template or {}
    metadata = {
        key: template["metadata"][key]
        for key in ("labels", "annotations")
        if key in template.get("metadata", {})
    }
    spec = template.get("spec") or {}
    return ({"metadata": metadata} if metadata else {}) | ({"spec": spec} if spec else {})


def _containers(template: Manifest) -> list[Manifest]:
    return list(template.get("spec", {}).get("containers", []))


def _resources(run: RunSpec) -> Manifest:
    return {key: value for key, value in run.resources.wire().items() if value}


def _capacity_selector(capacity: Capacity | None) -> dict[str, str]:
    """Node labels by which GKE tells one kind of capacity from another."""
    if capacity is None:
        return {}
    wanted = {
        "cloud.google.com/gke-spot": "true" if capacity.spot else None,
        "cloud.google.com/gke-flex-start": "true" if capacity.flex_start else None,
        "cloud.google.com/reservation-name": capacity.reservation,
        "autoscaling.gke.io/provisioning-request": capacity.provisioning_request,
        names.NODE_POOL: capacity.node_pool,
    }
    return {key: value for key, value in wanted.items() if value}


def _pool_term(expressions: list[Manifest]) -> Manifest:
    return {
        "topologyKey": names.NODE_POOL,
        "labelSelector": {"matchExpressions": expressions},
        "namespaceSelector": {},
    }


def _requests_tpu(container: Mapping[str, Any]) -> bool:
    resources = container.get("resources") or {}
    return any(names.TPU_RESOURCE in (resources.get(kind) or {}) for kind in ("limits", "requests"))


def _chips(container: Mapping[str, Any]) -> int:
    amounts = (container.get("resources") or {}).get("limits") or {}
    return whole(str(amounts.get(names.TPU_RESOURCE, 0))) or 0


def _launcher_grace(spec: Manifest) -> int | None:
    """Seconds that the launcher may leave to processes that were told to stop; the kubelet waits longer."""
    seconds = spec.get("terminationGracePeriodSeconds")
    return None if seconds is None else max(seconds - LAST_WORDS, seconds // 2, 0)


def _add_dns(spec: Manifest) -> None:
    """Pods in their nodes' network look names up as nodes do, unless told otherwise, and find no peers."""
    if spec.get("hostNetwork"):
        spec.setdefault("dnsPolicy", "ClusterFirstWithHostNet")


def _oversized(spec: Manifest, owner: str) -> Iterable[str]:
    """Variables that Linux would not pass to a process: it allows 128 KiB for name and value."""
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        for variable in container.get("env", ()):
            size = len(variable["name"]) + len(variable.get("value") or "") + 2
            if size > MAX_VARIABLE:
                yield (
                    f"variable {variable['name']} of container {container['name']} takes {size} bytes, "
                    f"Linux allows {MAX_VARIABLE}: {_remedy(variable['name'], owner)}"
                )


def _remedy(variable: str, owner: str) -> str:
    if variable.startswith(("TPU_", "TORCH_TPU_")):
        return f"shorten the {owner}'s name, which is in every address"
    return "put it into a ConfigMap that is mounted as a file"


def _matched(resources: Manifest) -> Manifest:
    """Resources that request as many chips as they are limited to, wherever the user wrote the number."""
    amounts = {kind: resources.get(kind) or {} for kind in ("requests", "limits")}
    chips = {
        names.TPU_RESOURCE: next(a[names.TPU_RESOURCE] for a in amounts.values() if names.TPU_RESOURCE in a)
    }
    return resources | {kind: chips | amount for kind, amount in amounts.items()}


def process_ports(tpu_containers: list[Manifest], gang: GangSpec) -> tuple[int, ...]:
    """A port for each process of a host; with several TPU containers each holds one process.

    A TPU_PROCESS_PORT that the user gave a container stands, and is the first of the container's ports.
    """
    own = [_user_port(container) for container in tpu_containers]
    if len(own) > 1:
        return tuple(port or names.PROCESS_PORT + i for i, port in enumerate(own))
    first = next(iter(own), None) or names.PROCESS_PORT
    # JAX's coordinator listens in the midst of them, and cannot be told to go elsewhere.
    taken = {names.JAX_COORDINATOR_PORT} if gang.launcher is Launcher.JAX else set()
    ports = (port for port in count(first) if port not in taken)
    return tuple(islice(ports, gang.processes_per_host))


def _user_port(container: Manifest) -> int | None:
    value = next(
        (e.get("value") for e in container.get("env", []) if e.get("name") == "TPU_PROCESS_PORT"), None
    )
    return whole(value)


def conflicts(base: Manifest, pod: Manifest, where: str) -> Iterable[str]:
    """Fields in which the merged pod has lost what it needs to be a member of its gang."""
    paths = [("spec", "restartPolicy"), ("spec", "hostname")]
    labels = [("metadata", "labels", key) for key in base["metadata"]["labels"]]
    selector = [("spec", "nodeSelector", key) for key in base["spec"].get("nodeSelector", {})]
    for path in (*paths, *labels, *selector):
        need, found = _get(base, path), _get(pod, path)
        if need != found:
            field = ".".join(path[:2]) + "".join(f"[{key}]" for key in path[2:])
            shown = "absent" if found is None else repr(found)
            yield f"{where}.{field} is {shown}, the operator needs {need!r}"


def _get(manifest: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        manifest = (manifest or {}).get(key)
    return manifest

"""The environment of TPU containers (contract A3), as pure functions of the job and the host's place.

Sources: what libtpu, JAX, TorchTPU and Ray read when they look for a slice. The rules that are easy to get
wrong: lists are in worker order and equal on all hosts; `MEGASCALE_*` must be empty rather than absent on a
single slice, or JAX asks a metadata server for minutes; `RANK` and `WORLD_SIZE` must not be set on a pod, or
every Python process in it believes that it is a rank.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from tpu_operator.api import Launcher, RestartScope
from tpu_operator.core import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpu_operator.catalog import SliceShape
    from tpu_operator.core.settings import PodSettings

EnvVar = dict[str, Any]

IDENTITY: Final = frozenset(
    {"TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES", "TPU_PROCESS_PORT"}
)
"""Variables that only make sense together: a user who sets the worker id or the hostnames sets them all."""


@dataclass(frozen=True, slots=True)
class GangSpec:
    """The slices that make up one distributed program.

    Attributes:
        kind: "TPUJob" or "TPUInference".
        name: what the names of its pods begin with.
        namespace: its namespace.
        uid: its UID.
        shape: shape of each slice.
        num_slices: equal slices that train together over DCN.
        subdomain: name of the headless Service.
        launcher: how processes are started.
        processes_per_host: processes on each host.
        gate_seconds: how long launchers wait for their peers.
        alone: each slice starts and restarts without the others.
        in_place: processes are started anew in the pods that are there.
        owner: name of the owner, where that is another.
        first: index of the first slice in the names of pods; the program itself counts from 0.
        headed: a pod without TPUs is the head of the Ray cluster, and runs the driver.
    """

    kind: str
    name: str
    namespace: str
    uid: str
    shape: SliceShape
    num_slices: int
    subdomain: str
    launcher: Launcher
    processes_per_host: int
    gate_seconds: int
    alone: bool = False
    in_place: bool = False
    owner: str = ""
    first: int = 0
    headed: bool = False

    def host_names(self, slice_index: int) -> tuple[str, ...]:
        """DNS names of the hosts of one slice, in worker order."""
        return _host_names(self, slice_index)

    def gate(self, slice_index: int) -> str:
        """DNS name of the host at which the launchers of a slice meet with those that restart with it."""
        meet = slice_index if self.alone else self.first
        return names.dns_name(names.worker_name(self.name, meet, 0), self.subdomain)

    @property
    def coordinator(self) -> str:
        """DNS name of host 0 of the first slice."""
        return names.dns_name(names.worker_name(self.name, self.first, 0), self.subdomain)

    @property
    def head(self) -> str:
        """DNS name of the head of the Ray cluster, where that is a pod of its own."""
        return names.dns_name(names.head_name(self.name), self.subdomain) if self.headed else ""

    @property
    def ports(self) -> dict[str, int]:
        """Ports of the pods that others may want to reach, by name."""
        ray = {"ray-dashboard": names.RAY_DASHBOARD_PORT, "ray-metrics": names.RAY_METRICS_PORT}
        return {"launcher": self.launcher_port} | (ray if self.launcher is Launcher.RAY else {})

    @property
    def launcher_port(self) -> int:
        """Port of the launchers, beside the ports that TorchTPU gives to MegaScale whatever it is told."""
        torch = self.launcher in {Launcher.TORCHRUN, Launcher.RAY} and self.num_slices > 1
        # Ray's workers are as many as the user asks it for, up to one for each device.
        ray = self.launcher is Launcher.RAY
        processes = self.shape.devices_per_host if ray else self.processes_per_host
        last = names.MEGASCALE_PORT + 2 * processes - 1
        taken = torch and last >= names.LAUNCHER_PORT
        return names.LAUNCHER_PORT_BESIDE_MEGASCALE if taken else names.LAUNCHER_PORT


@dataclass(frozen=True, slots=True)
class Place:
    """Where a container sits: slice, host in the slice, and which of the pod's TPU containers it is."""

    slice_index: int
    host: int
    attempt: int
    """Restarts of the slice so far, of any kind."""
    container: int = 0
    containers: int = 1
    process_ports: tuple[int, ...] = ()
    """One port per process on a host, over all its TPU containers."""
    grace: int | None = None
    """Seconds that processes have to stop in, where the user has chosen the pod's grace period."""


def tpu_environment(gang: GangSpec, place: Place, settings: PodSettings) -> dict[str, str]:
    """All variables of one TPU container, in a stable order."""
    env = _identity(gang, place)
    env |= {"TPU_NAME": names.slice_name(gang.name, place.slice_index), "TPU_SKIP_MDS_QUERY": "true"}
    env |= _megascale(gang, place)
    env |= _operator(gang, place, settings)
    if gang.launcher in {Launcher.TORCHRUN, Launcher.RAY}:
        env |= _torch(gang, place)
    if gang.launcher is Launcher.RAY or settings.inject_topology_env:
        env |= _accelerator(gang)
    if settings.inject_topology_env:
        env |= _bounds(gang)
    return env


def head_environment(
    gang: GangSpec, attempt: int, grace: int | None, settings: PodSettings
) -> dict[str, str]:
    """All variables of the head of a Ray cluster that has no TPUs: what its launcher needs, and no more.

    Args:
        gang: the slices.
        attempt: restarts of the gang so far, of any kind.
        grace: seconds that processes have to stop in, where the user has chosen the pod's grace period.
        settings: the installation's choices.
    """
    env = _operator(gang, Place(0, 0, attempt, grace=grace), settings)
    place = ("TPU_OPERATOR_SLICE", "TPU_OPERATOR_HOST")
    return {key: value for key, value in env.items() if key not in place} | {
        "TPU_OPERATOR_COMPONENT": names.HEAD
    }


def _identity(gang: GangSpec, place: Place) -> dict[str, str]:
    return {
        "TPU_WORKER_ID": str(place.host * place.containers + place.container),
        "TPU_WORKER_HOSTNAMES": _repeated(gang, place.slice_index, place.containers),
        "TPU_PROCESS_ADDRESSES": _addresses(gang, place.slice_index, place.process_ports),
        "TPU_PROCESS_PORT": str(place.process_ports[place.container]),
    }


# The lists below are equal on all hosts of a slice and reach 100 KB on a thousand of them: built once.


@lru_cache(maxsize=64)
def _host_names(gang: GangSpec, slice_index: int) -> tuple[str, ...]:
    return tuple(
        names.dns_name(names.worker_name(gang.name, slice_index, host), gang.subdomain)
        for host in range(gang.shape.hosts)
    )


@lru_cache(maxsize=64)
def _repeated(gang: GangSpec, slice_index: int, times: int) -> str:
    """Every host of a slice, as many times as it has TPU containers."""
    return ",".join(host for host in gang.host_names(slice_index) for _ in range(times))


@lru_cache(maxsize=64)
def _addresses(gang: GangSpec, slice_index: int, ports: tuple[int, ...]) -> str:
    """Every port of every host of a slice."""
    return ",".join(f"{host}:{port}" for host in gang.host_names(slice_index) for port in ports)


def _megascale(gang: GangSpec, place: Place) -> dict[str, str]:
    many = gang.num_slices > 1
    return {
        "MEGASCALE_NUM_SLICES": str(gang.num_slices) if many else "",
        "MEGASCALE_SLICE_ID": str(place.slice_index - gang.first) if many else "",
        "MEGASCALE_COORDINATOR_ADDRESS": f"{gang.coordinator}:{names.MEGASCALE_PORT}" if many else "",
    }


def _operator(gang: GangSpec, place: Place, settings: PodSettings) -> dict[str, str]:
    shape = gang.shape
    values = {
        "KIND": gang.kind,
        "NAME": gang.owner or gang.name,
        "NAMESPACE": gang.namespace,
        "UID": gang.uid,
        "SLICE": place.slice_index - gang.first,
        "HOST": place.host,
        "NUM_SLICES": gang.num_slices,
        "HOSTS_PER_SLICE": shape.hosts,
        "CHIPS_PER_HOST": shape.chips_per_host,
        "DEVICES_PER_HOST": shape.devices_per_host,
        "PROCESSES_PER_HOST": gang.processes_per_host,
        "TOPOLOGY": shape.topology,
        "ACCELERATOR": shape.accelerator,
        "ATTEMPT": place.attempt,
        "LAUNCHER": gang.launcher,
        "COORDINATOR": gang.gate(place.slice_index),
        "EMULATE": settings.emulate,
    }
    env = {f"TPU_OPERATOR_{key}": str(value) for key, value in values.items()}
    if gang.headed:
        env["TPU_OPERATOR_HEAD"] = gang.head
    if gang.alone:
        env["TPU_OPERATOR_RESTART_SCOPE"] = RestartScope.SLICE
    if gang.launcher_port != names.LAUNCHER_PORT:
        env["TPU_LAUNCH_PORT"] = str(gang.launcher_port)
    if place.grace is not None:
        env["TPU_LAUNCH_GRACE_SECONDS"] = str(place.grace)
    return env | {"TPU_LAUNCH_GATE_TIMEOUT_SECONDS": str(gang.gate_seconds)}


def _torch(gang: GangSpec, place: Place) -> dict[str, str]:
    shape = gang.shape
    ports = tuple(names.SLICEBUILDER_PORT + device for device in range(shape.devices_per_host))
    return {
        "NNODES": str(shape.hosts * gang.num_slices),
        "NODE_RANK": str((place.slice_index - gang.first) * shape.hosts + place.host),
        "MASTER_ADDR": gang.coordinator,
        "MASTER_PORT": str(names.MASTER_PORT),
        "TORCH_TPU_TOPOLOGY": torch_topology(shape),
        "TORCH_TPU_SLICEBUILDER_ADDRESSES": _addresses(gang, place.slice_index, ports),
        "TORCH_TPU_DEVICES_PER_HOST": str(shape.devices_per_host),
        # Any number will do as long as all hosts agree; left alone, each host takes its own clock's.
        "TORCH_TPU_XPROF_SESSION_ID": str(zlib.crc32(gang.uid.encode())),
    }


def torch_topology(shape: SliceShape) -> str:
    """TorchTPU's spelling of a topology: three comma-separated dimensions, a fourth for devices per chip.

    >>> # 4x4 -> 4,4,1 ; 2x2x4 on tpu7x -> 2,2,4,2
    """
    dimensions = [*shape.topology.split("x"), "1", "1"][:3]
    if shape.devices_per_chip > 1:
        dimensions.append(str(shape.devices_per_chip))
    return ",".join(dimensions)


def _accelerator(gang: GangSpec) -> dict[str, str]:
    return _known({"TPU_ACCELERATOR_TYPE": gang.shape.accelerator_type, "TPU_TOPOLOGY": gang.shape.topology})


def _bounds(gang: GangSpec) -> dict[str, str]:
    """What GKE's device plugin sets, under both of the names that it uses."""
    shape = gang.shape
    values = {
        "CHIPS_PER_HOST_BOUNDS": shape.chips_per_host_bounds,
        "HOST_BOUNDS": shape.host_bounds,
        "TOPOLOGY_WRAP": shape.wrap,
        "TOPOLOGY_ALT": "false",
    }
    prefixed = {f"TPU_{key}": value for key, value in values.items()}
    plain = {key.removeprefix("TOPOLOGY_"): value for key, value in values.items()}
    return _known(prefixed | plain)


def _known(values: dict[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in values.items() if value is not None}


def with_defaults(user: Sequence[EnvVar], ours: dict[str, str]) -> list[EnvVar]:
    """The user's variables behind those of ours that the user has not set.

    Ours come first so that a user's value may refer to them as `$(NAME)`.
    """
    taken = {var["name"] for var in user}
    if taken & {"TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES"}:
        taken |= IDENTITY
    return [{"name": key, "value": value} for key, value in ours.items() if key not in taken] + list(user)


def overridden(user: Iterable[EnvVar], ours: dict[str, str]) -> list[str]:
    """Names that the user set to something else than we would have, sorted."""
    return sorted(
        var["name"] for var in user if var["name"] in ours and var.get("value") != ours[var["name"]]
    )

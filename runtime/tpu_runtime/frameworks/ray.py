"""Ray: one cluster of all hosts of a job, with the user's command as its driver.

Each host runs a node (`ray start --block`). One of them, the first host or the pod of `spec.head`, is the
cluster's head, and has the driver beside it, which starts once all chips of the job are in the cluster. A
cluster lives for one attempt: nothing of it is left when the next one starts.
"""

from __future__ import annotations

import json
import os
import pkgutil
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from tpu_runtime import emulate
from tpu_runtime.errors import EXIT_PEERS, LaunchError
from tpu_runtime.frameworks import jax
from tpu_runtime.frameworks.torchtpu import interpreter
from tpu_runtime.memory import limit
from tpu_runtime.names import resolve
from tpu_runtime.output import Line
from tpu_runtime.processes import Command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpu_runtime.environment import HostEnvironment

GCS_PORT = 6379
DASHBOARD_PORT = 8265
METRICS_PORT = 8266
AGENT_PORT = 8267
"""Where each node's agent answers. Ray's own choice is a port that the kernel may give to somebody else."""
HEALTHY = "/api/local_raylet_healthz"

_STARTED = "Ray runtime started"
_TRIES = 10
"""Under load a node that is well is not there in the 30 seconds that Ray gives it."""
_PINNED = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # When a node is told to stop, there is nobody left whose work it could wait for.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    # A node whose dashboard, or server for Ray clients, is not there in time ends by itself.
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300",
    "RAY_START_HOOK": "tpu_runtime.frameworks.rayhook.no_client_server",
    "RAY_TRAIN_CALLBACKS": "tpu_runtime.frameworks.raytrain.AddressesByRank",
}
_MULTISLICE = {
    # Of it, Ray Train makes the coordinator's address. It would take 8081, but TorchTPU listens on 8080.
    "MEGASCALE_PORT": "8080",
}
_PER_CHIP = "RAY_TPU_RESOURCE_PER_CHIP"
_STORE_SHARE = "RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION"
_LEAST_STORE = 80 * 1024**2
_TMP = "/tmp"  # noqa: S108 - Ray's own choice
_SHM = "/dev/shm"  # noqa: S108 - where Ray has its object store
_WAITS = pkgutil.get_data("tpu_runtime.frameworks", "raydriver.py")
_DIED = re.compile(r"\b(\w+) \[exit code=(-?\d+)\]")
_TASK_ERROR = re.compile(r"ray\.exceptions\.RayTaskError\(\w*\): (.*)")
_LOW_ON_MEMORY = "killed due to the node running low on memory"
_LOGS = ("gcs_server.err", "gcs_server.out", "raylet.err", "raylet.out")
_LOGGED = re.compile(r"\[\S+ \S+ ([CEF]) \d+ \d+\] \((\w+)\) \S+:\d+: +(.*)")
_BUG = re.compile(r"^An unexpected system state has occurred\..*? to fix it\. ")
_NOT_COMPLETE = "tpu-launch: the Ray cluster is not complete"


@dataclass(frozen=True)
class Cluster:
    """Where a host finds the cluster, and what it has for it.

    Attributes:
        own: IP address of this host.
        head: IP address of the head.
        memory: bytes that the container may use.
        shm: bytes free in /dev/shm.
    """

    own: str
    head: str
    memory: int
    shm: int

    @property
    def address(self) -> str:
        """Of the head's GCS."""
        host = f"[{self.head}]" if ":" in self.head else self.head
        return f"{host}:{GCS_PORT}"


async def find(env: HostEnvironment) -> Cluster:
    """Look around, once all hosts are there.

    Raises:
        LaunchError: the name of the head, or of this host, leads nowhere.
    """
    head = env.place.head or env.coordinator[0] or env.own_name
    found = os.statvfs(_SHM)
    try:
        addresses = await resolve(env.own_name), await resolve(head)
    except OSError as error:
        raise LaunchError(f"no address of {env.own_name} or {head}: {error}", EXIT_PEERS) from error
    return Cluster(*addresses, memory=limit(), shm=found.f_bavail * found.f_frsize)


def commands(env: HostEnvironment, argv: Sequence[str], cluster: Cluster) -> list[Command]:
    """The processes of this host: its node, and on the head the driver."""
    python = interpreter(argv)
    variables = {**_variables(env), **env.variables, **_emulation(env)}
    ranks = {emulate.WORKER: "1"} if env.hardware.emulated and not env.place.is_head else {}
    node = Command(
        _node(env, python, cluster), {**variables, **ranks}, service="ray", started=_STARTED, tries=_TRIES
    )
    if not env.place.leads:
        return [node]
    assert _WAITS is not None
    chips = env.place.num_hosts * _tpus(env)
    waits = [python, "-c", _WAITS.decode(), cluster.address, str(chips), str(env.settings.gate_timeout)]
    return [node, Command([*waits, *argv], {"RAY_ADDRESS": cluster.address, **variables})]


def _node(env: HostEnvironment, python: str, cluster: Cluster) -> list[str]:
    """The command that starts the node. Its dashboard listens for others on the head alone."""
    head = ["--head", f"--port={GCS_PORT}", "--dashboard-host=0.0.0.0", f"--dashboard-port={DASHBOARD_PORT}"]
    return [
        *(python, "-m", "ray.scripts.scripts", "start", "--block", "--log-style=pretty", "--log-color=false"),
        *(head if env.place.leads else [f"--address={cluster.address}"]),
        f"--node-ip-address={cluster.own}",
        f"--node-name={_node_name(env)}",
        f"--resources={json.dumps(resources(env))}",
        f"--object-store-memory={object_store(env.variables, cluster)}",
        f"--metrics-export-port={METRICS_PORT}",
        f"--dashboard-agent-listen-port={AGENT_PORT}",
    ]


def _node_name(env: HostEnvironment) -> str:
    """The name of the host's pod, by which it is missed, too."""
    place = env.place
    return f"{place.name}-head" if place.is_head else f"{place.name}-{place.slice_index}-{place.host}"


def resources(env: HostEnvironment) -> dict[str, float]:
    """What the node has for tasks beside CPUs and memory; host 0 of a slice is where a slice is asked for."""
    if env.place.is_head:
        return {}
    chips = {"TPU": float(_tpus(env))}
    kind = env.variables.get("TPU_ACCELERATOR_TYPE")
    return {**chips, f"TPU-{_pod_type(kind)}-head": 1.0} if kind and env.place.host == 0 else chips


def _tpus(env: HostEnvironment) -> int:
    """What Ray is to count on this host: chips, or their devices where the user has said so."""
    return env.hardware.chips_per_host * int(env.variables.get(_PER_CHIP) or 1)


def _pod_type(kind: str) -> str:
    """Ray's spelling of TPU_ACCELERATOR_TYPE: tpu7x-16 is v7x-16 there."""
    return re.sub(r"^tpu-?v?", "v", kind)


def object_store(variables: Mapping[str, str], cluster: Cluster) -> int:
    """Bytes for objects: Ray's share of the memory, and never more than /dev/shm holds.

    Ray by itself takes 10 GB of a smaller one, and goes on in files of /tmp.
    """
    try:
        share = float(variables.get(_STORE_SHARE, ""))
    except ValueError:
        share = 0.3
    return max(_LEAST_STORE, min(int(cluster.memory * share), int(cluster.shm * 0.9)))


def _variables(env: HostEnvironment) -> dict[str, str]:
    """What nodes, and the tasks on them, get where neither the operator nor the user says otherwise."""
    pinned = {**_PINNED, **(_MULTISLICE if env.place.num_slices > 1 else {})}
    if env.place.is_head:
        return pinned
    return {**pinned, "TORCH_TPU_TIER2_COMPILATION_CACHE": "default", **jax.variables(env, 0)}


def _emulation(env: HostEnvironment) -> dict[str, str]:
    """What TorchTPU on the CPU needs, in the driver as in the tasks."""
    return emulate.variables(env.variables) if env.hardware.emulated else {}


def forget(variables: Mapping[str, str]) -> None:
    """Remove what an earlier cluster of this pod has left, or a process may take it for the present one."""
    shutil.rmtree(Path(variables.get("RAY_TMPDIR", _TMP)) / "ray", ignore_errors=True)


def died(lines: Sequence[Line]) -> Optional[tuple[str, int]]:
    """The first process of a node that has died, and its exit code, as `ray start --block` tells it."""
    found = next(filter(None, (_DIED.search(line.text) for line in lines)), None)
    return (found.group(1), int(found.group(2))) if found else None


def not_started(raised: Sequence[Line], variables: Mapping[str, str]) -> Optional[Line]:
    """Why a node is not there: its exception, and what the process says that it has not seen start.

    Args:
        raised: from the node's exception on, which may quote logs of its processes.
        variables: those of the node, which say where the other logs are.
    """
    if not raised:
        return None
    folder = Path(variables.get("RAY_TMPDIR", _TMP)) / "ray" / "session_latest" / "logs"
    texts = [line.text for line in raised[1:]]
    said = _complaint(texts) or next(filter(None, (_complaint(_read(folder / name)) for name in _LOGS)), "")
    return Line(raised[0].time, f"{raised[0].text.strip()} {said}".strip())


def _complaint(texts: Sequence[str]) -> str:
    """The last words of a process of Ray's: why it has aborted, or the last error in its log."""
    found = [match.groups() for match in map(_LOGGED.match, texts) if match]
    fatal = [each for each in found if each[0] in "CF"]
    return "".join(f"{name}: {_BUG.sub('', text)}" for _, name, text in (fatal or found)[-1:])


def _read(path: Path) -> Sequence[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return ()


def task_error(lines: Sequence[Line]) -> Optional[Line]:
    """What a task has raised, of an exception of the driver that tells of it; where, in parentheses.

    Args:
        lines: from the driver's exception on.
    """
    where = _TASK_ERROR.match(lines[0].text)
    if not where:
        return None
    last = next((line for line in reversed(lines[1:]) if line.text[:1].strip()), None)
    return Line(lines[0].time, f"{last.text} ({where.group(1)})") if last else None


def out_of_memory(text: str) -> bool:
    """Whether an exception says that Ray has ended a task for want of memory."""
    kind = text.partition(":")[0]
    return kind.startswith("ray.") and ("OutOfMemoryError" in kind or _LOW_ON_MEMORY in text)


def memory_error(lines: Sequence[Line]) -> Optional[Line]:
    """What an exception of Ray's says of workers that it has ended for want of memory, in fifty lines.

    Args:
        lines: from the driver's exception on.
    """
    low = next((line for line in lines if _LOW_ON_MEMORY in line.text), None)
    if low is None or not lines[0].text.startswith("ray."):
        return None
    kind = lines[0].text.partition(":")[0]
    return low if low is lines[0] else Line(lines[0].time, f"{kind}: {low.text.strip()}")


def never_complete(lines: Sequence[Line]) -> Optional[str]:
    """Why the driver was never started, if it was not for want of nodes."""
    found = next((line.text for line in reversed(lines) if line.text.startswith(_NOT_COMPLETE)), None)
    return found.partition(": ")[2] if found else None

"""The environment that the operator gives a TPU container (contract A3), read and checked.

A wrong variable makes a slice hang in native code, minutes later and on all hosts but the one that is wrong.
So everything that can be checked is checked before anything starts, and all problems are told at once.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Optional

from tpu_runtime import gate, invariants
from tpu_runtime.errors import EXIT_ENVIRONMENT, LaunchError

if TYPE_CHECKING:
    from collections.abc import Mapping

LAUNCHERS = ("none", "jax", "torchrun", "ray")
DEFAULT_PORT = 8090
DEFAULT_GATE_TIMEOUT = 600.0
DEFAULT_GRACE = 25.0
IN_PLACE_GRACE = 2.0
"""Where the job is to go on at once: without its peers, a process has little left that it could save."""
DEFAULT_NOTICE_FILE = "/etc/tpu-operator/notices/maintenance"
"""Where the operator has the kubelet write what the pod is told of maintenance."""
DEFAULT_TERMINATION_LOG = "/dev/termination-log"
TERMINATION_LOG = "TPU_LAUNCH_TERMINATION_LOG"
STATE_DIR = "TPU_LAUNCH_STATE_DIR"
"""A directory that outlives the container; there is one where restarts happen in place."""
ATTEMPT = "TPU_OPERATOR_ATTEMPT"
HEAD = "TPU_OPERATOR_HEAD"
"""DNS name of the job's pod without TPUs that runs the head of the Ray cluster, where there is one."""
COMPONENT = "TPU_OPERATOR_COMPONENT"
HANG_SECONDS = "TPU_LAUNCH_HANG_SECONDS"
USERS = "TPU_OPERATOR_SET_BY_USER"
"""Names of the variables that the job's spec gives this container, separated by commas."""

_COORDINATOR = re.compile(r"[^\s:,]+(:\d{1,5})?")
_HOST_NAMES = re.compile(r"[^\s:,]+(,[^\s:,]+)*")
_TOPOLOGY = re.compile(r"[1-9]\d*(x[1-9]\d*){1,2}")

_SOURCES = {
    "TPU_OPERATOR_ACCELERATOR": "spec.tpu.accelerator",
    "TPU_OPERATOR_CHIPS_PER_HOST": "spec.tpu.chipsPerHost and the catalog",
    "TPU_OPERATOR_DEVICES_PER_HOST": "spec.tpu.accelerator and the catalog",
    "TPU_OPERATOR_EMULATE": "the chart's settings",
    "TPU_OPERATOR_HOSTS_PER_SLICE": "spec.tpu.topology",
    "TPU_OPERATOR_LAUNCHER": "spec.run.launcher",
    "TPU_OPERATOR_NUM_SLICES": "spec.tpu.slices",
    "TPU_OPERATOR_PROCESSES_PER_HOST": "spec.run.processesPerHost",
    "TPU_OPERATOR_TOPOLOGY": "spec.tpu.topology",
    "TORCH_TPU_TOPOLOGY": "spec.tpu.topology",
}
_OPERATORS = re.compile(
    r"TPU_OPERATOR_.*|TPU_WORKER_.*|TPU_PROCESS_.*|TPU_NAME|TPU_SKIP_MDS_QUERY|NNODES|NODE_RANK|MASTER_.*"
    r"|MEGASCALE_(NUM_SLICES|SLICE_ID|COORDINATOR_ADDRESS)|TORCH_TPU_.*"
)
"""Variables that the operator sets where the user does not."""


class BadEnvironmentError(LaunchError):
    """The environment is not that of a host of a TPU job.

    Attributes:
        problems: one sentence for each, naming the variable, its value, what was expected and who sets it.
    """

    def __init__(self, problems: list[str]) -> None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        text = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"{count} with the environment of this container:{text}", EXIT_ENVIRONMENT)
        self.problems = problems


@dataclass(frozen=True)
class Place:
    """Which host of which attempt of which job this is.

    Attributes:
        alone: its slice starts and restarts without the others, and so meets at a gate of its own.
        head: DNS name of a pod without TPUs that meets with the hosts, and leads them; empty for none.
        is_head: this is that pod. Its slice and host are those of `gate.HEAD`.
    """

    kind: str
    name: str
    namespace: str
    slice_index: int
    host: int
    num_slices: int
    hosts_per_slice: int
    attempt: int
    uid: str = ""
    alone: bool = False
    head: str = ""
    is_head: bool = False

    @property
    def job(self) -> str:
        """What all hosts of the job have in common, and no other job has, not even a later namesake."""
        return f"{self.kind}/{self.namespace}/{self.name}/{self.uid}"

    @property
    def num_hosts(self) -> int:
        """Hosts of the whole job."""
        return self.num_slices * self.hosts_per_slice

    @property
    def met(self) -> range:
        """Slices that meet at the gate."""
        return range(self.slice_index, self.slice_index + 1) if self.alone else range(self.num_slices)

    @property
    def num_met(self) -> int:
        """Hosts that meet at the gate, the head included."""
        return len(self.met) * self.hosts_per_slice + bool(self.head)

    @property
    def keeps_gate(self) -> bool:
        """Whether the others come to this host."""
        return self.host == 0 and self.slice_index == self.met.start and self.num_met > 1

    @property
    def index(self) -> int:
        """This host's number among all hosts of the job."""
        return self.slice_index * self.hosts_per_slice + self.host

    @property
    def leads(self) -> bool:
        """Whether this host is the one to run what a job has once, such as a driver."""
        return self.is_head if self.head else self.index == 0


@dataclass(frozen=True)
class Hardware:
    """The chips of a host, real or emulated."""

    accelerator: str
    topology: str
    chips_per_host: int
    devices_per_host: int
    emulated: bool


@dataclass(frozen=True)
class Identity:
    """What libtpu and JAX take this container for.

    Attributes:
        worker_id: TPU_WORKER_ID.
        hostnames: TPU_WORKER_HOSTNAMES, in worker order; a host appears once for each of its TPU containers.
        containers: TPU containers on each host.
        addresses: TPU_PROCESS_ADDRESSES; empty where the variable is not set.
    """

    worker_id: int
    hostnames: tuple[str, ...]
    containers: int
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Rendezvous:
    """Where torchrun's agents meet."""

    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int


@dataclass(frozen=True)
class Settings:
    """The launcher's own knobs, seconds where they are times.

    Attributes:
        port: of its HTTP server.
        gate_timeout: how long to wait for the other hosts.
        grace: from the signal to stop until what is left is killed.
        notice_signal: the signal that tells the processes of maintenance; None for none.
        notice_file: where maintenance is announced.
        in_place: when a process has failed anywhere, all hosts meet again and start anew.
        grace_after_failure: for processes that stop since another one has failed.
        hang_seconds: without progress, after which processes are taken for hung; 0 for never, None for the
            default, which counts from the first heartbeat on.
    """

    port: int
    gate_timeout: float
    grace: float
    grace_after_failure: float
    notice_signal: Optional[int] = signal.SIGURG
    notice_file: str = DEFAULT_NOTICE_FILE
    in_place: bool = False
    hang_seconds: Optional[float] = None


@dataclass(frozen=True)
class HostEnvironment:
    """All that the launcher knows about its host.

    Attributes:
        coordinator: host and port of the gate, on the first host of those that meet; no host for one alone.
        processes: processes that this container starts.
        rendezvous: for launcher torchrun only.
        variables: the whole environment, as the user's processes will find it.
    """

    place: Place
    hardware: Hardware
    identity: Identity
    launcher: str
    processes: int
    coordinator: tuple[str, int]
    rendezvous: Optional[Rendezvous]
    settings: Settings
    variables: Mapping[str, str]

    @property
    def own_name(self) -> str:
        """DNS name of this host."""
        return self.identity.hostnames[self.identity.worker_id]

    @property
    def leads(self) -> bool:
        """Whether the others have nothing to do once the processes of this host have ended."""
        return self.launcher == "ray" and self.place.leads

    @property
    def follows(self) -> bool:
        """Whether this host's processes end with those of other hosts."""
        return self.place.num_met > 1 and (self.settings.in_place or self.launcher == "ray")


def at_attempt(env: HostEnvironment, attempt: int) -> HostEnvironment:
    """The environment of another attempt in the same pod."""
    return replace(env, variables={**env.variables, ATTEMPT: str(attempt)})


def read_environment(variables: Mapping[str, str], gate_timeout: Optional[str] = None) -> HostEnvironment:
    """Read and check the environment.

    Args:
        variables: the environment.
        gate_timeout: seconds, from the command line; wins over TPU_LAUNCH_GATE_TIMEOUT_SECONDS.

    Raises:
        BadEnvironmentError: with all problems.
    """
    if gate_timeout is not None:
        variables = {**variables, "TPU_LAUNCH_GATE_TIMEOUT_SECONDS": gate_timeout}
    reader = _Reader(variables)
    place = _place(reader)
    hardware = _hardware(reader, place)
    identity = _identity(reader, place)
    launcher = reader.launcher()
    per_host = 1 if launcher == "ray" else reader.integer("TPU_OPERATOR_PROCESSES_PER_HOST", 1)
    settings = _settings(reader)
    result = HostEnvironment(
        place=place,
        hardware=hardware,
        identity=identity,
        launcher=launcher,
        # Several TPU containers in a pod hold one process each: the operator gives each of them one port.
        processes=per_host if identity.containers == 1 else 1,
        coordinator=_coordinator(reader, place, settings.port),
        rendezvous=_rendezvous(reader) if launcher == "torchrun" else None,
        settings=settings,
        variables=variables,
    )
    for check in invariants.checks(result):
        reader.check(check.ok, check.name, check.expected, *check.others)
    if reader.problems:
        raise BadEnvironmentError(reader.problems)
    return result


@dataclass
class _Reader:
    """Reads variables, collects what is wrong with them, and answers with harmless values in their place."""

    variables: Mapping[str, str]
    problems: list[str] = field(default_factory=list)
    bad: set[str] = field(default_factory=set)

    def complain(self, name: str, expected: str) -> None:
        """Note a problem with a variable."""
        value = self.variables.get(name)
        found = f"{name} is not set" if value is None else f"{name}={value!r}"
        self.problems.append(f"{found}: expected {expected}; set by {setter(name, self.variables)}")
        self.bad.add(name)

    def check(self, ok: bool, name: str, expected: str, *others: str) -> None:
        """Note a problem unless `ok`; does nothing where `name` or `others` are known to be wrong already."""
        if not ok and not self.bad & {name, *others}:
            self.complain(name, expected)

    def text(self, name: str, pattern: Optional[re.Pattern[str]], expected: str) -> str:
        """A value that is there and matches."""
        value = self.variables.get(name, "")
        if not value or (pattern and not pattern.fullmatch(value)):
            self.complain(name, expected)
            return ""
        return value

    def integer(self, name: str, low: int, high: Optional[int] = None) -> int:
        """A whole number of at least `low` and, where given, at most `high`."""
        value = self.variables.get(name, "")
        number = int(value) if re.fullmatch(r"[0-9]{1,9}", value) else None
        if number is None or number < low or (high is not None and number > high):
            self.complain(name, f"a whole number of {low} or more" if high is None else f"{low} to {high}")
            return low
        return number

    def number(self, name: str, default: float) -> float:
        """Seconds; `default` where the variable is absent or empty."""
        value = self.variables.get(name, "")
        if not value:
            return default
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", value):
            self.complain(name, "a number of seconds")
            return default
        return float(value)

    def signal(self, name: str, default: int) -> Optional[int]:
        """A signal by its name; None for "none"."""
        value = self.variables.get(name, "")
        if not value or value == "none":
            return None if value else default
        number = getattr(signal, f"SIG{value.removeprefix('SIG')}", None)
        if not isinstance(number, signal.Signals):
            self.complain(name, "the name of a signal such as USR1, or none")
            return default
        return number

    def launcher(self) -> str:
        """The name of a launcher that this version has."""
        value = self.variables.get("TPU_OPERATOR_LAUNCHER", "")
        if value not in LAUNCHERS:
            self.complain("TPU_OPERATOR_LAUNCHER", f"one of {', '.join(LAUNCHERS)}")
        return value


def by_user(variables: Mapping[str, str]) -> frozenset[str]:
    """Names of the variables that the job has set itself."""
    return frozenset(variables.get(USERS, "").split(","))


def setter(name: str, variables: Mapping[str, str]) -> str:
    """Who to ask about a variable: where it was set, or who should have set it."""
    if name.startswith("TPU_LAUNCH_"):
        return "spec.run.env, or the option of the same name"
    if name in by_user(variables):
        return "the job, in spec.run.env or spec.template"
    if name in _SOURCES:
        return f"the operator from {_SOURCES[name]}"
    if _OPERATORS.fullmatch(name):
        return "the operator"
    return "the image, the node's device plugin, or an envFrom of spec.template"


def _place(reader: _Reader) -> Place:
    num_slices = reader.integer("TPU_OPERATOR_NUM_SLICES", 1)
    hosts = reader.integer("TPU_OPERATOR_HOSTS_PER_SLICE", 1)
    is_head = reader.variables.get(COMPONENT) == "head"
    place = Place(
        kind=reader.text("TPU_OPERATOR_KIND", None, "the kind of the owner, such as TPUJob"),
        name=reader.text("TPU_OPERATOR_NAME", None, "the owner's name"),
        namespace=reader.text("TPU_OPERATOR_NAMESPACE", None, "the owner's namespace"),
        slice_index=gate.HEAD[0] if is_head else reader.integer("TPU_OPERATOR_SLICE", 0),
        host=gate.HEAD[1] if is_head else reader.integer("TPU_OPERATOR_HOST", 0),
        num_slices=num_slices,
        hosts_per_slice=hosts,
        attempt=reader.integer(ATTEMPT, 0),
        uid=reader.variables.get("TPU_OPERATOR_UID", ""),
        alone=reader.variables.get("TPU_OPERATOR_RESTART_SCOPE") == "Slice",
        head=reader.variables.get(HEAD, ""),
        is_head=is_head,
    )
    reader.check(not is_head or bool(place.head), HEAD, "the DNS name of this pod")
    reader.check(
        place.slice_index < num_slices,
        "TPU_OPERATOR_SLICE",
        f"less than TPU_OPERATOR_NUM_SLICES={num_slices}",
        "TPU_OPERATOR_NUM_SLICES",
    )
    reader.check(
        place.host < hosts,
        "TPU_OPERATOR_HOST",
        f"less than TPU_OPERATOR_HOSTS_PER_SLICE={hosts}",
        "TPU_OPERATOR_HOSTS_PER_SLICE",
    )
    return place


def _hardware(reader: _Reader, place: Place) -> Hardware:
    chips = reader.integer("TPU_OPERATOR_CHIPS_PER_HOST", 1)
    devices = reader.integer("TPU_OPERATOR_DEVICES_PER_HOST", 1)
    topology = reader.text("TPU_OPERATOR_TOPOLOGY", _TOPOLOGY, "2 or 3 sizes such as 4x4 or 2x2x4")
    emulate = reader.variables.get("TPU_OPERATOR_EMULATE", "")
    reader.check(emulate in {"", "cpu"}, "TPU_OPERATOR_EMULATE", "cpu, or empty on real TPUs")
    reader.check(
        invariants.product(topology, "x") == place.hosts_per_slice * chips,
        "TPU_OPERATOR_TOPOLOGY",
        f"{place.hosts_per_slice * chips} chips: TPU_OPERATOR_HOSTS_PER_SLICE={place.hosts_per_slice} times "
        f"TPU_OPERATOR_CHIPS_PER_HOST={chips}",
        "TPU_OPERATOR_HOSTS_PER_SLICE",
        "TPU_OPERATOR_CHIPS_PER_HOST",
    )
    reader.check(
        devices % chips == 0,
        "TPU_OPERATOR_DEVICES_PER_HOST",
        f"a multiple of TPU_OPERATOR_CHIPS_PER_HOST={chips}",
        "TPU_OPERATOR_CHIPS_PER_HOST",
    )
    accelerator = reader.text("TPU_OPERATOR_ACCELERATOR", None, "the type of TPU")
    return Hardware(accelerator, topology, chips, devices, emulated=emulate == "cpu")


def _identity(reader: _Reader, place: Place) -> Identity:
    """Read what libtpu reads.

    The operator leaves TPU_PROCESS_ADDRESSES out where the user has set the identity: then only what must
    hold for any order of the hosts is checked. A head has no chips, and is nobody to libtpu.
    """
    if place.is_head:
        return Identity(0, (place.head,), 1, ())
    names = "TPU_WORKER_HOSTNAMES"
    expected = "host names without ports, separated by commas, in worker order"
    hostnames = tuple(reader.text(names, _HOST_NAMES, expected).split(","))
    containers, rest = divmod(len(hostnames), place.hosts_per_slice)
    hosts = "TPU_OPERATOR_HOSTS_PER_SLICE"
    reader.check(
        rest == 0 and containers > 0,
        names,
        f"{place.hosts_per_slice} names ({hosts}), or a multiple of it; it has {len(hostnames)}",
        hosts,
    )
    worker_id = reader.integer("TPU_WORKER_ID", 0)
    reader.check(
        worker_id < len(hostnames), "TPU_WORKER_ID", f"less than the {len(hostnames)} names in {names}", names
    )
    addresses = reader.variables.get("TPU_PROCESS_ADDRESSES", "")
    reader.check(
        not addresses or worker_id // max(containers, 1) == place.host,
        "TPU_WORKER_ID",
        f"the number of host {place.host} (TPU_OPERATOR_HOST)",
        "TPU_OPERATOR_HOST",
        names,
        hosts,
    )
    return Identity(worker_id, hostnames, max(containers, 1), tuple(filter(None, addresses.split(","))))


def launch_port(variables: Mapping[str, str]) -> int:
    """The port of the launcher's HTTP server, where nothing else of the environment matters.

    Raises:
        BadEnvironmentError: it is no port.
    """
    reader = _Reader(variables)
    port = _port(reader)
    if reader.problems:
        raise BadEnvironmentError(reader.problems)
    return port


def _port(reader: _Reader) -> int:
    name = "TPU_LAUNCH_PORT"
    return reader.integer(name, 0, 65535) if reader.variables.get(name) else DEFAULT_PORT


def _settings(reader: _Reader) -> Settings:
    grace = reader.number("TPU_LAUNCH_GRACE_SECONDS", DEFAULT_GRACE)
    in_place = bool(reader.variables.get(STATE_DIR))
    return Settings(
        port=_port(reader),
        gate_timeout=reader.number("TPU_LAUNCH_GATE_TIMEOUT_SECONDS", DEFAULT_GATE_TIMEOUT),
        grace=grace,
        grace_after_failure=reader.number(
            "TPU_LAUNCH_FAILURE_GRACE_SECONDS", min(grace, IN_PLACE_GRACE) if in_place else grace
        ),
        notice_signal=reader.signal("TPU_LAUNCH_NOTICE_SIGNAL", signal.SIGURG),
        notice_file=reader.variables.get("TPU_LAUNCH_NOTICE_FILE") or DEFAULT_NOTICE_FILE,
        in_place=in_place,
        hang_seconds=reader.number(HANG_SECONDS, 0.0) if reader.variables.get(HANG_SECONDS) else None,
    )


def _coordinator(reader: _Reader, place: Place, default_port: int) -> tuple[str, int]:
    """Where the gate is. A port is only there in tests, where several launchers share a machine."""
    if place.num_met == 1:
        return "", default_port
    expected = f"the DNS name of host 0 of slice {place.met.start}"
    host, _, port = reader.text("TPU_OPERATOR_COORDINATOR", _COORDINATOR, expected).partition(":")
    return host, int(port or default_port)


def _rendezvous(reader: _Reader) -> Rendezvous:
    return Rendezvous(
        nnodes=reader.integer("NNODES", 1),
        node_rank=reader.integer("NODE_RANK", 0),
        master_addr=reader.text("MASTER_ADDR", None, "the DNS name of host 0 of slice 0"),
        master_port=reader.integer("MASTER_PORT", 1, 65535),
    )

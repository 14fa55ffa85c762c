"""What must hold between the variables of a host before anything starts on it, as pure functions.

TorchTPU 0.2.0, JAX 0.10 and libtpu 0.0.52 check little of it by themselves: what is wrong here hangs a slice,
or aborts it in native code, minutes later and on other hosts than the one that is wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpu_runtime.environment import HostEnvironment

MEGASCALE_PORT = 8080
"""TorchTPU gives process i of a host 8080 + 2i, and the next for debugging, whatever MEGASCALE_PORT says."""

RAY_PORTS = {6379: "Ray's GCS", 8265: "Ray's dashboard", 8266: "Ray's metrics", 8267: "Ray's agent"}
"""Those of a Ray node that others have to know, outside of the range from which kernels give ports away."""

COUNT, INDEX = "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID"
COORDINATOR, PORT = "MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_PORT"

_ADDRESSES = re.compile(r"[^\s:,]+:\d{1,5}(?:,[^\s:,]+:\d{1,5})*")
"""All at once: there are 18,000 of them in the largest slices."""
_COORDINATOR = re.compile(r"[^\s:,]+(:\d{1,5})?")
_BOUNDS = re.compile(r"[1-9]\d*(,[1-9]\d*){2}")
_IPV4 = re.compile(r"[\d.]+")
_SHAPE = ("TPU_OPERATOR_TOPOLOGY", "TPU_OPERATOR_HOSTS_PER_SLICE", "TPU_OPERATOR_CHIPS_PER_HOST")
_DEVICES = (*_SHAPE, "TPU_OPERATOR_DEVICES_PER_HOST")
_SLICES = ("TPU_OPERATOR_NUM_SLICES", "TPU_OPERATOR_SLICE")
_HOSTS = (*_SLICES, "TPU_OPERATOR_HOSTS_PER_SLICE", "TPU_OPERATOR_HOST")
_NAMES = ("TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID", "TPU_OPERATOR_HOSTS_PER_SLICE")


@dataclass(frozen=True)
class Check:
    """One thing that must hold.

    Attributes:
        ok: whether it does.
        name: the variable that is wrong if not.
        expected: what it should be, in words.
        others: variables on which that depends; where one of them is wrong itself, this says nothing.
    """

    ok: bool
    name: str
    expected: str
    others: Sequence[str] = ()


def checks(env: HostEnvironment) -> Iterator[Check]:
    """All that must hold for the launcher of a host."""
    yield from _own_name(env)
    if env.launcher == "ray":
        yield from _ray(env)
    if env.place.is_head:
        return
    yield from _megascale(env)
    if env.launcher in {"torchrun", "jax", "ray"}:
        yield from _node(env)
    if env.launcher == "torchrun":
        yield from _torchrun(env)
        yield from _slice_builder(env)
        yield from _ports(env)
    if env.launcher == "ray":
        yield from _ray_detection(env)
        yield from _slice_builder(env)
    if env.launcher == "jax":
        yield from _jax_processes(env)
        yield from _jax_addresses(env)


def product(sizes: str, separator: str) -> int:
    """Product of a list of sizes; 0 for an empty one."""
    return prod(int(size) for size in sizes.split(separator)) if sizes else 0


def torch_topology(env: HostEnvironment) -> str:
    """TorchTPU's spelling of the topology: three sizes, and a fourth where a chip has several devices."""
    hardware = env.hardware
    sizes = [*hardware.topology.split("x"), "1", "1"][:3]
    per_chip = hardware.devices_per_host // hardware.chips_per_host
    return ",".join(sizes if per_chip == 1 else [*sizes, str(per_chip)])


def _own_name(env: HostEnvironment) -> Iterator[Check]:
    """Lists must be in worker order: a host that takes itself for another waits for itself.

    A pod in its node's network has the node's name, and is in no list.
    """
    own, labels = (
        env.variables.get("HOSTNAME", ""),
        [name.partition(".")[0] for name in env.identity.hostnames],
    )
    if own in labels and env.identity.worker_id < len(labels):
        found = labels[env.identity.worker_id]
        text = f"the position of {own} (HOSTNAME) in TPU_WORKER_HOSTNAMES; there it is {found}"
        yield Check(found == own, "TPU_WORKER_ID", text, _NAMES)


def _megascale(env: HostEnvironment) -> Iterator[Check]:
    """By these, libtpu and JAX take a job for multislice, and ask a metadata server where they are absent."""
    place, variables = env.place, env.variables
    if place.num_slices == 1:
        alone = f"empty, as {_SLICES[0]}=1: with it, the slice waits for others that do not come"
        yield Check(variables.get(COUNT, "") in {"", "1"}, COUNT, alone, _SLICES[:1])
        for name in (INDEX, COORDINATOR, PORT):
            yield Check(not variables.get(name), name, alone, (*_SLICES[:1], COUNT))
        return
    for name, value, source in (
        (COUNT, place.num_slices, _SLICES[0]),
        (INDEX, place.slice_index, _SLICES[1]),
    ):
        yield Check(variables.get(name) == str(value), name, f"{value} ({source})", (source,))
    address = variables.get(COORDINATOR, "")
    yield Check(bool(_COORDINATOR.fullmatch(address)), COORDINATOR, "the DNS name of host 0 of slice 0")
    if place.slice_index == 0:
        first = env.identity.hostnames[0]
        good = _same_host(address.partition(":")[0], first) or not env.identity.addresses
        yield Check(good, COORDINATOR, f"{first}, host 0 of slice 0", (*_SLICES, *_NAMES))


def _node(env: HostEnvironment) -> Iterator[Check]:
    """What the device plugin of the node says, where it says something: the pod may be on a wrong node."""
    variables, topology = env.variables, "TPU_TOPOLOGY"
    found = variables.get(topology, "")
    same = _unpadded(found) == _unpadded(env.hardware.topology)
    yield Check(not found or same, topology, f"{env.hardware.topology} ({_SHAPE[0]})", _SHAPE)
    if env.launcher not in {"jax", "ray"}:  # TorchTPU makes its own bounds
        return
    chips = product(env.hardware.topology, "x")
    names = ("TPU_HOST_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS")
    bounds = [variables.get(name, "") for name in names]
    if all(_BOUNDS.fullmatch(bound) for bound in bounds):
        text = f"hosts that have {chips} chips in all ({_SHAPE[0]}), with {names[1]}={bounds[1]}"
        yield Check(prod(product(bound, ",") for bound in bounds) == chips, names[0], text, _SHAPE)


def _unpadded(topology: str) -> str:
    return re.sub(r"(x1)+$", "", topology)


def _torchrun(env: HostEnvironment) -> Iterator[Check]:
    """Where torchrun's agents meet, and what they must decide for themselves."""
    place, variables, rendezvous = env.place, env.variables, env.rendezvous
    assert rendezvous is not None
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        yield Check(name not in variables, name, "no value: torchrun gives each process its own")
    completion = "JOB_COMPLETION_INDEX"
    agrees = variables.get(completion, str(place.index)) == str(place.index)
    yield Check(agrees, completion, f"no value, or {place.index}: TorchTPU takes it for NODE_RANK", _HOSTS)
    yield Check(
        rendezvous.nnodes == place.num_hosts, "NNODES", f"{place.num_hosts}, the hosts of all slices", _HOSTS
    )
    # The user may number the hosts in another order, as long as he has set the whole identity.
    ours = bool(env.identity.addresses)
    rank_text = (
        f"{place.index}, the number of this host among all" if ours else f"less than {place.num_hosts}"
    )
    good = rendezvous.node_rank == place.index if ours else rendezvous.node_rank < place.num_hosts
    yield Check(good, "NODE_RANK", rank_text, _HOSTS)
    if ours:
        first = env.identity.hostnames[0] if place.slice_index == 0 else variables.get(COORDINATOR, "")
        first = first.partition(":")[0]
        text = f"{first}, host 0 of slice 0, which has rank 0"
        yield Check(
            _same_host(rendezvous.master_addr, first), "MASTER_ADDR", text, (*_HOSTS, *_NAMES, COORDINATOR)
        )
    session = "TORCH_TPU_XPROF_SESSION_ID"
    yield Check(
        bool(re.fullmatch(r"\d{1,19}", variables.get(session, ""))),
        session,
        "a whole number, the same on all hosts: else each takes its own clock's",
    )
    yield from _processes(env)


def _processes(env: HostEnvironment) -> Iterator[Check]:
    """One process for each device, all started by one agent for each host."""
    devices, name = env.hardware.devices_per_host, "TORCH_TPU_DEVICES_PER_HOST"
    yield Check(env.variables.get(name) == str(devices), name, f"{devices} ({_DEVICES[3]})", _DEVICES)
    if not env.hardware.emulated:
        count = "TPU_OPERATOR_PROCESSES_PER_HOST"
        text = f"{devices} ({_DEVICES[3]}): TorchTPU wants one process for each device"
        yield Check(env.processes == devices or env.identity.containers > 1, count, text, _DEVICES)
    yield Check(
        env.identity.containers == 1,
        "TPU_WORKER_HOSTNAMES",
        "each host once: with launcher torchrun, all chips of a host belong to one container",
        _NAMES,
    )


def _slice_builder(env: HostEnvironment) -> Iterator[Check]:
    """The slice builder's mesh: one address for each device of this slice, in the order of the ranks."""
    hardware, variables = env.hardware, env.variables
    devices = env.place.hosts_per_slice * hardware.devices_per_host
    topology, wanted = "TORCH_TPU_TOPOLOGY", torch_topology(env)
    text = f"{wanted}: the slice in commas, {devices} devices"
    yield Check(variables.get(topology) == wanted, topology, text, _DEVICES)
    name = "TORCH_TPU_SLICEBUILDER_ADDRESSES"
    if not _ADDRESSES.fullmatch(variables.get(name, "")):
        yield Check(ok=False, name=name, expected="host:port entries separated by commas (no IPv6 addresses)")
        return
    addresses = variables[name].split(",")
    text = f"{devices} devices: hosts per slice times devices per host; it has {len(addresses)}"
    yield Check(len(addresses) == devices, name, text, _DEVICES)
    if len(addresses) == devices:
        yield Check(len(set(addresses)) == devices, name, "no address twice", _DEVICES)
        yield from _order(env, addresses)


def _order(env: HostEnvironment, addresses: Sequence[str]) -> Iterator[Check]:
    """Ranks count up over the hosts as addresses do, or process 0 looks for itself on another host."""
    name, per_host = "TORCH_TPU_SLICEBUILDER_ADDRESSES", env.hardware.devices_per_host
    hosts = [address.rpartition(":")[0] for address in addresses]
    together = all(len(set(hosts[i : i + per_host])) == 1 for i in range(0, len(hosts), per_host))
    yield Check(together, name, f"the {per_host} devices of each host one after the other", _DEVICES)
    if env.identity.addresses and together and len(env.identity.hostnames) == env.place.hosts_per_slice:
        wrong = [
            i for i, want in enumerate(env.identity.hostnames) if not _same_host(hosts[i * per_host], want)
        ]
        differ = f"{env.identity.hostnames[wrong[0]]}, not {hosts[wrong[0] * per_host]}" if wrong else ""
        text = f"the hosts in the order of TPU_WORKER_HOSTNAMES: {differ}"
        yield Check(not wrong, name, text, (*_DEVICES, *_NAMES))


def _ports(env: HostEnvironment) -> Iterator[Check]:
    """No two servers of a host on one port."""
    assert env.rendezvous is not None
    taken = dict.fromkeys(slice_builder_ports(env), "TORCH_TPU_SLICEBUILDER_ADDRESSES")
    if env.place.num_slices > 1:
        taken.update(dict.fromkeys(megascale_ports(env), "MegaScale, by TorchTPU's choice"))
        port = env.variables.get(COORDINATOR, "").partition(":")[2]
        text = f"port {MEGASCALE_PORT}, or none: TorchTPU lets rank 0 listen there"
        yield Check(port in {"", str(MEGASCALE_PORT)}, COORDINATOR, text)
        forced = env.variables.get(PORT) or str(MEGASCALE_PORT)
        yield Check(forced == str(MEGASCALE_PORT), PORT, f"no value: {text}")
    for name, used in (("TPU_LAUNCH_PORT", env.settings.port), ("MASTER_PORT", env.rendezvous.master_port)):
        yield Check(used not in taken, name, f"another port than {used}, which is for {taken.get(used)}")


def slice_builder_ports(env: HostEnvironment) -> tuple[int, ...]:
    """Ports on which the slice builders of this host listen."""
    addresses = env.variables.get("TORCH_TPU_SLICEBUILDER_ADDRESSES", "").split(",")
    rank = 0 if env.rendezvous is None else env.rendezvous.node_rank
    per_host = env.hardware.devices_per_host
    first = rank % env.place.hosts_per_slice * per_host
    ports = [address.rpartition(":")[2] for address in addresses[first : first + per_host]]
    return tuple(int(port) for port in ports if port.isdecimal())


def megascale_ports(env: HostEnvironment) -> range:
    """Ports that TorchTPU makes MegaScale use on a host, those for debugging included."""
    return range(MEGASCALE_PORT, MEGASCALE_PORT + 2 * env.processes)


def _ray(env: HostEnvironment) -> Iterator[Check]:
    """One cluster of all hosts, which starts and ends as a whole."""
    scope = "TPU_OPERATOR_RESTART_SCOPE"
    text = "no value: a Ray cluster spans all slices, and starts again with all of them"
    yield Check(not env.place.alone, scope, text)
    port = env.settings.port
    yield Check(port not in RAY_PORTS, "TPU_LAUNCH_PORT", f"another port than {port}, which is Ray's")
    devices = env.hardware.devices_per_host // env.hardware.chips_per_host
    counted = env.variables.get("RAY_TPU_RESOURCE_PER_CHIP") or "1"
    text = f"1, for chips, or {devices}, for devices"
    yield Check(counted in {"1", str(devices)}, "RAY_TPU_RESOURCE_PER_CHIP", text, _DEVICES)


def _ray_detection(env: HostEnvironment) -> Iterator[Check]:
    """By these Ray knows a slice; for those that are absent it asks a metadata server."""
    for name, value in (
        ("TPU_ACCELERATOR_TYPE", "the type of the slice, such as v5litepod-16"),
        ("TPU_TOPOLOGY", env.hardware.topology),
        ("TPU_NAME", "the name of the slice"),
    ):
        yield Check(bool(env.variables.get(name)), name, f"{value}: Ray looks for it")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        yield Check(name not in env.variables, name, "no value: each task takes itself for that rank")


def _jax_processes(env: HostEnvironment) -> Iterator[Check]:
    """One process drives all chips of a host, or one of them."""
    hardware, name = env.hardware, "TPU_OPERATOR_PROCESSES_PER_HOST"
    if hardware.emulated:
        fits = hardware.devices_per_host % env.processes == 0
        wanted = f"a divisor of TPU_OPERATOR_DEVICES_PER_HOST={hardware.devices_per_host}"
    else:
        fits = env.processes in {1, hardware.chips_per_host}
        wanted = f"1, or {hardware.chips_per_host} (TPU_OPERATOR_CHIPS_PER_HOST) for one process per chip"
    yield Check(fits, name, wanted, _DEVICES)


def _jax_addresses(env: HostEnvironment) -> Iterator[Check]:
    """JAX counts its processes by TPU_PROCESS_ADDRESSES, and finds itself there by TPU_WORKER_ID."""
    addresses, name = env.identity.addresses, "TPU_PROCESS_ADDRESSES"
    if not addresses:
        return
    others = (*_NAMES, "TPU_OPERATOR_PROCESSES_PER_HOST")
    expected = len(env.identity.hostnames) * env.processes
    text = f"{expected} addresses, one for each process of the slice; it has {len(addresses)}"
    yield Check(len(addresses) == expected, name, text, others)
    yield Check(len(set(addresses)) == len(addresses), name, "no address twice", others)
    first = env.identity.worker_id * env.processes
    if len(addresses) == expected and first < expected:
        port = addresses[first].rpartition(":")[2]
        text = f"{port}, the port of this process in {name}"
        yield Check(env.variables.get("TPU_PROCESS_PORT") == port, "TPU_PROCESS_PORT", text, (*others, name))


def _same_host(one: str, other: str) -> bool:
    """Whether two names may be those of one host; an address can be any."""
    return one == other or bool(_IPV4.fullmatch(one) or _IPV4.fullmatch(other))

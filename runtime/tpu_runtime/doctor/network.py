"""Names and ports."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tpu_runtime.doctor.host import Finding, Severity
from tpu_runtime.doctor.timed import within
from tpu_runtime.environment import DEFAULT_PORT
from tpu_runtime.invariants import RAY_PORTS, megascale_ports, slice_builder_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpu_runtime.doctor.host import Host
    from tpu_runtime.environment import HostEnvironment

NAME_SECONDS = 8.0
_PARALLEL = 16
_SHOWN = 3
_JAX_COORDINATOR = 8482
_USUAL = {DEFAULT_PORT: "tpu-launch", 29500: "MASTER_PORT", **dict.fromkeys(range(8471, 8477), "libtpu")}


def check_names(host: Host) -> Iterator[Finding]:
    """All hosts of the slice have addresses, and this host's own name leads to it."""
    if host.env is None:
        return
    names = tuple(dict.fromkeys(host.env.identity.hostnames))
    answers = within({name: partial(host.resolve, name) for name in names}, NAME_SECONDS, _PARALLEL)
    missing = [name for name in names if not isinstance(answers.get(name), tuple)]
    if missing:
        shown = "; ".join(f"{name}: {answers.get(name, 'no answer in time')}" for name in missing[:_SHOWN])
        text = f"{len(missing)} of {len(names)} names do not resolve ({shown})"
        why = "libtpu and torch give up or hang where a host of the slice cannot be found"
        remedy = "see whether all pods of the slice have started, then the headless Service and cluster DNS"
        yield Finding(Severity.ERROR, text, why, remedy)
    own = host.env.identity.hostnames[host.env.identity.worker_id]
    addresses = answers.get(own)
    if isinstance(addresses, tuple) and not any(host.is_local(address) for address in addresses):
        text = f"this host's own name {own} leads to {', '.join(addresses)}, which is not this host"
        why = "this host and the others disagree on who it is"
        remedy = "compare TPU_WORKER_ID with the pod's name; look for an old record or a foreign Service"
        yield Finding(Severity.ERROR, text, why, remedy)
    elif not missing:
        yield Finding(Severity.OK, f"{len(names)} names resolve, {own} to this host")


def check_ports(host: Host) -> Iterator[Finding]:
    """What is to listen on this host can."""
    wanted = _ports(host.env) if host.env else _USUAL
    taken = [port for port in wanted if not host.can_listen(port)]
    ours = DEFAULT_PORT if host.env is None else host.env.settings.port
    if ours in taken and "tpu-launch" in (host.text("/proc/1/cmdline") or ""):
        yield Finding(Severity.INFO, f"tpu-launch runs here: port {ours}, and perhaps others, are its job's")
        return
    for port in taken:
        text = f"port {port} ({wanted[port]}) is taken"
        why = "the server that is to have it fails, and all hosts with it"
        remedy = "end the other server; with hostNetwork, keep other pods that use it off the node"
        yield Finding(Severity.ERROR, text, why, remedy)
    if not taken:
        yield Finding(Severity.OK, f"free: {', '.join(map(str, sorted(wanted)))}")


def _ports(env: HostEnvironment) -> Mapping[int, str]:
    """Ports on which something will listen on this host, with what it is."""
    ports = {env.settings.port: "tpu-launch"} if env.settings.port else {}
    own = [a for a in env.identity.addresses if a.partition(":")[0] == _own(env)]
    if env.launcher != "torchrun":
        ports.update((int(address.rpartition(":")[2]), "libtpu") for address in own)
    if env.launcher == "ray":
        ports.update(RAY_PORTS)
    if env.launcher == "jax" and env.place.index == 0:
        ports[_JAX_COORDINATOR] = "JAX's coordinator"
    if env.rendezvous is not None:
        ports.update(dict.fromkeys(slice_builder_ports(env), "libtpu's slice builder"))
        if env.place.num_slices > 1:
            ports.update(dict.fromkeys(megascale_ports(env), "MegaScale"))
        if env.rendezvous.node_rank == 0:
            ports[env.rendezvous.master_port] = "MASTER_PORT"
    return ports


def _own(env: HostEnvironment) -> str:
    return env.identity.hostnames[env.identity.worker_id]

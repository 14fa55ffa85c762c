"""The environment, with what the launcher does not refuse and is worth a word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpu_runtime.doctor.host import Finding, Severity
from tpu_runtime.environment import setter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpu_runtime.doctor.host import Host

_OFF = {"", "0", "false"}
_REWRITTEN = {
    "xla_tpu_use_enhanced_launch_barrier=true": "it can hang a slice",
    "slicebuilder_use_insecure_grpc=false": "the slice builder hangs on GKE with it",
}


def check_environment(host: Host) -> Iterator[Finding]:
    """What the launcher checks, and more."""
    if not host.of_a_job:
        text = "not a container that the operator has made: there is nothing to check the variables against"
        yield Finding(Severity.INFO, text)
        return
    env = host.env
    for problem in host.problems:
        yield Finding(
            Severity.ERROR, problem, "tpu-launch refuses to start anything", "correct it where it is set"
        )
    yield from _ranks(host)
    yield from _flags(host)
    if env is not None:
        place = f"host {env.place.host} of {env.place.hosts_per_slice}"
        slices = f"slice {env.place.slice_index} of {env.place.num_slices}, attempt {env.place.attempt}"
        yield Finding(Severity.OK, f"{env.place.kind} {env.place.name}, {place}, {slices}, {env.launcher}")


def _ranks(host: Host) -> Iterator[Finding]:
    names = [name for name in ("RANK", "WORLD_SIZE") if name in host.variables]
    if names and host.launcher in {"none", "ray", "jax"}:
        text = " and ".join(f"{name}={host.variables[name]}" for name in names)
        why = "every process that imports TorchTPU takes itself for a rank"
        remedy = f"unset it for the pod; set by {setter(names[0], host.variables)}"
        yield Finding(Severity.WARNING, text, why, remedy)


def _flags(host: Host) -> Iterator[Finding]:
    flags = host.variables.get("LIBTPU_INIT_ARGS", "")
    for flag, why in _REWRITTEN.items():
        if flag in flags:
            text = f"LIBTPU_INIT_ARGS has {flag}"
            yield Finding(Severity.WARNING, text, f"{why}; TorchTPU rewrites it", "leave it out")
    if host.variables.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0" and host.launcher == "torchrun":
        text = "TORCH_DEVICE_BACKEND_AUTOLOAD=0"
        yield Finding(
            Severity.WARNING, text, "torch has no device `tpu` until torch_tpu is imported", "unset it"
        )


def check_metadata(host: Host) -> Iterator[Finding]:
    """Without the variable, libtpu asks a metadata server for minutes that most clusters do not have."""
    if host.variables.get("TPU_SKIP_MDS_QUERY", "").lower() in _OFF:
        why = "libtpu asks the metadata server of Google's VMs for minutes before it gives up"
        yield Finding(Severity.WARNING, "TPU_SKIP_MDS_QUERY is not set", why, "set TPU_SKIP_MDS_QUERY=true")
    else:
        yield Finding(Severity.OK, "libtpu asks no metadata server")

"""What `import torch` calls where this package is on PYTHONPATH: makes `torch.device("tpu")` this CPU.

The order of things is what torch_tpu 0.2.0 bears:
1. the device is registered without a client, so that a process may fork until it needs one;
2. a client is made while the variables that tell of other processes are out of sight: TorchTPU remembers what
   it has read, and stays a world of one device, as its own collectives are wrong on a CPU plugin;
3. torch.distributed's backends for it are replaced by one that goes through gloo.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, Optional

from tpu_runtime.emulate import GATE, NOTICE, WORKER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpu_runtime.doctor.host import Host

PLUGIN_PACKAGE = "fastatomstruct-xla-cpu"
PLUGIN_FILE = "libpjrt_cpu.so"
LIBRARY = "TPU_LIBRARY_PATH"
_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_LAUNCHER = "TPU_OPERATOR_LAUNCHER"
_WORLD = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "TORCH_TPU_SLICEBUILDER_ADDRESSES",
        "TORCH_TPU_TOPOLOGY",
    }
)
_BACKENDS = ("tpu_dist", "tpu")


class EmulationError(RuntimeError):
    """TPUs cannot be emulated here."""


def autoload() -> None:
    """Emulate TPUs where that is asked for; torch calls this at the end of its import.

    Raises:
        EmulationError: it cannot be done here.
    """
    if os.environ.get(GATE) != "cpu":
        return  # as on TPUs, where nothing more is imported than this module
    if importlib.util.find_spec("torch_tpu") is None:
        _say(f"torch_tpu is not installed, so there is no torch.device('tpu') ({GATE}=cpu)")
        return
    from tpu_runtime.doctor.host import Host
    from tpu_runtime.emulate.onedevice import have_one_device

    refuse_tpus(Host(os.environ))
    os.environ[LIBRARY] = plugin(os.environ)
    have_one_device(os.environ[LIBRARY])
    if _LAUNCHER not in os.environ:  # the launcher has said it
        _say(NOTICE)
    _register()
    if "LOCAL_RANK" in os.environ or os.environ.get(WORKER):
        become_worker()


def refuse_tpus(host: Host) -> None:
    """Raise where the container has TPUs: they would lie idle, and nobody would notice.

    Raises:
        EmulationError: with the device nodes.
    """
    from tpu_runtime.doctor.devices import tpus

    nodes = ", ".join(map(str, tpus(host)))
    if nodes:
        raise EmulationError(f"TPUs are here ({nodes}): unset {GATE}, it is for clusters without")


def plugin(variables: Mapping[str, str]) -> str:
    """Path of the PJRT plugin for the CPU: the user's choice, or that of the package that we know to work.

    Raises:
        EmulationError: there is none.
    """
    chosen = variables.get(LIBRARY, "")
    # torch_tpu itself sets the variable to libtpu, where it was imported before us.
    if chosen and Path(chosen).name != "libtpu.so":
        return chosen
    found = _packaged()
    if found is None:
        raise EmulationError(
            f"{GATE}=cpu needs a PJRT plugin for the CPU: pip install {PLUGIN_PACKAGE}==2026.6.23, "
            f"or name another {PLUGIN_FILE} in {LIBRARY}"
        )
    return found


def _packaged() -> Optional[str]:
    try:
        files = metadata.files(PLUGIN_PACKAGE) or ()
    except metadata.PackageNotFoundError:
        return None
    return next((str(file.locate()) for file in files if file.name == PLUGIN_FILE), None)


def become_worker() -> None:
    """Make the client of this process, which is a rank. No fork of it can use the device from here on."""
    if importlib.util.find_spec("torch_tpu") is None:
        return
    import torch

    from tpu_runtime import tracing

    with _alone():
        torch.empty(1, device="tpu").cpu()
    tracing.offer()  # a fork of torchrun's agent has not imported torch anew


def _register() -> None:
    autoload = os.environ.get(_AUTOLOAD)
    with _alone():
        from torch_tpu import _loader

        _loader._init_device("tpu")
    if autoload is not None:  # the loader turns it off until its own entry point is called
        os.environ[_AUTOLOAD] = autoload
    else:
        os.environ.pop(_AUTOLOAD, None)
    from tpu_runtime.emulate import patches

    patches.apply()
    _replace_backends()


def _replace_backends() -> None:
    from torch.distributed import Backend

    from tpu_runtime.emulate.group import create

    for name in _BACKENDS:
        Backend._plugins.pop(name.upper(), None)
        Backend.register_backend(name, create, devices=["tpu"])
    Backend.default_device_backend_map["tpu"] = _BACKENDS[0]


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Hide from TorchTPU that there are other processes."""
    names = [name for name in os.environ if name in _WORLD or name.startswith("MEGASCALE_")]
    hidden = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _say(text: str) -> None:
    sys.stderr.write(f"tpu_runtime.emulate: {text}\n")

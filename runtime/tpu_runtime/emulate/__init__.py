"""TorchTPU on the CPU: the same script runs where there are no TPUs (`TPU_OPERATOR_EMULATE=cpu`).

The real torch_tpu package runs on a PJRT plugin for the CPU, each process with one device of its own, and
collectives go through gloo. Nothing is compiled or installed: this package is put on PYTHONPATH, where torch
finds it by its entry point (group `torch.backends`). docs/emulation.md says what differs from a TPU.

| module | what |
|---|---|
| `hook.py` | what `import torch` calls: the device, its client, the backend of torch.distributed |
| `group.py` | the process group: to the CPU, through gloo, and back |
| `onedevice.py` | one device for each process, which the plugin has to be told |
| `patches.py` | what user scripts hit that a CPU plugin does not have |
| `__main__.py`, `forks.py` | torchrun whose workers are forked from the agent, which has torch already |
| `program.py` | what `python ARGUMENTS` would run, run in a process that is there already |

This module is all that the launcher imports. It does without torch, as do `forks.py` and `program.py`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tpu_runtime.bundle import location

if TYPE_CHECKING:
    from collections.abc import Mapping

GATE = "TPU_OPERATOR_EMULATE"
"""Emulation is off unless this is "cpu"."""
WORKER = "TPU_OPERATOR_EMULATE_WORKER"
"""Set to anything in processes that become ranks after they have imported torch, as Ray's workers do."""
NOTICE = (
    "EMULATION: no TPU is used. Numbers come from XLA:CPU and gloo, not from the TPU compiler and ICI; "
    "speed, memory and numerics are NOT those of a TPU."
)
_DEFAULTS = {
    "OMP_NUM_THREADS": "1",
    # XLA and libtpu say at length what they do not find here.
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "ABSL_MIN_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
}


def variables(given: Mapping[str, str]) -> dict[str, str]:
    """What processes need beyond the environment of their container. Values that are there are kept.

    Args:
        given: that environment; PYTHONPATH is added to.
    """
    paths = [str(location()), *filter(None, given.get("PYTHONPATH", "").split(os.pathsep))]
    added = {name: value for name, value in _DEFAULTS.items() if name not in given}
    return {**added, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}

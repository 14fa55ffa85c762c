"""TorchTPU: torch's own elastic agent, with everything pinned that it would otherwise find out by itself.

One process per device. The agent gives the processes RANK, LOCAL_RANK and WORLD_SIZE; TorchTPU reads the rest
from the variables of the container (TORCH_TPU_*). The agent never restarts anything: a lost process breaks
the slice, and it is the operator that restarts slices.
"""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from tpu_runtime.output import Line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpu_runtime.environment import HostEnvironment

_TCMALLOC = ("libtcmalloc.so.4", "libtcmalloc_minimal.so.4")
_LIBRARIES = Path("usr/lib/x86_64-linux-gnu")
_PYTHON = re.compile(r"(.*/)?python[0-9.]*")
_ROOT = re.compile(r"Root Cause \(first observed failure\):")
_RANKS = re.compile(r"rank\s+: (\d+) \(local_rank: (\d+)\)")
_PREFIX = re.compile(r"\[rank\d+\]: ")
_EXIT_CODE = re.compile(r"exitcode\s+: (-?\d+) \(pid: \d+\)")
_AGENT = re.compile(r"[EW]\d{4} .*/distributed/elastic/.*(closing signal|failed \(exitcode)")


def variables(root: Path = Path("/")) -> dict[str, str]:
    """What the processes of a host get where neither the operator nor the user says otherwise."""
    # The cache in /dev/shm is TorchTPU's default for several processes only; it outlives a restart in place.
    cache = {"TORCH_TPU_TIER2_COMPILATION_CACHE": "default"}
    found = tcmalloc(root)
    return {**cache, "LD_PRELOAD": found} if found else cache


def tcmalloc(root: Path = Path("/")) -> Optional[str]:
    """The allocator that TorchTPU asks for, if this image has it: host buffers are large and short-lived."""
    return next((f"/{_LIBRARIES / name}" for name in _TCMALLOC if (root / _LIBRARIES / name).exists()), None)


def agent_command(env: HostEnvironment, argv: Sequence[str]) -> list[str]:
    """The command that runs the agent of this host.

    The agent runs in the interpreter that the user's command names, as that is where torch is.
    """
    assert env.rendezvous is not None
    return [
        interpreter(argv),
        "-m",
        "torch.distributed.run",
        f"--nnodes={env.rendezvous.nnodes}",
        f"--node_rank={env.rendezvous.node_rank}",
        f"--master_addr={env.rendezvous.master_addr}",
        f"--master_port={env.rendezvous.master_port}",
        f"--nproc_per_node={env.processes}",
        "--max_restarts=0",
        "--no_python",
        *argv,
    ]


def interpreter(argv: Sequence[str]) -> str:
    """The Python of a command; the one on PATH for a command that is no Python."""
    if _PYTHON.fullmatch(argv[0]):
        return argv[0]
    return shutil.which("python3") or sys.executable


@dataclass(frozen=True)
class WorkerFailure:
    """The agent's account of the process that failed first.

    Attributes:
        local_rank: its index on the host.
        exit_code: negative when a signal killed it.
        noticed: epoch seconds at which the agent first spoke of it.
        before: what was written before that, by all processes of the host.
        said: what of it the failed process wrote, as far as that can be told.
    """

    local_rank: int
    exit_code: int
    noticed: float
    before: Sequence[Line]
    said: Sequence[Line]


def worker_failure(lines: Sequence[Line]) -> Optional[WorkerFailure]:
    """Find the agent's report: the agent itself exits with 1, whatever the user's process exited with.

    Args:
        lines: the end of the agent's stderr, which is also that of the user's processes.
    """
    root = next((i for i in reversed(range(len(lines))) if _ROOT.search(lines[i].text)), None)
    if root is None:
        return None
    report = "\n".join(line.text for line in lines[root:])
    ranks, code = _RANKS.search(report), _EXIT_CODE.search(report)
    if not ranks or not code:
        return None
    start = next((i for i, line in enumerate(lines) if _AGENT.match(line.text)), root)
    before = lines[:start]
    return WorkerFailure(
        local_rank=int(ranks.group(2)),
        exit_code=int(code.group(1)),
        noticed=lines[start].time,
        before=before,
        said=_said_by(ranks.group(1), before),
    )


def _said_by(rank: str, lines: Sequence[Line]) -> Sequence[Line]:
    """The lines of one process.

    Once a process group is there, torch puts the rank before each line of an exception. Of a process that
    has none yet, or that went without an exception, all that is known is what is not another's.
    """
    prefix = f"[rank{rank}]: "
    own = [Line(line.time, line.text[len(prefix) :]) for line in lines if line.text.startswith(prefix)]
    return own or [line for line in lines if not _PREFIX.match(line.text)]

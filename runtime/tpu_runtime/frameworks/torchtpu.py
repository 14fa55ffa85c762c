"""TorchTPU: torch's own elastic agent, with everything pinned that it would otherwise find out by itself.

One process per device. The agent gives the processes RANK, LOCAL_RANK and WORLD_SIZE; TorchTPU reads the rest
from the variables of the container (TORCH_TPU_*). The agent never restarts anything: a lost process breaks
the slice, and it is the operator that restarts slices.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from tpu_runtime import emulate
from tpu_runtime.output import Line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpu_runtime.environment import HostEnvironment

_TCMALLOC = ("libtcmalloc.so.4", "libtcmalloc_minimal.so.4")
_LIBRARIES = Path("usr/lib/x86_64-linux-gnu")
_PYTHON = re.compile(r"(.*/)?python[0-9.]*")
_OTHERS = "Failures:"
_ROOT = "Root Cause (first observed failure):"
_FAILED = re.compile(
    r"rank\s+: (\d+) \(local_rank: (\d+)\)\s+exitcode\s+: (-?\d+) \(pid: \d+\).*(?:\s+error_file: (/.+))?"
)
_PREFIX = re.compile(r"\[rank\d+\]: ")
_LAST_LINES = 20
_LOST_PEER = re.compile(r"gloo/transport/|torch\.distributed\.Dist(Network|Store|Backend)Error")
_AGENT = re.compile(r"[EW]\d{4} .*/distributed/elastic/.*(closing signal|failed \(exitcode)")


def variables(env: HostEnvironment, root: Path = Path("/")) -> dict[str, str]:
    """What the processes of a host get where neither the operator nor the user says otherwise."""
    found = tcmalloc(root)
    added = {"LD_PRELOAD": found} if found else {}
    if not env.hardware.emulated:
        # TorchTPU's default for several processes only. Being in /dev/shm, it outlives a restart in place.
        added["TORCH_TPU_TIER2_COMPILATION_CACHE"] = "default"
    ours = {name: value for name, value in added.items() if name not in env.variables}
    return {**ours, **emulate.variables(env.variables)} if env.hardware.emulated else ours


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
        "tpu_runtime.emulate" if env.hardware.emulated else "torch.distributed.run",
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
        error_file: where a program that torch's `record` wraps has left its exception; empty for others.
    """

    local_rank: int
    exit_code: int
    noticed: float
    before: Sequence[Line]
    said: Sequence[Line]
    error_file: str = ""

    @property
    def is_echo(self) -> bool:
        """Whether it failed for want of another process: the agent had to end it, or it has lost a peer."""
        lost = any(lost_peer(line.text) for line in self.said[-_LAST_LINES:])
        return self.exit_code == -signal.SIGTERM or (self.exit_code > 0 and lost)


def worker_failure(lines: Sequence[Line]) -> Optional[WorkerFailure]:
    """Find the agent's report: the agent itself exits with 1, whatever the user's process exited with.

    The agent looks at its processes ten times a second, and takes the first of those that it finds dead
    together for the cause; where that is an echo of another one, we do not.

    Args:
        lines: the end of the agent's stderr, which is also that of the user's processes.
    """
    root = _last(_ROOT, lines)
    if root is None:
        return None
    others = _last(_OTHERS, lines[:root]) or root
    start = next((i for i, line in enumerate(lines) if _AGENT.match(line.text)), others)
    before, noticed = lines[:start], lines[start].time
    failures = [
        WorkerFailure(int(local_rank), int(code), noticed, before, _said_by(rank, before), error_file)
        for part in (lines[root:], lines[others:root])
        for rank, local_rank, code, error_file in _FAILED.findall("\n".join(line.text for line in part))
    ]
    return next((failure for failure in failures if not failure.is_echo), next(iter(failures), None))


def _last(text: str, lines: Sequence[Line]) -> Optional[int]:
    return next((i for i in reversed(range(len(lines))) if text in lines[i].text), None)


def recorded(error_file: str) -> Optional[Line]:
    """The exception that a program has left in a file, and when; None if there is none to read.

    The time in it is in whole seconds, which is too coarse to tell which of the hosts failed first.
    """
    try:
        path = Path(error_file)
        message = json.loads(path.read_text(errors="replace"))["message"]
        text = message["message"] if isinstance(message, dict) else message
        return Line(path.stat().st_mtime, str(text).strip())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def lost_peer(error: str) -> bool:
    """Whether an exception comes of the loss of another process, so that the trouble began there."""
    return bool(_LOST_PEER.search(error))


def _said_by(rank: str, lines: Sequence[Line]) -> Sequence[Line]:
    """The lines of one process.

    Once a process group is there, torch puts the rank before each line of an exception. Of a process that
    has none yet, or that went without an exception, all that is known is what is not another's.
    """
    prefix = f"[rank{rank}]: "
    own = [Line(line.time, line.text[len(prefix) :]) for line in lines if line.text.startswith(prefix)]
    return own or [line for line in lines if not _PREFIX.match(line.text)]

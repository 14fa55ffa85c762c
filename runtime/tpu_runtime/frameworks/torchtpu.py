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
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpu_runtime.environment import HostEnvironment
    from tpu_runtime.output import Line

_PYTHON = re.compile(r"(.*/)?python[0-9.]*")
_ROOT = re.compile(r"Root Cause \(first observed failure\):")
_LOCAL_RANK = re.compile(r"rank\s+: \d+ \(local_rank: (\d+)\)")
_EXIT_CODE = re.compile(r"exitcode\s+: (-?\d+) \(pid: \d+\)")
_AGENT = re.compile(r"[EW]\d{4} .*/distributed/elastic/.*(closing signal|failed \(exitcode)")


def agent_command(env: HostEnvironment, argv: Sequence[str]) -> list[str]:
    """The command that runs the agent of this host.

    The agent runs in the interpreter that the user's command names, as that is where torch is.
    """
    assert env.rendezvous is not None
    return [
        _interpreter(argv),
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


def _interpreter(argv: Sequence[str]) -> str:
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
        before: what was written before that.
    """

    local_rank: int
    exit_code: int
    noticed: float
    before: Sequence[Line]


def worker_failure(lines: Sequence[Line]) -> Optional[WorkerFailure]:
    """Find the agent's report: the agent itself exits with 1, whatever the user's process exited with.

    Args:
        lines: the end of the agent's stderr, which is also that of the user's processes.
    """
    root = next((i for i in reversed(range(len(lines))) if _ROOT.search(lines[i].text)), None)
    if root is None:
        return None
    report = "\n".join(line.text for line in lines[root:])
    rank, code = _LOCAL_RANK.search(report), _EXIT_CODE.search(report)
    if not rank or not code:
        return None
    start = next((i for i, line in enumerate(lines) if _AGENT.match(line.text)), root)
    return WorkerFailure(int(rank.group(1)), int(code.group(1)), lines[start].time, lines[:start])

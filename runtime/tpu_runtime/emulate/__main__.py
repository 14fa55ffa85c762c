"""`python -m tpu_runtime.emulate ARGUMENTS`: torchrun, whose workers start in no time.

It takes torchrun's arguments and is torch's own elastic agent. Workers that are Python programs are forked
from it, as it has imported torch, which costs ten times more than all else; any other is executed as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

from tpu_runtime.emulate.forks import Forked
from tpu_runtime.emulate.hook import become_worker
from tpu_runtime.emulate.program import parse

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence

_execute = SubprocessHandler._popen  # the one place where torch starts a worker


def _start(handler: Any, command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[Any]:
    program = parse(command)
    if program is None:
        process: subprocess.Popen[Any] = _execute(handler, command, env)
        return process
    return Forked(program, env, become_worker, handler._stdout, handler._stderr)


def main() -> None:
    """Run torchrun."""
    SubprocessHandler._popen = _start
    torchrun.main()


if __name__ == "__main__":
    main()

"""Processes that are forked where others are executed: a start costs next to nothing once torch is imported.

For emulation alone: TorchTPU refuses to go on in a fork of a process that has used a TPU.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any, Callable

from tpu_runtime.emulate import program as programs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpu_runtime.emulate.program import Program

_DEFAULTS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Forked(subprocess.Popen):  # type: ignore[type-arg]
    """A process as subprocess has them, in a session of its own, that runs a Python program.

    Args:
        program: what it runs.
        env: its whole environment.
        ready: called in it first.
        stdout: where its output goes; None for ours.
        stderr: the same.
    """

    def __init__(
        self,
        program: Program,
        env: Mapping[str, str],
        ready: Callable[[], None],
        stdout: Any = None,
        stderr: Any = None,
    ) -> None:
        self._child = (program, env, ready, (stdout, stderr))
        super().__init__([program.target, *program.arguments])

    def _execute_child(self, *_: Any) -> None:
        _flush()  # or it would be written by both
        with warnings.catch_warnings():
            # Since 3.12 Python warns where there are threads; those of torch's agent hold nothing of ours.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            _become(*self._child)
        self._child_created = True


def _become(
    program: Program, env: Mapping[str, str], ready: Callable[[], None], outputs: Sequence[Any]
) -> None:
    """Be the child, to its end."""
    code = 1
    try:
        os.setsid()
        for signum in _DEFAULTS:
            signal.signal(signum, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(env)
        for output, number in zip(outputs, (1, 2), strict=True):
            if output is not None:
                os.dup2(output.fileno(), number)
        _seed()
        ready()
        code = programs.run(program)
    except BaseException:  # noqa: BLE001 - nothing of this may go on in the parent's frames
        sys.excepthook(*sys.exc_info())
    finally:
        _flush()
        os._exit(code & 0xFF)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _seed() -> None:
    """Random numbers of its own; Python's `random` sees to that by itself."""
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()

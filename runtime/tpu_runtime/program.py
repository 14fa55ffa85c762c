"""What a user's program may call: `from tpu_runtime import heartbeat, on_preemption`.

It runs in the program's interpreter, which finds it on PYTHONPATH, and needs nothing but Python. Without the
launcher, `heartbeat` does nothing.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from pathlib import Path
from typing import Any, Callable, Optional, TextIO

HEARTBEATS = "TPU_LAUNCH_HEARTBEATS"
"""A directory of the launcher's, with a file for each process that has made a step."""
NOTICE_SIGNAL = "TPU_LAUNCH_NOTICE_SIGNAL"
STACK_SIGNAL = signal.SIGRTMAX - 2
"""A process that has a file for it writes its stacks there."""

_stacks: Optional[TextIO] = None


def heartbeat() -> None:
    """Say that the program has made a step; call it in each, in every process.

    From the first call on, a host that makes none for ten minutes (TPU_LAUNCH_HANG_SECONDS), and does not
    work on the CPU either, is taken for hung: the stacks of its processes are written to the log, and the job
    restarts.
    """
    folder = os.environ.get(HEARTBEATS)
    if not folder:
        return
    path = f"{folder}/beat-{os.getpid()}"
    try:
        os.utime(path)
    except OSError:
        _first(folder, path)


def _first(folder: str, path: str) -> None:
    """The first heartbeat of a process."""
    with contextlib.suppress(OSError):
        Path(path).touch()
        offer_stacks(folder)


def on_preemption(function: Callable[[], object]) -> None:
    """Have a function called when the program should save its state, as its nodes will not be there for long.

    It is called in the main thread, between two steps of Python: after a notice of maintenance, whereupon the
    program goes on, and after SIGTERM, whereupon the program ends with exit code 143. Of several functions
    the last one counts.

    Raises:
        ValueError: not called from the main thread.
    """
    saving = _Saving(function)
    signal.signal(signal.SIGTERM, saving)
    name = os.environ.get(NOTICE_SIGNAL) or "URG"
    if name != "none":
        signal.signal(getattr(signal, f"SIG{name.removeprefix('SIG')}"), saving)


class _Saving:
    """Calls a function on signals, and not again while it runs."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._running = False
        self._exit_code = 0

    def __call__(self, number: int, _: Any) -> None:
        if number == signal.SIGTERM:
            self._exit_code = 128 + number
        if self._running:
            return
        self._running = True
        try:
            self._function()
        finally:
            self._running = False
        if self._exit_code:
            raise SystemExit(self._exit_code)


def offer_stacks(folder: str) -> None:
    """Write the stacks of all threads to a file when the launcher asks for them."""
    global _stacks  # noqa: PLW0603 - faulthandler needs the file to stay open
    path = Path(folder, f"stacks-{os.getpid()}")
    if path.exists():
        return
    _stacks = path.open("w", encoding="utf-8")
    faulthandler.register(STACK_SIGNAL, file=_stacks, all_threads=True)

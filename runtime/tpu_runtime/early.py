"""Signals that come before the launcher is there to act on them.

The kernel drops a signal to PID 1 that has no handler, and Python takes a good part of a second to import the
rest. A pod that is told to go in that time would stay for the whole of its grace period.
"""

from __future__ import annotations

import signal

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

heard: list[int] = []
"""Signals to stop that have come, in order."""


def listen() -> None:
    """Take note of signals to stop from now on."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, lambda number, _: heard.append(number))

"""Maintenance that is announced while the processes run: they get a signal, and time to save their state.

The operator annotates the pods, and kubelets write the annotation into a file of the container (downward
API). The signal is one that ends no program that does not know of it.
"""

from __future__ import annotations

import asyncio
import calendar
import contextlib
import json
import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from tpu_runtime import report
from tpu_runtime.processes import descendants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tpu_runtime.environment import HostEnvironment
    from tpu_runtime.processes import Group

_POLL_SECONDS = 0.5
_STAMP = "%Y-%m-%dT%H:%M:%SZ"


@contextmanager
def watched(env: HostEnvironment, group: Group) -> Iterator[None]:
    """Pass notices on to the processes of a group, which is to be started within the context."""
    settings = env.settings

    def pass_on(text: str) -> None:
        count = _send(settings.notice_signal, group, env.launcher) if settings.notice_signal else 0
        name = signal.Signals(settings.notice_signal).name if settings.notice_signal else "no signal"
        report.say(f"maintenance of the nodes is announced: {text}; {name} to {count} processes")

    path = Path(settings.notice_file)
    watching = asyncio.ensure_future(watch(path, _read(path), pass_on))
    try:
        yield
    finally:
        watching.cancel()


async def watch(path: Path, known: str, pass_on: Callable[[str], None]) -> None:
    """Pass on what a file says when that changes, and again at the time that it names for a checkpoint.

    What was there before the processes were started is passed on at that time only: they have nothing to
    save yet, and may not know the signal yet.

    Args:
        path: the file.
        known: what it said before.
        pass_on: told of it.
    """
    again = _checkpoint(known)
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        text = _read(path)
        if text != known:
            known, again = text, _checkpoint(text)
            if text:
                pass_on(text)
        elif again is not None and time.time() >= again:
            again = None
            pass_on(text)


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""


def _checkpoint(text: str) -> Optional[float]:
    """When a notice says to save what must not be lost, in epoch seconds; None if that is over."""
    try:
        stamp = calendar.timegm(time.strptime(json.loads(text)["checkpoint"], _STAMP))
    except (ValueError, TypeError, KeyError):
        return None
    return stamp if stamp > time.time() else None


def _send(signum: int, group: Group, launcher: str) -> int:
    """Send a signal to all that the processes have started, and to them; how many there were.

    torchrun's agents are left out: its workers are in sessions of their own, and the signal is theirs.
    """
    agents = {process.pid for process in group.running} if launcher == "torchrun" else set()
    sent = 0
    for pid in descendants(os.getpid()):
        if pid not in agents:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signum)
                sent += 1
    return sent

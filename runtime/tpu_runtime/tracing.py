"""Traces of a process that runs, when the launcher asks for one (`tpu_runtime.profiles`), and its stacks.

JAX and torch call this as they start, wherever the launcher is on PYTHONPATH: a program need not know of it.
It runs in the program's interpreter and needs nothing but Python, and the profiler that is there anyway.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import sys
import threading
import time
from typing import Any, Callable

from tpu_runtime.program import HEARTBEATS, offer_stacks

SOCKET = "trace-"
"""Start of the names of sockets in the launcher's directory; a process's ID follows."""
_TORCH = "torch_tpu._internal.profiler._impl"
_HOST, _DEVICE, _PYTHON = 2, 1, 1
"""Levels of detail that XProf's own tools ask for."""


def initialize() -> None:
    """Called by JAX as it looks for devices."""
    offer()


def autoload() -> None:
    """Called by torch at the end of its import: in torchrun's agent too, which has nothing to show."""
    if os.environ.get("TPU_OPERATOR_LAUNCHER") != "torchrun" or "LOCAL_RANK" in os.environ:
        offer()


def offer() -> None:
    """Have a thread wait for the launcher, once; a process that cannot is none that can be traced."""
    folder = os.environ.get(HEARTBEATS)
    if not folder:
        return
    # Where the process has both JAX and torch, the second one finds the address in use.
    with contextlib.suppress(OSError, RuntimeError):
        offer_stacks(folder)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"{folder}/{SOCKET}{os.getpid()}")
        listener.listen()
        threading.Thread(target=_serve, args=(listener,), name="tpu-tracing", daemon=True).start()


def _serve(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError, ValueError):
            asked = json.loads(connection.makefile("r", encoding="utf-8").readline())
            connection.sendall(json.dumps({"error": _trace(asked["folder"], asked["seconds"])}).encode())


def _trace(folder: str, seconds: float) -> str:
    """Write a trace of the next seconds; what has gone wrong, empty if nothing has."""
    try:
        stop = _start(folder)
        time.sleep(seconds)
        stop()
    except Exception as error:  # noqa: BLE001 - the program goes on whatever its profiler says
        return f"{type(error).__name__}: {error}"
    return ""


def _start(folder: str) -> Callable[[], Any]:
    """Start the profiler of the framework that has the chips; returns what stops it."""
    if "torch_tpu" in sys.modules:
        torch = importlib.import_module(_TORCH)
        levels = {"host_tracer_level": _HOST, "device_tracer_level": _DEVICE, "python_tracer_level": _PYTHON}
        torch.start_trace(folder, profiler_options=torch.ProfileOptions(**levels))
        return torch.stop_trace  # type: ignore[no-any-return]
    jax = importlib.import_module("jax")
    jax.profiler.start_trace(folder)
    return jax.profiler.stop_trace  # type: ignore[no-any-return]

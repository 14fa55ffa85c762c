"""What runs in the place of a Ray driver until the cluster is complete, and then becomes the driver.

The launcher hands this source to the interpreter that has Ray: `python -c SOURCE ADDRESS CHIPS SECONDS CMD…`.
It asks the GCS for its table of nodes, which is one small request, twice a second. Ray's command line would
import all of Ray for each question, and a dashboard need not be there.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from typing import Any, Callable, Mapping

_ALIVE = 0
_POLL_SECONDS = 0.5
_NEWS_SECONDS = 30.0
_ASK_SECONDS = 10.0
_SHOWN = 10
_JOB = ("NAME", "NUM_SLICES", "HOSTS_PER_SLICE")
_NOT_COMPLETE, _NO_RAY, _NOT_EXECUTABLE, _NOT_FOUND = 69, 64, 126, 127


def main(arguments: list[str]) -> None:
    """Wait, and become the command.

    Args:
        arguments: address of the GCS, chips of the job, seconds to wait at most, and the command.
    """
    address, chips, seconds, *command = arguments
    try:
        connect = importlib.import_module("ray._raylet").GcsClient
    except ImportError as error:
        _leave(_NO_RAY, f"launcher ray needs the package ray in {sys.executable}: {error}")
    wait(lambda: nodes(connect, address), float(chips), float(seconds))
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except FileNotFoundError:
        _leave(_NOT_FOUND, f"command not found: {command[0]}")
    except OSError as error:
        _leave(_NOT_EXECUTABLE, f"command cannot be executed: {command[0]}: {error.strerror}")


def nodes(connect: Callable[..., Any], address: str) -> Mapping[str, float]:
    """Chips of each living node, by its name."""
    table = connect(address=address).get_all_node_info(timeout=_ASK_SECONDS)
    alive = [node for node in table.values() if node.state == _ALIVE]
    return {node.node_name: node.resources_total.get("TPU", 0.0) for node in alive}


def wait(ask: Callable[[], Mapping[str, float]], chips: float, seconds: float) -> None:
    """Return when all chips are in the cluster; exit if that takes too long."""
    end = time.monotonic() + seconds
    said = time.monotonic()
    while True:
        try:
            found = ask()
            text = f"{sum(found.values()):g} of {chips:g} chips are there{_without(found)}"
        except Exception as error:  # noqa: BLE001 - the GCS is not there yet; Ray has many names for that
            found, text = {}, f"no answer from its GCS: {error}"
        if sum(found.values()) >= chips:
            return
        now = time.monotonic()
        if now > end:
            _leave(_NOT_COMPLETE, f"the Ray cluster is not complete after {seconds:g} s: {text}")
        if now - said > _NEWS_SECONDS:
            said = now
            _say(f"waiting for the Ray cluster: {text}")
        time.sleep(_POLL_SECONDS)


def _without(found: Mapping[str, float]) -> str:
    """Which hosts have brought no chips."""
    name, slices, hosts = (os.environ.get(f"TPU_OPERATOR_{key}", "0") for key in _JOB)
    places = ((index, host) for index in range(int(slices)) for host in range(int(hosts)))
    missing = [pod for pod in (f"{name}-{index}-{host}" for index, host in places) if not found.get(pod)]
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return f", without {', '.join(missing[:_SHOWN])}{more}" if missing else ""


def _say(text: str) -> None:
    sys.stderr.write(f"tpu-launch: {text}\n")
    sys.stderr.flush()


def _leave(code: int, text: str) -> None:
    _say(text)
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The cgroup that holds every process of a cluster, pods included.

Being in it is what makes a process the cluster's: children cannot leave it, and a reused pid is not in it. So
`down` needs no list of what was started to end all of it, and nothing but it.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from hack.devcluster.state import DevClusterError

_POLL_SECONDS = 0.02
_COLLECT_SECONDS = 5.0
_MOUNTS = Path("/proc/self/mounts")


def parse_mounts(mounts: str) -> tuple[Path, list[Path]]:
    """Find the cgroup hierarchies in the text of /proc/mounts.

    Returns:
        The hierarchy that components are put in, and all of them. With cgroup v1 every controller has one of
        its own; the unified hierarchy is preferred.

    Raises:
        DevClusterError: there is none.
    """
    entries = [line.split() for line in mounts.splitlines()]
    found = {Path(target): kind for _, target, kind, *_ in entries if kind in {"cgroup", "cgroup2"}}
    if not found:
        raise DevClusterError("no cgroup file system is mounted: containers need one below /sys/fs/cgroup")
    order = sorted(found, key=lambda path: (found[path] != "cgroup2", path.name != "pids"))
    return order[0], order


def tracking() -> Path:
    """Mount point of the hierarchy that components are put in."""
    return parse_mounts(_MOUNTS.read_text())[0]


def create(path: str) -> None:
    """Make the cgroup in every hierarchy: a kubelet refuses a cgroup root that lacks a controller."""
    mounts = parse_mounts(_MOUNTS.read_text())[1]
    for mount in mounts:
        (mount / path).mkdir(parents=True, exist_ok=True)
    if len(mounts) == 1:
        for parent in reversed(Path(path).parents):
            pass_on_controllers(mounts[0] / parent)


def pass_on_controllers(directory: Path) -> None:
    """Let the children of a cgroup have its controllers, where that is not a matter of course (cgroup v2)."""
    try:
        controllers = (directory / "cgroup.controllers").read_text().split()
    except FileNotFoundError:
        return
    for controller in controllers:
        # Some cannot be had, such as the real-time part of cpu; a kubelet will say which of those it misses.
        with contextlib.suppress(OSError):
            (directory / "cgroup.subtree_control").write_text(f"+{controller}")


def exists(path: str) -> bool:
    """Tell whether the cgroup is there, in any hierarchy."""
    return any((mount / path).exists() for mount in parse_mounts(_MOUNTS.read_text())[1])


def processes(path: str) -> set[int]:
    """Pids of all processes in the cgroup and below it, in any hierarchy. Zombies are not among them."""
    pids: set[int] = set()
    for directory in _directories(path):
        with contextlib.suppress(OSError):
            pids.update(map(int, (directory / "cgroup.procs").read_text().split()))
    return pids


def kill(path: str, timeout: float = 30) -> None:
    """End every process in the cgroup and below it, also those forked meanwhile; wait until they are gone.

    Raises:
        DevClusterError: some do not end.
    """
    deadline = time.monotonic() + timeout
    with contextlib.ExitStack() as stack:
        handles: dict[int, int] = {}
        while pids := processes(path):
            if time.monotonic() > deadline:
                raise DevClusterError(f"processes {sorted(pids)} of cgroup {path} do not end on SIGKILL")
            handles.update(_open(pids - handles.keys(), stack))
            # Looked up again with the handles in hand: from here on, no pid can come to mean another process.
            for pid in processes(path) & handles.keys():
                _signal(handles[pid], signal.SIGKILL)
            time.sleep(_POLL_SECONDS)
        # Not for ever: it is init that collects what has ended, and some containers have none that does.
        patience = time.monotonic() + _COLLECT_SECONDS
        while time.monotonic() < patience and any(_signal(handle, 0) for handle in handles.values()):
            time.sleep(_POLL_SECONDS)


def remove(path: str, timeout: float = 10) -> None:
    """Remove the empty cgroup, what is below it, and its parent if that is empty too."""
    deadline = time.monotonic() + timeout
    # A cgroup whose last process has just died stays busy for a moment.
    while left := [directory for directory in _directories(path) if not _rmdir(directory)]:
        if time.monotonic() > deadline:
            raise DevClusterError(f"cannot remove cgroups: {', '.join(map(str, left))}")
        time.sleep(_POLL_SECONDS)
    for mount in parse_mounts(_MOUNTS.read_text())[1]:
        _rmdir(mount / Path(path).parent)


def _open(pids: set[int], stack: contextlib.ExitStack) -> dict[int, int]:
    handles = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            handles[pid] = os.pidfd_open(pid)
            stack.callback(os.close, handles[pid])
    return handles


def _signal(handle: int, signum: int) -> bool:
    """Send a signal, or 0 for none, and tell whether the process is there, be it as a zombie."""
    try:
        signal.pidfd_send_signal(handle, signum)
    except ProcessLookupError:
        return False
    return True


def _directories(path: str) -> Iterator[Path]:
    """All directories of the cgroup, children before parents."""
    for mount in parse_mounts(_MOUNTS.read_text())[1]:
        walk: Iterable[tuple[str, list[str], list[str]]] = os.walk(mount / path, topdown=False)
        yield from (Path(directory) for directory, _, _ in walk)


def _rmdir(directory: Path) -> bool:
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True

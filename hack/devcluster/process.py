"""Starting, finding and stopping the components of a cluster."""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hack.devcluster import cgroups
from hack.devcluster.shell import PATH, run
from hack.devcluster.state import DevClusterError, Layout

_LOG_LINES = 15
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.05

# Runs in a session of its own, so that the component outlives the command and its terminal. It enters the
# cgroup before it becomes the component: there is no moment at which `down` would not find it.
_LAUNCH = 'exec </dev/null 2>>"$1"; echo 0 >"$2" || exit 1; echo $$; exec >>"$1"; shift 2; exec "$@"'


Argv = Sequence[str | Path]


@dataclass(frozen=True)
class Component:
    """A long-running process of the cluster."""

    name: str
    argv: Argv
    health: str | None = None
    """URL that answers 200 once it works."""
    holder: str | None = None
    """The component whose mount namespace it runs in; None for the host's."""


def start(layout: Layout, component: Component) -> None:
    """Start a component in the cluster's network namespace and cgroup."""
    leaf = cgroups.tracking() / layout.cgroup / component.name
    leaf.mkdir(exist_ok=True)
    launch = ["setsid", "--fork", "sh", "-c", _LAUNCH, "sh", str(layout.log(component.name))]
    command = [*enter(layout, component.holder), *component.argv]
    pid = run([*launch, leaf / "cgroup.procs", *command], env=_environment()).strip()
    if not pid:
        raise failure(layout, component.name, "cannot be started")
    (layout.pids / component.name).write_text(pid)


def enter(layout: Layout, holder: str | None = None) -> list[str]:
    """Command prefix that runs a program in the cluster's network and, with a holder, on its node."""
    # nsenter rather than `ip netns exec`, which mounts a new /sys and so hides the cgroups.
    mounts = [f"--mount=/proc/{require(layout, holder)}/ns/mnt"] if holder else []
    return ["nsenter", f"--net=/run/netns/{layout.netns}", *mounts, "--"]


def find(layout: Layout, name: str) -> int | None:
    """Return the pid of a component, None if it does not run."""
    try:
        pid = int((layout.pids / name).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return pid if pid in cgroups.processes(f"{layout.cgroup}/{name}") else None


def require(layout: Layout, name: str) -> int:
    """Return the pid of a component.

    Raises:
        DevClusterError: it does not run; the message has the end of its log.
    """
    pid = find(layout, name)
    if pid is None:
        raise failure(layout, name, "is not running")
    return pid


def send(layout: Layout, name: str, signum: int) -> None:
    """Send a signal to a component."""
    with _handle(layout, name) as fd:
        signal.pidfd_send_signal(fd, signum)


def stop(layout: Layout, name: str) -> None:
    """Stop a component: SIGTERM, after ten seconds SIGKILL. Returns once it has ended."""
    with _handle(layout, name) as fd:
        for signum in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signum)
            if select.select([fd], [], [], _STOP_SECONDS)[0]:
                return
    raise failure(layout, name, "does not end on SIGKILL")


def wait(
    layout: Layout, names: Iterable[str], late: Callable[[], str | None], *, seconds: float = 60
) -> None:
    """Wait until nothing is late, while components run.

    Args:
        layout: the cluster.
        names: components that must not end meanwhile.
        late: returns the name of a component that is not ready yet, None when all is well.
        seconds: how long to wait.

    Raises:
        DevClusterError: a component has ended, or time is up; the message has the end of its log.
    """
    watched = list(names)
    deadline = time.monotonic() + seconds
    while blame := late():
        for name in watched:
            if find(layout, name) is None:
                raise failure(layout, name, "has ended unexpectedly")
        if time.monotonic() > deadline:
            raise failure(layout, blame, f"is not ready after {seconds:g} seconds")
        time.sleep(_POLL_SECONDS)


def await_path(layout: Layout, name: str, path: Path) -> None:
    """Wait until a file appears that a component makes."""
    wait(layout, [name], lambda: None if path.exists() else name)


def failure(layout: Layout, name: str, why: str) -> DevClusterError:
    """Build the error about a component, with the end of its log."""
    log = layout.log(name)
    try:
        lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    except OSError:
        lines = []
    tail = "".join(f"\n  | {line}" for line in lines) or " no output"
    return DevClusterError(f"{name} {why}\nlast lines of {log}:{tail}")


@contextlib.contextmanager
def _handle(layout: Layout, name: str) -> Iterator[int]:
    fd = os.pidfd_open(require(layout, name))
    try:
        require(layout, name)
        yield fd
    finally:
        os.close(fd)


def _environment() -> dict[str, str]:
    """Proxies, tokens and the like of the caller are none of the cluster's business."""
    return {"PATH": PATH, "HOME": "/"}

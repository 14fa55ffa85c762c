"""What the host must have besides Python and Go."""

import os
import shutil
import sys
from pathlib import Path

from hack.devcluster.shell import PATH, run
from hack.devcluster.state import DevClusterError

_CNI = tuple(map(Path, ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")))
# Debian package by the command that it is needed for; these for any cluster, the others for real nodes.
_CONTROL_PLANE = {"ip": "iproute2", "nsenter": "util-linux", "setsid": "util-linux"}
_NODES = {
    "runc": "runc",
    "nft": "nftables",
    "conntrack": "conntrack",
    "sysctl": "procps",
    "mount": "mount",
    "unshare": "util-linux",
}
_INTERPRETER = 3
_ELF = b"\x7fELF"


def require(*, real_nodes: bool) -> None:
    """Install what is missing, or say what is.

    Raises:
        DevClusterError: this cannot be done here; the message says what to do.
    """
    if sys.platform != "linux":
        raise DevClusterError("the dev cluster needs Linux; elsewhere use CLUSTER=kind with a Docker engine")
    if os.geteuid() != 0:
        raise DevClusterError("the dev cluster needs root, for namespaces and containers: run it with sudo")
    absent = missing(real_nodes=real_nodes)
    if not absent:
        return
    if not _which("apt-get"):
        raise DevClusterError(f"install these first (names of the Debian packages): {' '.join(absent)}")
    _install(absent)
    if still := missing(real_nodes=real_nodes):
        raise DevClusterError(
            f"apt-get installed {' '.join(absent)}, but {' '.join(still)} is still not found"
        )


def missing(*, real_nodes: bool) -> list[str]:
    """Debian packages that are needed and not there."""
    commands = {**_CONTROL_PLANE, **_NODES} if real_nodes else _CONTROL_PLANE
    absent = {package for command, package in commands.items() if not _which(command)}
    if real_nodes and not cni_plugins():
        absent.add("containernetworking-plugins")
    if real_nodes and not busybox():
        absent.add("busybox-static")
    return sorted(absent)


def cni_plugins() -> Path | None:
    """Directory of the CNI plugins."""
    return next((path for path in _CNI if (path / "bridge").exists()), None)


def busybox() -> Path | None:
    """A busybox that needs no libraries."""
    path = _which("busybox")
    return Path(path) if path and is_static(Path(path).read_bytes()) else None


def is_static(program: bytes) -> bool:
    """Tell whether a 64-bit ELF program has no interpreter, and so needs no libraries."""
    if not program.startswith(_ELF):
        return False
    offset = int.from_bytes(program[32:40], sys.byteorder)
    size, count = (int.from_bytes(program[at : at + 2], sys.byteorder) for at in (54, 56))
    starts = (offset + index * size for index in range(count))
    return all(int.from_bytes(program[at : at + 4], sys.byteorder) != _INTERPRETER for at in starts)


def _install(packages: list[str]) -> None:
    print(f"installing {' '.join(packages)} with apt-get", file=sys.stderr, flush=True)
    environment = {**os.environ, "PATH": PATH, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *packages]
    try:
        run(install, env=environment)
    except DevClusterError:
        run(["apt-get", "update", "--quiet"], env=environment)
        run(install, env=environment)


def _which(command: str) -> str | None:
    return shutil.which(command, path=PATH)

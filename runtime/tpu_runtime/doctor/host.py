"""What the doctor sees of a host, and what it says about it.

Everything that a check asks comes through `Host`, so that tests can show it any host.
"""

from __future__ import annotations

import ctypes
import enum
import os
import resource
import shutil
import socket
import struct
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Optional

from tpu_runtime.environment import BadEnvironmentError, HostEnvironment, read_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

GIB = 1 << 30


class Severity(enum.IntEnum):
    """How bad it is. Its order is that of badness."""

    OK = 0
    INFO = 1
    WARNING = 2
    ERROR = 3


@dataclass(frozen=True)
class Finding:
    """One thing that a check has seen.

    Attributes:
        severity: how bad it is.
        found: what was seen.
        why: why that matters; empty where all is well.
        remedy: what to do about it.
    """

    severity: Severity
    found: str
    why: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Clock:
    """What the kernel thinks of its clock."""

    synchronised: bool
    error_seconds: float


@dataclass(frozen=True)
class Space:
    """A file system's size in bytes."""

    total: int
    free: int


def resolve(name: str) -> tuple[str, ...]:
    """All addresses of a name.

    Raises:
        OSError: there is none.
    """
    try:
        return tuple({str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    except UnicodeError as error:  # a label that no DNS name can have
        raise OSError(f"not a DNS name: {error}") from None


def is_local(address: str) -> bool:
    """Whether an address is one of this machine's, as seen from its network namespace."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def can_listen(port: int) -> bool:
    """Whether a server could have a TCP port, as servers ask for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def space(path: Path) -> Space:
    """Size of the file system of a path.

    Raises:
        OSError: there is no such path.
    """
    usage = shutil.disk_usage(path)
    return Space(usage.total, usage.free)


_UNSYNCHRONISED = 0x40
_TIMEX = struct.Struct("@Illlli")


def clock() -> Optional[Clock]:
    """The kernel's account of its clock (adjtimex, which only reads here); None where there is none."""
    buffer = ctypes.create_string_buffer(256)
    try:
        if ctypes.CDLL(None).adjtimex(buffer) < 0:
            return None
    except (AttributeError, OSError):
        return None
    *_, worst, _, status = _TIMEX.unpack_from(buffer)
    return Clock(not status & _UNSYNCHRONISED, worst / 1e6)


def writable(path: Path) -> bool:
    """Whether this process may read and write a path."""
    return os.access(path, os.R_OK | os.W_OK)


@dataclass(frozen=True)
class Host:
    """A host as the checks see it.

    Attributes:
        variables: the environment.
        root: where its file system begins.
        python: the interpreter of the job's processes; empty for the first `python3` on PATH.
    """

    variables: Mapping[str, str]
    root: Path = Path("/")
    python: str = ""
    resolve: Callable[[str], tuple[str, ...]] = resolve
    is_local: Callable[[str], bool] = is_local
    can_listen: Callable[[int], bool] = can_listen
    limit: Callable[[int], tuple[int, int]] = resource.getrlimit
    space: Callable[[Path], Space] = space
    clock: Callable[[], Optional[Clock]] = clock
    writable: Callable[[Path], bool] = writable
    problems: list[str] = field(default_factory=list, init=False)

    @cached_property
    def env(self) -> Optional[HostEnvironment]:
        """The environment as the launcher reads it; None where it is none of a TPU job, or a wrong one."""
        if not self.of_a_job:
            return None
        try:
            return read_environment(self.variables)
        except BadEnvironmentError as error:
            self.problems.extend(error.problems)
            return None

    @property
    def of_a_job(self) -> bool:
        """Whether the operator has made this container."""
        return "TPU_OPERATOR_KIND" in self.variables

    @property
    def emulated(self) -> bool:
        """Whether the processes run on the CPU by intention."""
        return self.variables.get("TPU_OPERATOR_EMULATE") == "cpu"

    @property
    def launcher(self) -> str:
        """The launcher, whether the environment is good or not."""
        return self.variables.get("TPU_OPERATOR_LAUNCHER", "")

    def path(self, absolute: str) -> Path:
        """A path of this host."""
        return self.root / absolute.lstrip("/")

    def text(self, absolute: str) -> Optional[str]:
        """What a small file says; None where it cannot be read."""
        try:
            return self.path(absolute).read_text(errors="replace").strip()
        except OSError:
            return None

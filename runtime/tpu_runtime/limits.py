"""Limits of the launcher and of the processes that it starts, which need not be the same."""

from __future__ import annotations

import contextlib
import resource
from typing import Iterator

_SPARE_FILES = 256
_USERS_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)


def allow_files(connections: int) -> None:
    """Let the launcher hold a connection for each host of the job."""
    soft, hard = _USERS_FILES
    wanted = connections + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and wanted > soft:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextlib.contextmanager
def users_limits() -> Iterator[None]:
    """Under what was there when the launcher started; processes started meanwhile inherit it."""
    ours = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, _USERS_FILES)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, ours)


def forbid_cores() -> None:
    """No core dumps: a TPU process that aborts would fill the node's disk with its memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

"""How the launcher ends when it is not the user's process that ends it.

The exit codes are contract A4; they follow sysexits.h where it has a fitting one.
"""

from __future__ import annotations

from typing import Optional

EXIT_ENVIRONMENT = 64
"""The environment or the command line is wrong (EX_USAGE)."""

EXIT_PEERS = 69
"""Not all hosts of the job were there in time (EX_UNAVAILABLE)."""

EXIT_INTERNAL = 70
"""The launcher itself broke (EX_SOFTWARE)."""

EXIT_STALE = 75
"""This host belongs to an attempt that is over (EX_TEMPFAIL)."""

EXIT_HANG = 77
"""The processes made no progress any more (EX_NOPERM has nothing to do with it)."""

EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
"""What a shell answers for a command that it cannot start."""

USER_ERROR = "UserError"
OUT_OF_MEMORY = "OutOfMemory"
LAUNCHER_ERROR = "LauncherError"
STARTUP_TIMEOUT = "StartupTimeout"
HANG = "Hang"


class LaunchError(Exception):
    """The launcher gives up.

    Attributes:
        exit_code: what the launcher exits with.
        cause: one of the causes of contract A2.
        local_rank: the local process that could not be started, if it is about one.
    """

    def __init__(
        self,
        message: str,
        exit_code: int,
        cause: str = LAUNCHER_ERROR,
        local_rank: Optional[int] = None,
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.cause = cause
        self.local_rank = local_rank

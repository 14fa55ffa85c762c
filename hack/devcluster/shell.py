"""Running short commands."""

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from hack.devcluster.state import DevClusterError

# Administrators' directories are not in everybody's PATH, and they hold ip, nft and runc.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run(
    argv: Sequence[str | Path],
    *,
    stdin: IO[bytes] | int = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a command to its end and return its standard output.

    Args:
        argv: the command and its arguments.
        stdin: its standard input.
        env: its whole environment; by default just a PATH.

    Raises:
        DevClusterError: it could not be run or failed; the message has its error output.
    """
    words = [str(word) for word in argv]
    environment = env or {"PATH": PATH}
    try:
        done = subprocess.run(words, stdin=stdin, capture_output=True, env=environment, check=False)
    except OSError as error:
        raise DevClusterError(f"cannot run {words[0]}: {error.strerror}") from error
    if done.returncode:
        detail = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise DevClusterError(f"{shlex.join(words)} failed: {detail}")
    return done.stdout.decode(errors="replace")

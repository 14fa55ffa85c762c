"""One command at a time for each cluster."""

import contextlib
import socket
import sys
import time
from collections.abc import Iterator

from hack.devcluster.state import Layout

_POLL_SECONDS = 0.2


@contextlib.contextmanager
def exclusive(layout: Layout) -> Iterator[None]:
    """Wait until no other command changes the cluster, and keep others out meanwhile."""
    # An abstract socket is given up by the kernel when its owner ends, and is no file that somebody would
    # have to remove.
    with socket.socket(socket.AF_UNIX) as claim:
        waiting = False
        while not _bind(claim, f"\0tpu-devcluster/{layout.id}"):
            if not waiting:
                print(f"waiting for another command on cluster {layout.name!r}", file=sys.stderr, flush=True)
            waiting = True
            time.sleep(_POLL_SECONDS)
        yield


def _bind(claim: socket.socket, address: str) -> bool:
    try:
        claim.bind(address)
    except OSError:
        return False
    return True

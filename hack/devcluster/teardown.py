"""From anything to nothing: works on what is found, not on what should be there."""

import contextlib
import shutil

from hack.devcluster import cgroups, network
from hack.devcluster.lock import exclusive
from hack.devcluster.state import DEFAULT_NAME, Layout


def down(layout: Layout) -> bool:
    """End the cluster and remove all of it.

    Returns:
        Whether there was anything to remove.

    Raises:
        DevClusterError: something resists; it can be called again.
    """
    with exclusive(layout):
        return clear(layout)


def clear(layout: Layout, *, keep_logs: bool = False) -> bool:
    """Do what `down` does, for a caller that has the cluster to itself."""
    found = layout.dir.exists() or network.exists(layout.netns) or cgroups.exists(layout.cgroup)
    # Everything else hangs on the processes: the nodes' mounts, the pods' interfaces, the cgroups.
    cgroups.kill(layout.cgroup)
    network.remove(layout.netns)
    cgroups.remove(layout.cgroup)
    _remove_files(layout, keep_logs=keep_logs)
    return found


def _remove_files(layout: Layout, *, keep_logs: bool) -> None:
    if layout.name == DEFAULT_NAME:
        layout.kubeconfig.unlink(missing_ok=True)
    if not layout.dir.exists():
        return
    for path in layout.dir.iterdir():
        if path.is_dir() and not path.is_symlink():
            if not (keep_logs and path == layout.logs):
                shutil.rmtree(path)
        else:
            path.unlink()
    # Kept while logs, or other clusters, are in them.
    with contextlib.suppress(OSError):
        layout.dir.rmdir()
        layout.home.rmdir()

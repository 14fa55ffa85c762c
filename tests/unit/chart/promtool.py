"""promtool: that of PATH, or the one of Debian's package, unpacked for this user and not installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from hack.devcluster import binaries


def ensure() -> Path:
    """Where it is, after a download if need be.

    Raises:
        AssertionError: there is none, and none can be had; the message says what to do.
    """
    if found := shutil.which("promtool"):
        return Path(found)
    kept = binaries.cache() / "bin" / "promtool"
    if not kept.exists():
        assert shutil.which("apt-get"), "promtool is missing: install Prometheus and put promtool on PATH"
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as directory:
            _unpack(Path(directory)).rename(kept)
    return kept


def _unpack(directory: Path) -> Path:
    command = ["apt-get", "download", "--quiet", "prometheus"]
    if subprocess.run(command, cwd=directory, capture_output=True, check=False).returncode:
        subprocess.run(["apt-get", "update", "--quiet"], capture_output=True, check=True)
        subprocess.run(command, cwd=directory, capture_output=True, check=True)
    (package,) = directory.glob("*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, directory], check=True)
    return directory / "usr" / "bin" / "promtool"

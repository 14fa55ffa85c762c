"""Container images without a registry."""

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

from hack.devcluster import nodes, packages
from hack.devcluster.process import enter
from hack.devcluster.shell import run
from hack.devcluster.state import DevClusterError, Layout


def load(layout: Layout, index: int, archive: Path) -> None:
    """Import an image archive into a node.

    Raises:
        DevClusterError: the archive cannot be read, or containerd refuses it.
    """
    try:
        file = archive.open("rb")
    except OSError as error:
        raise DevClusterError(f"cannot read image archive {archive}: {error.strerror}") from error
    # Not through containerd's transfer service, which takes half as long again.
    command = [*enter(layout, nodes.name(index)), *nodes.ctr("images", "import", "--local", "-")]
    with file:
        try:
            run(command, stdin=file)
        except DevClusterError as error:
            reason = str(error).splitlines()[-1]
            raise DevClusterError(f"{nodes.name(index)} cannot import {archive}: {reason}") from error


def write_busybox(archive: Path, name: str) -> None:
    """Write an image of nothing but busybox, that sleeps by default.

    Raises:
        DevClusterError: there is no static busybox.
    """
    busybox = packages.busybox()
    if busybox is None:
        raise DevClusterError("the static busybox is gone: install busybox-static")
    layer = _layer(busybox.read_bytes(), run([busybox, "--list"]).split())
    _write(archive, name, layer, {"Entrypoint": ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin"]})


def write_program(archive: Path, name: str, program: Path) -> None:
    """Write an image of nothing but one program, which needs no libraries and runs without rights."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        _add(tar, "program", program.read_bytes(), mode=0o755)
    _write(archive, name, buffer.getvalue(), {"Entrypoint": ["/program"], "User": "65532:65532"})


def _write(archive: Path, name: str, layer: bytes, settings: dict[str, object]) -> None:
    """Write an image of one layer, in the format of `docker save`."""
    config = {
        "architecture": _architecture(),
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        _add(tar, "layer.tar", layer)
        _add(tar, "config.json", json.dumps(config).encode())
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def _layer(busybox: bytes, applets: list[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        _add(tar, "bin/busybox", busybox, mode=0o755)
        for applet in applets:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            if applet != "busybox":
                tar.addfile(link)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    tar.addfile(info, io.BytesIO(data))


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())

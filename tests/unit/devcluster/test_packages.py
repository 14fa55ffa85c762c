from __future__ import annotations

import json
import struct
import tarfile
from typing import IO, TYPE_CHECKING

import pytest

from hack.devcluster import images, packages
from hack.devcluster.state import DevClusterError

if TYPE_CHECKING:
    from pathlib import Path


def elf(*segments: int) -> bytes:
    """Just so much of a 64-bit ELF program as says which segments it has."""
    header = bytearray(64)
    header[:4] = b"\x7fELF"
    header[32:40] = struct.pack("=Q", 64)
    header[54:58] = struct.pack("=HH", 56, len(segments))
    return bytes(header) + b"".join(struct.pack("=I", segment).ljust(56, b"\0") for segment in segments)


def member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    file = tar.extractfile(name)
    assert file is not None
    return file


def test_program_with_an_interpreter_is_not_static() -> None:
    assert packages.is_static(elf(1, 1))
    assert not packages.is_static(elf(1, 3))
    assert not packages.is_static(b"#!/bin/sh\n")


def test_ordinary_user_is_told_to_become_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(DevClusterError, match="needs root"):
        packages.require(real_nodes=False)


def test_other_systems_are_told_of_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(DevClusterError, match=r"needs Linux.*CLUSTER=kind"):
        packages.require(real_nodes=False)


def test_missing_packages_are_named_where_they_cannot_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(packages, "_which", lambda _: None)
    with pytest.raises(DevClusterError, match=r"install these first .*: iproute2 util-linux"):
        packages.require(real_nodes=False)


def test_busybox_image_is_what_docker_save_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "busybox"
    program.write_text("#!/bin/sh\necho busybox\necho sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(packages, "busybox", lambda: program)
    images.write_busybox(tmp_path / "image.tar", "localhost/x:1")
    with tarfile.open(tmp_path / "image.tar") as tar:
        manifest = json.load(member(tar, "manifest.json"))[0]
        assert manifest["RepoTags"] == ["localhost/x:1"]
        config = json.load(member(tar, manifest["Config"]))
        with tarfile.open(fileobj=member(tar, manifest["Layers"][0])) as layer:
            assert layer.getnames() == ["bin/busybox", "bin/sh"]
    assert len(config["rootfs"]["diff_ids"]) == 1

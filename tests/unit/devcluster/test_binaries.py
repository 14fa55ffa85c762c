from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hack.devcluster import binaries
from hack.devcluster.binaries import Tool
from hack.devcluster.state import DevClusterError

if TYPE_CHECKING:
    from pathlib import Path

GO = "go1.26.8 linux amd64"


def test_kubernetes_is_stamped_with_the_pinned_version() -> None:
    flags = binaries.tools()["kubelet"].flags()
    gomod = (binaries.TOOLS / "kubernetes" / "go.mod").read_text()
    version = next(
        line.split()[1] for line in gomod.splitlines() if line.strip().startswith("k8s.io/kubernetes ")
    )
    assert f"-X k8s.io/component-base/version.gitVersion={version}" in flags[-1]
    assert f"-X k8s.io/client-go/pkg/version.gitVersion={version}" in flags[-1]


def test_every_binary_is_pinned_as_a_tool() -> None:
    for name, tool in binaries.tools().items():
        gomod = (binaries.TOOLS / tool.module / "go.mod").read_text()
        assert tool.package in gomod.partition("require (")[0], name


@pytest.mark.parametrize(
    ("tool", "gomod", "gosum", "version"),
    [
        (Tool("m", "p", tags="t"), b"mod", b"sum", GO),
        (Tool("m", "p"), b"other", b"sum", GO),
        (Tool("m", "p"), b"mod", b"other", GO),
        (Tool("m", "p"), b"mod", b"sum", "go1.27.0 linux amd64"),
    ],
    ids=["flags", "go.mod", "go.sum", "go version"],
)
def test_key_changes_with_all_that_decides_the_outcome(
    tool: Tool, gomod: bytes, gosum: bytes, version: str
) -> None:
    base = binaries.key(Tool("m", "p"), b"mod", b"sum", GO)
    assert binaries.key(tool, gomod, gosum, version) != base


def test_key_does_not_depend_on_the_clone() -> None:
    assert binaries.key(Tool("m", "p"), b"mod", b"sum", GO) == binaries.key(
        Tool("n", "p"), b"mod", b"sum", GO
    )


def test_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(binaries.cache()) == "/somewhere/tpu-operator"


def test_unknown_binary_is_refused_with_those_there_are() -> None:
    with pytest.raises(DevClusterError, match=r"unknown binaries: nope; there are .*kubelet"):
        binaries.ensure(["kubectl", "nope"])


def test_missing_go_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(DevClusterError, match=r"^Go is missing: install Go 1\.\d+\.\d+ or newer"):
        binaries.go_version("etcd")


def test_too_old_go_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = tmp_path / "future"
    module.mkdir()
    (module / "go.mod").write_text("module future\n\ngo 1.999.0\n")
    monkeypatch.setattr(binaries, "TOOLS", tmp_path)
    monkeypatch.setenv("GOTOOLCHAIN", "local")
    with pytest.raises(DevClusterError, match=r"^Go is too old: install Go 1\.999\.0 or newer"):
        binaries.go_version("future")


def test_failed_build_shows_what_go_says_and_leaves_no_binary(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = tmp_path / "tools" / "broken"
    module.mkdir(parents=True)
    (module / "go.mod").write_text("module broken\n\ngo 1.21\n")
    (module / "go.sum").touch()
    monkeypatch.setattr(binaries, "TOOLS", tmp_path / "tools")
    monkeypatch.setattr(binaries, "tools", lambda: {"broken": Tool("broken", "./absent")})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DevClusterError, match=r"building broken failed(?s:.*)absent"):
        binaries.ensure(["broken"])
    assert not list(tmp_path.rglob("broken-*/broken"))

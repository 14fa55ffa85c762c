"""Kubernetes and its surroundings, built from the Go modules pinned in hack/tools.

Built once for a user: a build is found again by a hash of all that decides its outcome, so that a fresh
clone builds nothing.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hack.devcluster.state import CHECKOUT, DevClusterError

TOOLS = CHECKOUT / "hack" / "tools"
PEERS = ("jobset", "lws", "kuberay")
"""Other operators, which benchmarks compare with. No cluster needs them."""
_STRIP = "-s -w"
_LOG_LINES = 20


@dataclass(frozen=True)
class Tool:
    """A binary and how it is built."""

    module: str
    """Directory below hack/tools."""
    package: str
    ldflags: str = _STRIP
    tags: str = ""

    def flags(self) -> list[str]:
        """Flags of `go build`."""
        tags = ["-tags", self.tags] if self.tags else []
        return ["-trimpath", *tags, "-ldflags", self.ldflags]


def _kubernetes_ldflags(gomod: str) -> str:
    """Stamp the version: clients and servers that say v0.0.0 are taken for too old."""
    found = re.search(r"^\s*k8s\.io/kubernetes (v(\d+)\.(\d+)\.\S+)", gomod, re.MULTILINE)
    if not found:
        raise DevClusterError("hack/tools/kubernetes/go.mod does not require k8s.io/kubernetes")
    version, major, minor = found.groups()
    base = "k8s.io/component-base/version"
    stamps = {
        f"{base}.gitVersion": version,
        f"{base}.gitMajor": major,
        f"{base}.gitMinor": minor,
        "k8s.io/client-go/pkg/version.gitVersion": version,
    }
    return " ".join([_STRIP, *(f"-X {name}={value}" for name, value in stamps.items())])


def tools() -> dict[str, Tool]:
    """All binaries by name."""
    stamped = _kubernetes_ldflags((TOOLS / "kubernetes" / "go.mod").read_text())
    kubernetes = (
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kubelet",
        "kubectl",
        "kube-proxy",
    )
    containerd = ("containerd", "containerd-shim-runc-v2", "ctr")
    # Snapshotters that need C libraries or kernel modules, and that nobody uses here.
    untagged = "no_btrfs no_devmapper no_zfs"
    return {
        **{name: Tool("kubernetes", f"k8s.io/kubernetes/cmd/{name}", stamped) for name in kubernetes},
        "etcd": Tool("etcd", "go.etcd.io/etcd/server/v3"),
        **{
            name: Tool("containerd", f"github.com/containerd/containerd/v2/cmd/{name}", tags=untagged)
            for name in containerd
        },
        "coredns": Tool("coredns", "github.com/coredns/coredns"),
        "helm": Tool("helm", "helm.sh/helm/v4/cmd/helm"),
        "kwok": Tool("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
        "jobset": Tool("jobset", "sigs.k8s.io/jobset"),
        "lws": Tool("lws", "sigs.k8s.io/lws/cmd"),
        "kuberay": Tool("kuberay", "github.com/ray-project/kuberay/ray-operator"),
        "epp": Tool("epp", "sigs.k8s.io/gateway-api-inference-extension/cmd/epp"),
        "kueue": Tool("kueue", "sigs.k8s.io/kueue/cmd/kueue"),
    }


def ensure(names: Iterable[str]) -> dict[str, Path]:
    """Build what is missing and return where each binary is.

    Raises:
        DevClusterError: a name is unknown, Go is missing or too old, or a build failed.
    """
    known = tools()
    wanted = list(names)
    if unknown := sorted(set(wanted) - set(known)):
        raise DevClusterError(f"unknown binaries: {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    versions = {module: go_version(module) for module in {known[name].module for name in wanted}}
    paths = {name: _path(name, known[name], versions[known[name].module]) for name in wanted}
    if missing := [name for name in wanted if not paths[name].exists()]:
        with _lock(cache() / "build.lock"):
            _build_all({name: (known[name], paths[name]) for name in missing})
    return paths


def source(directory: str, module: str) -> Path:
    """Where the sources of a Go module are, as a directory below hack/tools pins it; fetched if need be."""
    command = ["go", "mod", "download", "-json", module]
    done = _go(command, TOOLS / directory, stderr=subprocess.PIPE)
    if done.returncode:
        reason = done.stderr.strip() or json.loads(done.stdout).get("Error", "")
        raise DevClusterError(f"the sources of {module} are missing: {reason}")
    return Path(json.loads(done.stdout)["Dir"])


def cache() -> Path:
    """Directory of what is kept between clones."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tpu-operator"


def key(tool: Tool, gomod: bytes, gosum: bytes, version: str) -> str:
    """Hash all that decides the outcome of a build."""
    inputs = [tool.flags(), hashlib.sha256(gomod).hexdigest(), hashlib.sha256(gosum).hexdigest(), version]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]


def go_version(module: str) -> str:
    """Return the version and platform of the Go that builds a module.

    Raises:
        DevClusterError: there is none, or it is too old for the module and may not fetch a newer one.
    """
    directory = TOOLS / module
    needed = _go_directive(directory)
    try:
        command = ["go", "env", "GOVERSION", "GOOS", "GOARCH"]
        done = _go(command, directory, stderr=subprocess.PIPE)
    except FileNotFoundError:
        raise DevClusterError(
            f"Go is missing: install Go {needed} or newer and put it on PATH, to build Kubernetes"
        ) from None
    found, *platform = done.stdout.split() or [""]
    if done.returncode or _numbers(found) < _numbers(needed):
        reason = done.stderr.strip() or f"this is {found}"
        raise DevClusterError(f"Go is too old: install Go {needed} or newer ({reason})")
    return " ".join([found, *platform])


def _go(
    command: Sequence[str | Path], directory: Path, stderr: int = subprocess.STDOUT
) -> subprocess.CompletedProcess[str]:
    """Run Go in a module."""
    return subprocess.run(
        command,
        cwd=directory,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        check=False,
    )


def _go_directive(directory: Path) -> str:
    found = re.search(r"^go (\S+)", (directory / "go.mod").read_text(), re.MULTILINE)
    return found[1] if found else "1.21"


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _path(name: str, tool: Tool, version: str) -> Path:
    directory = TOOLS / tool.module
    build = key(tool, (directory / "go.mod").read_bytes(), (directory / "go.sum").read_bytes(), version)
    return cache() / "bin" / f"{tool.module}-{build}" / name


def _build_all(missing: dict[str, tuple[Tool, Path]]) -> None:
    began = time.monotonic()
    for number, (name, (tool, path)) in enumerate(missing.items(), 1):
        if path.exists():  # built by whoever held the lock before
            continue
        minutes, seconds = divmod(int(time.monotonic() - began), 60)
        _say(f"building {name} ({number} of {len(missing)}, {minutes}:{seconds:02} elapsed)")
        _build(name, tool, path)


def _build(name: str, tool: Tool, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Moved into place when complete: an interrupted build leaves nothing that looks like a binary.
    partial = path.with_name(f".{name}.partial")
    done = _go(["go", "build", *tool.flags(), "-o", partial, tool.package], TOOLS / tool.module)
    if done.returncode:
        tail = "\n".join(f"  | {line}" for line in done.stdout.splitlines()[-_LOG_LINES:])
        raise DevClusterError(f"building {name} failed; `go build` in hack/tools/{tool.module} says:\n{tail}")
    partial.rename(path)


def _environment() -> dict[str, str]:
    """The caller's, without what would change the outcome."""
    kept = {name: value for name, value in os.environ.items() if name not in {"GOFLAGS", "GOOS", "GOARCH"}}
    return {**kept, "CGO_ENABLED": "0", "GOWORK": "off"}


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for another build")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

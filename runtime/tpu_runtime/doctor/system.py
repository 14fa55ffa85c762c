"""What the kernel and the container runtime give: memory, limits, space, the clock."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Optional

from tpu_runtime.doctor.host import GIB, Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpu_runtime.doctor.host import Host

_SHM = "/dev/shm"  # noqa: S108 - where libc keeps shared memory
_DOCKERS_SHM = 64 << 20
"""What container runtimes make /dev/shm unless told otherwise."""
_FILES = 4096
_CLOCK_SECONDS = 1.0
_CACHES = ("TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT", "JAX_COMPILATION_CACHE_DIR")
_UNLIMITED_V1 = 1 << 60


def amount(size: float) -> str:
    """Bytes for people."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / (1 << 20):.0f} MiB"


def check_shm(host: Host) -> Iterator[Finding]:
    """Compiled programs, process groups and data loaders meet in /dev/shm."""
    remedy = f"mount a memory-backed emptyDir on {_SHM}, as the operator does for its own pods"
    try:
        size = host.space(host.path(_SHM))
    except OSError:
        yield Finding(Severity.ERROR, f"there is no {_SHM}", "data loaders and caches fail", remedy)
        return
    text = f"{_SHM} has {amount(size.total)}, {amount(size.free)} free"
    if size.total <= _DOCKERS_SHM:
        why = "compile caches, process groups and data loaders share it, and crash when it is full"
        yield Finding(Severity.WARNING, text, why, remedy)
    elif size.free < _DOCKERS_SHM:
        yield Finding(Severity.WARNING, text, "it is nearly full", "remove what earlier processes have left")
    else:
        yield Finding(Severity.OK, text)


def check_limits(host: Host) -> Iterator[Finding]:
    """Limits of processes."""
    locked, _ = host.limit(resource.RLIMIT_MEMLOCK)
    if locked == resource.RLIM_INFINITY or host.emulated:
        yield Finding(Severity.OK, "memlock: unlimited" if locked < 0 else f"memlock: {amount(locked)}")
    else:
        why = "chips write to host memory that is locked for them: transfers fail with ENOMEM"
        remedy = "set LimitMEMLOCK=infinity for the node's container runtime, or give the pod CAP_IPC_LOCK"
        yield Finding(Severity.WARNING, f"memlock: {amount(locked)}", why, remedy)
    files, most = host.limit(resource.RLIMIT_NOFILE)
    wanted = max(_FILES, 2 * host.env.place.num_hosts if host.env else 0)
    if files == resource.RLIM_INFINITY or files >= wanted:
        yield Finding(Severity.OK, f"nofile: {files}")
    else:
        why = "data loaders, gloo and the gate hold a connection or file each"
        remedy = f"raise it by `ulimit -n {wanted}` (the hard limit is {most}), or on the container runtime"
        yield Finding(Severity.WARNING, f"nofile: {files}", why, remedy)
    core, _ = host.limit(resource.RLIMIT_CORE)
    if core == 0:
        yield Finding(Severity.OK, "core: off")
    else:
        why = "a TPU process that aborts fills the node's disk with its memory"
        yield Finding(
            Severity.INFO, "core dumps are on", why, "tpu-launch turns them off; else `ulimit -c 0`"
        )


def check_memory(host: Host) -> Iterator[Finding]:
    """The limits of the container's cgroup."""
    limit = _number(host, "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
    used = _number(host, "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")
    if limit is None or limit >= _UNLIMITED_V1:
        yield Finding(Severity.OK, "memory: no limit for this container")
    elif used is not None and used > limit * 0.9:
        why = "the kernel kills a process when it is full; /dev/shm and /tmp in memory count"
        remedy = "raise spec.run.resources.limits.memory"
        yield Finding(Severity.WARNING, f"memory: {amount(used)} of {amount(limit)} used", why, remedy)
    else:
        yield Finding(Severity.OK, f"memory: limit {amount(limit)}; /dev/shm counts against it")


def _number(host: Host, *paths: str) -> Optional[int]:
    texts = (host.text(path) for path in paths)
    return next((int(text) for text in texts if text is not None and text.isdecimal()), None)


def check_huge_pages(host: Host) -> Iterator[Finding]:
    """Pinning host memory for chips takes minutes in small pages."""
    enabled = host.text("/sys/kernel/mm/transparent_hugepage/enabled") or ""
    if "[always]" in enabled:
        yield Finding(Severity.OK, "transparent huge pages: always")
    elif enabled:
        severity = Severity.INFO if host.emulated else Severity.WARNING
        why = "the TPU runtime starts and stops more slowly, from v5e on by far"
        remedy = "on the node: echo always > /sys/kernel/mm/transparent_hugepage/enabled"
        yield Finding(severity, f"transparent huge pages: {enabled}", why, remedy)


def check_space(host: Host) -> Iterator[Finding]:
    """Room in /tmp and in the directories of compile caches."""
    places = {"/tmp": "TMPDIR"}  # noqa: S108
    for name in _CACHES:
        value = host.variables.get(name, "")
        if value.startswith("/"):
            places.setdefault(value, name)
    for place, name in places.items():
        yield _room(host, place, name)


def _room(host: Host, place: str, name: str) -> Finding:
    cache = name != "TMPDIR"
    bad = Severity.WARNING if cache else Severity.ERROR
    where = f"{place} ({name})" if cache else place
    why = "every start compiles anew" if cache else "libtpu, torch and torchrun write there"
    try:
        size = host.space(host.path(place))
    except OSError as error:
        return Finding(bad, f"{where}: {error.strerror}", why, "mount a volume there that exists")
    if not host.writable(host.path(place)):
        return Finding(
            bad, f"{where} cannot be written", why, "give the container's user access to the volume"
        )
    if size.free < GIB:
        return Finding(
            Severity.WARNING, f"{where}: {amount(size.free)} free", why, "make room, or enlarge it"
        )
    return Finding(Severity.OK, f"{where}: {amount(size.free)} free")


def check_clock(host: Host) -> Iterator[Finding]:
    """Which host failed first is told by the hosts' clocks."""
    found = host.clock()
    if found is None:
        yield Finding(Severity.INFO, "the kernel does not tell whether its clock is synchronised")
        return
    text = f"the clock is {'synchronised' if found.synchronised else 'not synchronised'}"
    why = "the operator finds the host that failed first by the hosts' clocks"
    if found.synchronised and found.error_seconds <= _CLOCK_SECONDS:
        yield Finding(Severity.OK, f"{text}, within {found.error_seconds * 1000:.0f} ms")
    else:
        remedy = "run chrony or systemd-timesyncd on the node"
        yield Finding(Severity.WARNING, f"{text}, within {found.error_seconds:.1f} s", why, remedy)

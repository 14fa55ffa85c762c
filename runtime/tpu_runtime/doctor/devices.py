"""Chips: their device nodes, their IOMMU groups, and what has been left of earlier users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from tpu_runtime.doctor.host import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tpu_runtime.doctor.host import Host

_GOOGLE = "0x1ae0"
KNOWN = {"0x005e": "v4", "0x0062": "v5p", "0x0063": "v5e", "0x006f": "v6e", "0x0076": "tpu7x"}
"""PCI devices that TorchTPU 0.2.0 knows; any other is no TPU to it."""
LOCK = "/tmp/libtpu_lockfile"  # noqa: S108 - libtpu's own choice
_NO_CHIPS = "libtpu aborts the process that asks for a TPU first"
_PLUGIN = "ask for google.com/tpu in the container's resources, and look at the node's TPU device plugin"


@dataclass(frozen=True)
class Chip:
    """A TPU on the PCI bus. `group` is its IOMMU group, None where the kernel shows none."""

    address: str
    device: str
    group: Optional[str]


def chips(host: Host) -> list[Chip]:
    """All TPUs on the PCI bus, by their addresses."""
    found = []
    for folder in sorted(host.path("/sys/bus/pci/devices").glob("*")):
        name = f"/sys/bus/pci/devices/{folder.name}"
        device = host.text(f"{name}/device") or ""
        if host.text(f"{name}/vendor") == _GOOGLE and device in KNOWN:
            group = folder / "iommu_group"
            found.append(Chip(folder.name, device, group.resolve().name if group.exists() else None))
    return found


def nodes(host: Host) -> list[Path]:
    """Device nodes through which chips are used."""
    groups = [path for path in host.path("/dev/vfio").glob("*") if path.name.isdecimal()]
    return sorted([*host.path("/dev").glob("accel[0-9]*"), *groups])


def tpus(host: Host) -> list[Path]:
    """Device nodes that can be nothing but TPUs; any device may be behind an IOMMU group."""
    groups = [host.path(f"/dev/vfio/{chip.group}") for chip in chips(host) if chip.group]
    return sorted([*host.path("/dev").glob("accel[0-9]*"), *(group for group in groups if group.exists())])


def check_devices(host: Host) -> Iterator[Finding]:
    """There is a node for each chip, and it can be opened."""
    found = tpus(host) if host.emulated else nodes(host)
    listed = ", ".join(f"/{node.relative_to(host.root)}" for node in found)
    if host.emulated:
        if found:
            text = f"TPUs are here ({listed}), and TPU_OPERATOR_EMULATE=cpu"
            yield Finding(Severity.ERROR, text, "they would lie idle", "unset the chart's value `emulate`")
        else:
            yield Finding(Severity.OK, "no chips, as the job runs on the CPU")
        return
    wanted = host.env.hardware.chips_per_host // host.env.identity.containers if host.env else 1
    if len(found) < wanted:
        text = f"{len(found)} device nodes ({listed or 'no /dev/accel* or /dev/vfio/*'}), {wanted} wanted"
        yield Finding(Severity.ERROR, text, _NO_CHIPS, _PLUGIN)
    denied = [node for node in found if not host.writable(node)]
    for node in denied:
        text = f"/{node.relative_to(host.root)} cannot be read and written"
        remedy = "run as root, or give the container's group access (securityContext.supplementalGroups)"
        yield Finding(Severity.ERROR, text, _NO_CHIPS, remedy)
    if len(found) >= wanted and not denied:
        yield Finding(Severity.OK, f"{len(found)} device nodes: {listed}")


def check_vfio(host: Host) -> Iterator[Finding]:
    """TorchTPU finds chips by the PCI bus and their IOMMU groups, and by nothing else."""
    if host.emulated:
        return
    found = chips(host)
    for chip in found:
        where = f"{KNOWN[chip.device]} chip at {chip.address}"
        if chip.group is None:
            text = f"{where} has no IOMMU group"
            yield Finding(
                Severity.WARNING, text, "TorchTPU does not see it", "boot the node with its IOMMU on"
            )
        elif not host.path(f"/dev/vfio/{chip.group}").exists():
            text = f"{where}: /dev/vfio/{chip.group} is not in this container"
            yield Finding(Severity.INFO, text, "it is not this container's, or not handed through", _PLUGIN)
    if any(node.parent.name == "vfio" for node in nodes(host)) and not host.path("/dev/vfio/vfio").exists():
        text = "/dev/vfio/vfio is missing beside the groups"
        yield Finding(Severity.ERROR, text, _NO_CHIPS, _PLUGIN)
    if not found and nodes(host) and host.launcher == "torchrun":
        text = "there are device nodes, and no TPU on the PCI bus that TorchTPU 0.2.0 knows"
        remedy = "use a node type with one of " + ", ".join(KNOWN.values()) + " through VFIO"
        yield Finding(Severity.ERROR, text, "torch.device('tpu') does not exist there", remedy)
    if found and all(chip.group for chip in found):
        groups = ", ".join(f"{chip.group}" for chip in found)
        yield Finding(Severity.OK, f"{len(found)} chips on the PCI bus, IOMMU groups {groups}")


def check_lock(host: Host) -> Iterator[Finding]:
    """A process that was killed leaves libtpu's lock, and the next one says that the TPU is in use."""
    if host.path(LOCK).exists() and not host.emulated:
        why = "libtpu says that the TPU is in use by another process"
        remedy = f"remove it, or start by tpu-launch, which does; do not share {LOCK.rpartition('/')[0]}"
        yield Finding(Severity.WARNING, f"{LOCK} is there", why, remedy)
    else:
        yield Finding(Severity.OK, f"no {LOCK}")

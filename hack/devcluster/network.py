"""The network namespace of a cluster, and its link to the host.

Bridge, packet filter and forwarding of the cluster stay inside; the host gets one interface and one /30.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network
from pathlib import Path

from hack.devcluster.shell import run
from hack.devcluster.state import DevClusterError

LINKS = IPv4Network("10.202.0.0/16")
"""Range of the links between host and clusters."""
PODS = IPv4Network("10.201.0.0/16")
"""Range of the pods: the same in every cluster, since it is not seen outside of its namespace."""
BRIDGE = "pods"
BRIDGE_IP = str(PODS[1])
"""Address of all nodes, and of the DNS server."""

_NAMES = Path("/run/netns")
_UPLINK = "host"
# Pods leave the cluster under its own address, since the host has no route to theirs.
_MASQUERADE = f"""
add table ip devcluster
add chain ip devcluster out {{ type nat hook postrouting priority srcnat; }}
add rule ip devcluster out ip saddr {PODS} oifname "{_UPLINK}" masquerade
"""


def free_links(used: Iterable[IPv4Network]) -> Iterator[tuple[str, IPv4Network]]:
    """Yield interface names and subnets that no address or route of the host overlaps."""
    taken = list(used)
    for index, block in enumerate(LINKS.subnets(new_prefix=24)):
        subnet = IPv4Network((block.network_address, 30))
        if not any(subnet.overlaps(other) for other in taken):
            yield f"tpudev{index}", subnet


def create(netns: str) -> tuple[str, str]:
    """Make the namespace and link it to the host.

    Returns:
        The host's and the namespace's address on the link.
    """
    run(["ip", "netns", "add", netns])
    run(["ip", "-n", netns, "link", "set", "lo", "up"])
    link, subnet = _claim_link(netns)
    host, inside = map(str, subnet.hosts())
    run(["ip", "addr", "add", f"{host}/30", "dev", link])
    run(["ip", "link", "set", link, "up"])
    run(["ip", "-n", netns, "addr", "add", f"{inside}/30", "dev", _UPLINK])
    run(["ip", "-n", netns, "link", "set", _UPLINK, "up"])
    run(["ip", "-n", netns, "route", "add", "default", "via", host])
    return host, inside


def add_bridge(netns: str) -> None:
    """Make the bridge that the pods of all nodes share, forwarding, and the way out."""
    run(["ip", "-n", netns, "link", "add", BRIDGE, "type", "bridge"])
    run(["ip", "-n", netns, "addr", "add", f"{BRIDGE_IP}/{PODS.prefixlen}", "dev", BRIDGE])
    run(["ip", "-n", netns, "link", "set", BRIDGE, "up"])
    inside = ["nsenter", f"--net=/run/netns/{netns}", "--"]
    run([*inside, "sysctl", "--quiet", "--write", "net.ipv4.ip_forward=1"])
    run([*inside, "nft", _MASQUERADE])


def shut_off(netns: str, subnets: Iterable[str]) -> None:
    """Have connections to addresses that nobody has fail at once; packets to them would be lost."""
    for subnet in subnets:
        run(["ip", "-n", netns, "route", "add", "unreachable", subnet])


def exists(netns: str) -> bool:
    """Tell whether the namespace is there."""
    return (_NAMES / netns).exists()


def remove(netns: str) -> None:
    """Remove the namespace with all that is in it. Its processes must have ended."""
    if not exists(netns):
        return
    # The kernel takes a namespace apart some time later; the host's end of the link shall be gone now.
    with contextlib.suppress(DevClusterError):
        run(["ip", "-n", netns, "link", "delete", _UPLINK])
    run(["ip", "netns", "delete", netns])
    # `ip` mounts this directory for the first namespace, and leaves it. It is busy while there are others.
    with contextlib.suppress(DevClusterError, OSError):
        run(["umount", _NAMES])
        _NAMES.rmdir()


def _claim_link(netns: str) -> tuple[str, IPv4Network]:
    """Create the link. Its name stands for its subnet, so that the kernel lets nobody else have either."""
    for link, subnet in free_links(_used()):
        try:
            run(["ip", "link", "add", link, "type", "veth", "peer", "name", _UPLINK, "netns", netns])
        except DevClusterError as error:
            if "File exists" not in str(error):
                raise
        else:
            return link, subnet
    raise DevClusterError(f"no /30 of {LINKS} is free on this host")


def _used() -> Iterator[IPv4Network]:
    """Destinations of all IPv4 routes of the host but the default ones."""
    for route in json.loads(run(["ip", "-json", "-4", "route", "show", "table", "all"])):
        if route["dst"] != "default":
            yield IPv4Network(route["dst"], strict=False)

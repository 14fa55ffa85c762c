"""Hosts as lines of a tree: each its own, or those together that have nothing to say, where they are many."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from tpu_operator.cli.hosts import ranges
from tpu_operator.cli.text import STATES, Cell, Node, age, flat

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tpu_operator.cli.hosts import Host
    from tpu_operator.cli.text import Row

FOLD: Final = 16
"""Things of a kind up to which each has a line of its own."""
HEADER: Final = ("NAME", "STATE", "READY", "RESTARTS", "AGE", "NODE", "INFO")


def host_nodes(hosts: Sequence[Host], now: datetime, *, everything: bool) -> list[Node]:
    """Lines of the hosts of a slice.

    Args:
        hosts: the hosts, in order.
        now: the time, for ages.
        everything: whether each has its line, however many they are.
    """
    groups = [[one] for one in hosts] if everything or len(hosts) <= FOLD else _alike(hosts)
    return [Node(host_row(group[0], now) if len(group) == 1 else _fold(group)) for group in groups]


def host_row(host: Host, now: datetime) -> Row:
    """The line of a host."""
    state = Cell(host.state, STATES.get(host.state, ""))
    restarts = str(host.restarts) if host.attempt >= 0 else ""
    ready = ("1/1" if host.ready else "0/1") if host.attempt >= 0 else ""
    return host.pod, state, ready, restarts, age(host.since, now), host.node, flat(host.detail)


def _alike(hosts: Sequence[Host]) -> list[list[Host]]:
    """Hosts that have a line together: those in the same state with nothing to say about them."""
    groups: defaultdict[tuple[object, ...], list[Host]] = defaultdict(list)
    for one in hosts:
        groups[(one.pod,) if one.detail else (one.state, one.attempt)].append(one)
    return sorted(groups.values(), key=lambda group: group[0].host or 0)


def _fold(group: Sequence[Host]) -> Row:
    one = group[0]
    numbers = ranges(host.host for host in group if host.host is not None)
    ready = f"{sum(host.ready for host in group)}/{len(group)}"
    return f"hosts {numbers}", Cell(one.state, STATES.get(one.state, "")), ready, "", "", "", ""

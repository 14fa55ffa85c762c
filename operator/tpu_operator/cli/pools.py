"""The cluster's node pools with TPUs, and what is wrong with their nodes."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from tpu_operator.catalog import CatalogError, resolve
from tpu_operator.core import names
from tpu_operator.core.numbers import whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpu_operator.core.snapshot import Node, Pod


class Pool(msgspec.Struct, frozen=True, rename="camel"):
    """A node pool.

    Attributes:
        name: its name, empty for nodes that have none.
        accelerator: value of the node label.
        topology: of its slice.
        chips_per_host: as its nodes' label says.
        nodes: how many there are.
        hosts: how many its slice has; 0 where that is not known.
        usable: nodes to which pods can go as far as nodes tell.
        held_by: jobs whose pods are in it; None where that is not known.
    """

    name: str
    accelerator: str
    topology: str
    chips_per_host: int
    nodes: int
    hosts: int
    usable: int
    held_by: tuple[str, ...] | None


def pools(nodes: Iterable[Node], pods: Iterable[Pod] | None) -> list[Pool]:
    """Node pools by name; nodes of one name with different labels are several."""
    groups: defaultdict[tuple[str, str, str, str], list[Node]] = defaultdict(list)
    for node in nodes:
        labels = node.metadata.labels
        keys = (names.NODE_POOL, names.NODE_ACCELERATOR, names.NODE_TOPOLOGY, names.NODE_CHIPS)
        pool, accelerator, topology, chips = (labels.get(key, "") for key in keys)
        groups[pool, accelerator, topology, chips].append(node)
    held = None if pods is None else _tenants(pods)
    return [_pool(key, group, held) for key, group in sorted(groups.items())]


def _pool(key: tuple[str, ...], group: Sequence[Node], held: dict[str, set[str]] | None) -> Pool:
    name, accelerator, topology, chips = key
    jobs = None if held is None else {job for node in group for job in held.get(node.metadata.name, ())}
    return Pool(
        name=name,
        accelerator=accelerator,
        topology=topology,
        chips_per_host=whole(chips) or 0,
        nodes=len(group),
        hosts=hosts(accelerator, topology, whole(chips)),
        usable=sum(not fault(node) for node in group),
        held_by=None if jobs is None else tuple(sorted(jobs)),
    )


def hosts(accelerator: str, topology: str, chips: int | None) -> int:
    """Hosts of a slice; 0 where there is no such slice."""
    try:
        return resolve(accelerator, topology, chips).hosts
    except CatalogError:
        return 0


def fault(node: Node) -> str:
    """What keeps any pod off a node, as the rest of a sentence; empty if nothing does."""
    if node.ready.status != "True":
        return "is not ready"
    if node.spec.unschedulable:
        return "is cordoned"
    if not node.chips:
        return f"offers no {names.TPU_RESOURCE}"
    return ""


def _tenants(pods: Iterable[Pod]) -> dict[str, set[str]]:
    """By node, the jobs that have pods on it."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for pod in pods:
        if pod.spec.node_name and not pod.finished:
            job = pod.metadata.labels.get(names.LABEL_JOB, "")
            found[pod.spec.node_name].add(f"{pod.metadata.namespace}/{job}")
    return found

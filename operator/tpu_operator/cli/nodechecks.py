"""What `kubectl tpu doctor` finds about nodes with TPUs and their node pools."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from tpu_operator.catalog import GENERATIONS, find
from tpu_operator.cli.findings import Finding, Severity
from tpu_operator.cli.pools import fault, pools
from tpu_operator.core import names
from tpu_operator.core.pending import counted, some

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpu_operator.core.snapshot import Node

NEEDED: Final = (names.NODE_TOPOLOGY, names.NODE_CHIPS, names.NODE_POOL)
"""Labels that a node with TPUs needs beside that of its accelerator."""


def nodes(found: Sequence[Node] | None) -> Iterator[Finding]:
    """All findings about nodes; None where they may not be looked at."""
    if found is None:
        text = "you may not look at nodes"
        yield Finding("nodes", Severity.NOTE, text, "ask for a role that may list them")
        return
    yield from _nodes(found)
    yield from _pools(found)


def _nodes(found: Sequence[Node]) -> Iterator[Finding]:
    """What nodes lack: labels by which slices find them, and the device plugin."""
    if not found:
        remedy = f"create a node pool; elsewhere than on GKE, set {names.NODE_ACCELERATOR} and the others"
        yield Finding("nodes", Severity.ERROR, f"no node has the label {names.NODE_ACCELERATOR}", remedy)
        return
    for label in NEEDED:
        lacking = [n.metadata.name for n in found if label not in n.metadata.labels]
        if lacking:
            yield Finding("nodes", Severity.ERROR, f"without the label {label}: {some(lacking)}", "set it")
    yield from _faults(found)
    kinds = {n.metadata.labels[names.NODE_ACCELERATOR] for n in found}
    for kind in sorted(kinds):
        if find(kind) is None:
            known = ", ".join(generation.name for generation in GENERATIONS)
            text = f"{kind} is not in the catalog ({known})"
            yield Finding("nodes", Severity.NOTE, text, "jobs have to say spec.tpu.chipsPerHost")


def _faults(nodes: Sequence[Node]) -> Iterator[Finding]:
    faulty: dict[str, list[str]] = {}
    for node in nodes:
        if text := fault(node):
            faulty.setdefault(text, []).append(node.metadata.name)
    for text, who in faulty.items():
        plugin = names.TPU_RESOURCE in text
        remedy = "is the device plugin running on it?" if plugin else "`kubectl describe node` says why"
        yield Finding("nodes", Severity.ERROR if plugin else Severity.WARNING, f"{text}: {some(who)}", remedy)
    good = len(nodes) - sum(map(len, faulty.values()))
    if good:
        yield Finding("nodes", Severity.OK, f"{counted(good, 'node', 'nodes')} with TPUs that pods may use")


def _pools(found: Sequence[Node]) -> Iterator[Finding]:
    """Node pools that are no slice."""
    kinds: Counter[str] = Counter()
    for pool in pools(found, None):
        if not pool.hosts or not pool.name:
            continue
        if pool.nodes % pool.hosts or (pool.hosts > 1 and pool.nodes != pool.hosts):
            has = counted(pool.nodes, "node", "nodes")
            text = f"{pool.name} has {has}, a {pool.topology} slice has {pool.hosts}"
            yield Finding("pools", Severity.WARNING, text, "a slice needs a node pool of its size")
            continue
        generation = find(pool.accelerator)
        kinds[f"{generation.name if generation else pool.accelerator} {pool.topology}"] += (
            pool.nodes // pool.hosts
        )
    if kinds:
        have = ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))
        yield Finding("pools", Severity.OK, f"whole slices: {have}")

"""Nodes of the dev cluster that pose as other slices than they were started as."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.e2e.kube import Kube

TOPOLOGY = "cloud.google.com/gke-tpu-topology"
POOL = "cloud.google.com/gke-nodepool"


@contextmanager
def relabelled(operator: Kube, labels: Mapping[str, Mapping[str, str]]) -> Iterator[None]:
    """Give nodes labels, by their names, and what they had before at the end."""
    before = {name: operator.get("node", name)["metadata"]["labels"] for name in labels}
    for name, new in labels.items():
        _label(operator, name, new)
    yield
    for name, new in labels.items():
        _label(operator, name, {key: before[name][key] for key in new})


def _label(operator: Kube, node: str, labels: Mapping[str, str]) -> None:
    pairs = [f"{key}={value}" for key, value in labels.items()]
    operator.kubectl("label", "node", node, *pairs, "--overwrite")


@pytest.fixture
def slice_of_two(operator: Kube) -> Iterator[None]:
    """Make a slice of two hosts of two of the nodes: less work than four are."""
    nodes = [node["metadata"]["name"] for node in operator.find("nodes", TOPOLOGY)[:2]]
    with relabelled(operator, {name: {TOPOLOGY: "2x4", POOL: "two"} for name in nodes}):
        yield


@pytest.fixture
def two_slices_of_one(operator: Kube) -> Iterator[None]:
    """Make slices of one host each of two of the nodes."""
    nodes = [node["metadata"]["name"] for node in operator.find("nodes", TOPOLOGY)[:2]]
    labels = {name: {TOPOLOGY: "2x2", POOL: f"single-{index}"} for index, name in enumerate(nodes)}
    with relabelled(operator, labels):
        yield

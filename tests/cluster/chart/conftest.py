"""Fixtures of the chart's tests on a control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.chart.release import Release
from tests.cluster.conftest import SYSTEM
from tests.kube import LEASE, NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hack.devcluster import Cluster
    from tests.kube import Kube

ENFORCE = "pod-security.kubernetes.io/enforce"


@pytest.fixture
def release(control_plane: Cluster, kube: Kube, tmp_path: Path) -> Iterator[Release]:
    """Nothing is installed yet. The operator's namespace enforces the level `restricted`."""
    kube.patch(NAMESPACE, SYSTEM, "", {"metadata": {"labels": {ENFORCE: "restricted"}}})
    made = Release(control_plane, tmp_path)
    yield made
    made.close()
    if made.kubectl("get", "deployment", SYSTEM, f"--namespace={SYSTEM}", check=False).returncode == 0:
        made.uninstall()
    kube.delete(LEASE, SYSTEM, SYSTEM)
    kube.patch(NAMESPACE, SYSTEM, "", {"metadata": {"labels": {ENFORCE: None}}})

"""Who may do what, by the roles of the chart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.chart.release import ACCOUNT
from tests.cluster.operator.jobs import Jobs
from tests.kube import NAMESPACE, POD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.chart.release import Release
    from tests.kube import Kube


@pytest.fixture
def other(kube: Kube, namespace: str) -> Iterator[str]:
    """A namespace that the operator does not work in."""
    name = f"{namespace}-other"
    kube.create(NAMESPACE, {"metadata": {"name": name}})
    yield name
    kube.delete(NAMESPACE, name)


@pytest.mark.timeout(600)
def test_in_one_namespace_it_works_with_rights_there_alone(
    release: Release, kube: Kube, namespace: str, other: str
) -> None:
    release.install(watchNamespaces=[namespace])
    assert release.can(ACCOUNT, "create", "pods", namespace)
    assert not release.can(ACCOUNT, "create", "pods", other)
    assert not release.can(ACCOUNT, "list", "pods")
    operator = release.start(f"--namespace={namespace}")
    Jobs(kube, other).create("elsewhere")
    jobs = Jobs(kube, namespace)
    jobs.create()
    jobs.reaches("Running")
    for pod in jobs.pods():
        jobs.end_pod(pod, 0)
    jobs.reaches("Succeeded")
    assert not kube.list(POD, other)
    assert 'code="403"' not in operator.http(operator.metrics_port, "/metrics")[1]

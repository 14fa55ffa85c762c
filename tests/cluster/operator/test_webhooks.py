"""Admission webhooks of others that take their time."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hack.devcluster import Cluster
    from tests.cluster.operator.jobs import Jobs
    from tests.kube import Kube

pytestmark = pytest.mark.usefixtures("operator")

HOOK = ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration")


@pytest.fixture
def hang(control_plane: Cluster, jobs: Jobs, kube: Kube) -> Iterator[Callable[[int, str], None]]:
    """Sends pods of the job's namespace to a webhook that takes connections and says nothing."""
    server = yaml.safe_load(control_plane.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    with socket.socket(type=socket.SOCK_DGRAM) as route:
        route.connect((urlsplit(server).hostname, 1))
        here = route.getsockname()[0]
    silent = socket.create_server((here, 0), backlog=100)
    name = f"hangs-{jobs.namespace}"

    def configure(seconds: int, policy: str) -> None:
        hook = {
            "name": "hangs.example.com",
            "clientConfig": {"url": f"https://{here}:{silent.getsockname()[1]}/"},
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
            ],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": jobs.namespace}},
            "timeoutSeconds": seconds,
            "failurePolicy": policy,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        kube.create(HOOK, {"metadata": {"name": name}, "webhooks": [hook]})

    yield configure
    kube.delete(HOOK, name)
    silent.close()


def test_one_that_may_fail_is_waited_for(jobs: Jobs, hang: Callable[[int, str], None]) -> None:
    """Ten seconds are the default."""
    hang(10, "Ignore")
    jobs.create()
    jobs.reaches("Running")


def test_one_that_takes_longer_than_a_write_has_is_named(
    jobs: Jobs, kube: Kube, hang: Callable[[int, str], None]
) -> None:
    hang(30, "Fail")
    jobs.create()
    assert "hangs.example.com" in jobs.blocked("CreateRefused")
    kube.delete(HOOK, f"hangs-{jobs.namespace}")
    jobs.reaches("Running")

"""Admission webhooks of others that take their time."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import yaml

from tests.kube import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hack.devcluster import Cluster
    from tests.cluster.operator.jobs import Jobs
    from tests.kube import Kube

pytestmark = pytest.mark.usefixtures("operator")

HOOK = ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration")


@pytest.fixture
def webhook(control_plane: Cluster, jobs: Jobs, kube: Kube) -> Iterator[Webhook]:
    """It is asked about pods of the job's namespace once it is told how."""
    server = yaml.safe_load(control_plane.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    with socket.socket(type=socket.SOCK_DGRAM) as route:
        route.connect((urlsplit(server).hostname, 1))
        here = route.getsockname()[0]
    found = Webhook(kube, jobs.namespace, here)
    yield found
    found.remove()


class Webhook:
    """A webhook that takes connections and says nothing."""

    def __init__(self, kube: Kube, namespace: str, here: str) -> None:
        self._kube, self._namespace, self._here = kube, namespace, here
        self._silent = socket.create_server((here, 0), backlog=100)

    def hang(self, seconds: int, policy: str) -> None:
        hook = {
            "name": "hangs.example.com",
            "clientConfig": {"url": f"https://{self._here}:{self._silent.getsockname()[1]}/"},
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
            ],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._namespace}},
            "timeoutSeconds": seconds,
            "failurePolicy": policy,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        body = {"metadata": {"name": f"hangs-{self._namespace}"}, "webhooks": [hook]}
        self._kube.create(HOOK, body)

    def remove(self) -> None:
        """Ask it no more, and end the questions that it has not answered."""
        self._kube.delete(HOOK, f"hangs-{self._namespace}")
        self._silent.close()


def test_one_that_may_fail_is_waited_for(jobs: Jobs, webhook: Webhook) -> None:
    """Ten seconds are the default. Pods are made in groups: the first of them has all the time it takes."""
    webhook.hang(10, "Ignore")
    jobs.create()
    wait_for(jobs.pods, "the first pod")
    assert jobs.condition("Blocked").get("reason") != "CreateRefused"
    webhook.remove()
    jobs.reaches("Running")


def test_one_that_takes_longer_than_a_write_has_is_named(jobs: Jobs, webhook: Webhook) -> None:
    webhook.hang(30, "Fail")
    jobs.create()
    assert "hangs.example.com" in jobs.blocked("CreateRefused")
    webhook.remove()
    jobs.reaches("Running")

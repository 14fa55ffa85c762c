"""`startupTimeoutSeconds` on a real control plane: pods that are bound, and that no kubelet brings up."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from hack.devcluster import fake
from tests.cluster.operator.jobs import restarts
from tests.docs import examples
from tests.kube import POD, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cluster.conftest import Operator
    from tests.cluster.operator.jobs import Jobs
    from tests.kube import Kube

HELD = {"metadata": {"annotations": {fake.HOLD: "true"}}}
"""kwok leaves these pods alone."""


def test_a_gang_that_does_not_come_up_whichever_operator_looks(
    jobs: Jobs, kube: Kube, make_operator: Callable[..., Operator]
) -> None:
    example = examples()["A gang that does not come up"]
    first = make_operator().start()
    jobs.create(template=HELD, **example.spec)
    wait_for(lambda: jobs.status().get("phase") == "Starting", "all pods to be on nodes")
    first.kill()
    bound = [
        datetime.fromisoformat(condition["lastTransitionTime"])
        for pod in jobs.pods().values()
        for condition in pod["status"]["conditions"]
        if condition["type"] == "PodScheduled"
    ]
    make_operator().start()
    status = jobs.reaches("Failed")
    assert example.shown(status) == example.status
    assert restarts(status) == (0, 0, {})
    failed = datetime.fromisoformat(status["lastFailure"]["time"])
    assert failed == max(bound) + timedelta(seconds=example.spec["startupTimeoutSeconds"])
    assert "4 of 4 hosts are not ready: train-0-0 (" in status["message"]
    for pod in jobs.pods():
        kube.patch(POD, pod, jobs.namespace, {"metadata": {"annotations": {fake.HOLD: None}}})

"""Operators that end in the midst of a rollout, whose successors go on with it."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING

from tests.cluster.inference.models import HOSTS, image, judged
from tests.kube import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from hack.devcluster import Cluster
    from tests.cluster.conftest import Operator
    from tests.cluster.inference.models import Models


def test_pc16_successors_go_on_with_a_rollout_and_keep_its_promises(
    models: Models, control_plane: Cluster, make_operator: Callable[..., Operator]
) -> None:
    operator = make_operator().start()
    models.create()
    models.serves()
    budgets = {"prefill": 2, "decode": 2}, {"prefill": 1, "decode": 1}
    with judged(control_plane.kubeconfig, models.namespace, *budgets):
        models.change(engine=image("2"))
        for made, end in ((1, signal.SIGKILL), (2 * HOSTS, signal.SIGTERM)):
            wait_for(partial(_made, models, made), f"{made} pods of the new revision")
            operator.signal(end)
            operator.wait()
            operator = make_operator().start()
        status = models.serves()
    assert status["restarts"] == 0


def _made(models: Models, count: int) -> bool:
    """Whether the new revision has so many pods, or the rollout is over."""
    status = models.status()
    over = status["currentRevision"] == status["updatedRevision"] and len(status["revisions"]) == 1
    return over or len(models.pods(revision=status["updatedRevision"])) >= count

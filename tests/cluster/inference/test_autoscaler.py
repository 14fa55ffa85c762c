"""The real HorizontalPodAutoscaler, which moves a role by the load of its replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.cluster.inference.loads import AUTOSCALER, Loads, autoscaler
from tests.cluster.inference.models import SCALER, image, label, role, uids
from tests.kube import POD, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hack.devcluster import Cluster
    from tests.cluster.inference.models import Models

pytestmark = pytest.mark.usefixtures("operator")
EACH: Final = 5
"""Load that a replica can bear."""
WITHIN: Final = {"maxSurge": 0, "maxUnavailable": 1}
"""There are nodes for one slice more than all that the test asks for."""
ROLES: Final = [role("prefill"), role("decode", scaling="External", rollout=WITHIN)]


@pytest.fixture
def loads(models: Models, control_plane: Cluster) -> Iterator[Loads]:
    """What the autoscaler is told."""
    made = Loads(control_plane, models.namespace)
    made.start()
    yield made
    made.stop()


def test_case_57_an_autoscaler_moves_a_role_and_nobody_fights(models: Models, loads: Loads) -> None:
    loads.total = 2 * EACH
    models.create(roles=ROLES)
    models.serves()
    before = uids(models.pods(role="prefill"))
    models.kube.create(AUTOSCALER, autoscaler("qwen-decode", EACH, most=3), models.namespace)
    models.serves(ready="prefill 1/1, decode 2/2")
    assert hosts_asked_about(models, loads) == {"0"}
    # A rollout moves none of its numbers, nor does the autoscaler go on from those of a rollout.
    models.change(engine=image("2"))
    models.serves(ready="prefill 1/1, decode 2/2")
    assert not uids(models.pods(role="prefill")).keys() & before.keys()
    loads.total = EACH
    models.serves(ready="prefill 1/1, decode 1/1")
    scaler = models.kube.get(SCALER, "qwen-decode", models.namespace) or {}
    assert (scaler["spec"]["replicas"], scaler["metadata"]["generation"]) == (1, 3)
    told = wait_for(lambda: says(models), "the autoscaler to be content")
    assert (told["AbleToScale"], told["ScalingActive"]) == ("True", "True")


def hosts_asked_about(models: Models, loads: Loads) -> set[str]:
    """Hosts whose pods the autoscaler has asked about."""
    assert loads.selectors
    pods = [pod for selector in loads.selectors for pod in models.kube.list(POD, models.namespace, selector)]
    return {label(pod, "host") for pod in pods}


def says(models: Models) -> dict[str, str]:
    """What the autoscaler says of itself."""
    found = models.kube.get(AUTOSCALER, "qwen-decode", models.namespace) or {}
    conditions = found.get("status", {}).get("conditions") or ()
    return {each["type"]: each["status"] for each in conditions if each["type"] != "ScalingLimited"}

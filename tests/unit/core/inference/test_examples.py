"""The examples: every host of every role can be made, and so can what leads to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs import ROOT
from tests.roles import IMAGES, UID, shape_of
from tpu_operator.api import TPUInference
from tpu_operator.core.inference.engines import Seat, for_role
from tpu_operator.core.inference.routing import desired

OWNER = {"uid": UID}


def documents() -> list[Any]:
    """All TPUInferences of the examples."""
    files = sorted((ROOT / "examples").glob("*.yaml"))
    found = [(file, body) for file in files for body in yaml.safe_load_all(file.read_text())]
    return [pytest.param(body, id=Path(file).name) for file, body in found if body["kind"] == "TPUInference"]


@pytest.mark.parametrize("body", documents())
def test_every_host_has_an_engine_and_no_problem(body: dict[str, Any]) -> None:
    inference = TPUInference.parse(body)
    for role in inference.spec.roles:
        shape = shape_of(role)
        for host in range(shape.hosts):
            engine = for_role(inference, role, Seat(shape, host, "leader"), IMAGES)
            assert engine.problems == ()
            routed = host == 0 and role.type == "decode" and "sidecar" in body["spec"].get("routing", {})
            assert bool(engine.sidecars) == routed


@pytest.mark.parametrize("body", documents())
def test_routing_has_what_it_names(body: dict[str, Any]) -> None:
    made = {manifest["kind"]: manifest for manifest in desired(TPUInference.parse(body), OWNER, IMAGES)}
    if "HTTPRoute" in made:
        (reference,) = made["HTTPRoute"]["spec"]["rules"][0]["backendRefs"]
        assert reference["name"] == made["InferencePool"]["metadata"]["name"]
    if "InferencePool" in made:
        picker = made["InferencePool"]["spec"]["endpointPickerRef"]["name"]
        assert picker == made["Service"]["metadata"]["name"]

"""Sizes: of the whole, of a role, and by whoever scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.inference.models import HOSTS, INFERENCE, SCALER, image, label, role, uids
from tests.kube import wait_for

if TYPE_CHECKING:
    from tests.cluster.inference.models import Models

pytestmark = pytest.mark.usefixtures("operator")


def test_case_56_scaling_moves_whole_slices_and_the_highest_index_goes_first(models: Models) -> None:
    models.create(roles=[role("decode", 1)])
    models.serves()
    first = uids(models.pods())
    models.change(roles=[role("decode", 3)])
    models.serves(ready="decode 3/3")
    assert len(models.pods()) == 3 * HOSTS
    models.change(roles=[role("decode", 1)])
    models.serves(ready="decode 1/1")
    wait_for(lambda: uids(models.pods()) == first, "the others to go")


def test_case_57_copies_are_scaled_through_the_scale_endpoint(models: Models) -> None:
    models.create()
    models.serves()
    scale = models.scale(INFERENCE, "qwen")
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (1, 1)
    assert scale["status"]["selector"] == "tpu-operator.dev/inference=qwen,tpu-operator.dev/host=0"
    models.scale(INFERENCE, "qwen", 2)
    models.serves(ready="prefill 2/2, decode 2/2", replicas=2)
    assert {label(pod, "copy") for pod in models.pods().values()} == {"0", "1"}


def test_pc23_all_stop_together_and_come_back(models: Models) -> None:
    models.create()
    revision = models.serves()["currentRevision"]
    models.scale(INFERENCE, "qwen", 0)
    models.reaches("Stopped")
    wait_for(lambda: not models.pods(), "the pods to go")
    models.scale(INFERENCE, "qwen", 1)
    assert models.serves()["currentRevision"] == revision


def test_pc22_a_fresh_role_can_be_scaled_before_anybody_has_written(models: Models) -> None:
    models.create(roles=[role("prefill", scaling="External"), role("decode")])
    wait_for(lambda: models.kube.get(SCALER, "qwen-prefill", models.namespace), "the scaler")
    assert models.scale(SCALER, "qwen-prefill")["spec"]["replicas"] == 1
    models.serves()

    def selector() -> str:
        return str(models.scale(SCALER, "qwen-prefill")["status"].get("selector", ""))

    wait_for(selector, "the selector")
    matched = models.kube.list(("v1", "Pod"), models.namespace, selector())
    assert [label(pod, "host") for pod in matched] == ["0"]
    assert {label(pod, "role") for pod in matched} == {"prefill"}


def test_pc21_nobody_fights_with_who_scales(models: Models) -> None:
    models.create(roles=[role("prefill", scaling="External"), role("decode")])
    models.serves()
    models.scale(SCALER, "qwen-prefill", 2)
    models.serves(ready="prefill 2/2, decode 1/1")
    before = uids(models.pods())
    models.kube.patch(INFERENCE, "qwen", models.namespace, {"metadata": {"labels": {"team": "a"}}})
    models.change(rollout={"maxSurge": 1})
    models.serves(ready="prefill 2/2, decode 1/1")
    assert uids(models.pods()) == before
    assert models.scale(SCALER, "qwen-prefill")["spec"]["replicas"] == 2


def test_pc19_what_is_scaled_up_in_a_rollout_is_of_the_new_revision(models: Models) -> None:
    models.create(roles=[role("decode", 1, scaling="External")], rollout={"paused": True})
    old = models.serves()["currentRevision"]
    models.change(engine=image("2"), rollout={"paused": False})
    models.scale(SCALER, "qwen-decode", 3)
    status = models.serves(ready="decode 3/3")
    assert status["currentRevision"] != old
    assert len(models.pods(revision=old)) == 0

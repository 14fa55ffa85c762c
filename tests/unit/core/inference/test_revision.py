"""Revisions: equal names for equal pods, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.inference import IMAGES, TPU, image, inference, role
from tpu_operator.core.inference.images import Images
from tpu_operator.core.inference.revision import ALPHABET, asked_for, digest, remember, remembered
from tpu_operator.core.inference.snapshot import ControllerRevision
from tpu_operator.core.snapshot import Metadata


def name(**spec: Any) -> str:
    return asked_for(inference(**spec), IMAGES).name


def token(images: Images = IMAGES, **spec: Any) -> str:
    return asked_for(inference(**spec), images).kv_compat


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": 3},
        {"roles": [role("prefill", 4), role("decode", 2)]},
        {"roles": [role("decode", 1), role("prefill", 2)]},
        {"roles": [role("prefill", 2, scaling="External"), role("decode", 1)]},
        {"roles": [role("prefill", 2, rollout={"maxSurge": 0, "maxUnavailable": 1}), role("decode", 1)]},
        {"rollout": {"maxSurge": 2, "paused": True, "partition": 1}},
        {"routing": {"inferencePool": {}, "endpointPicker": {"image": "example/other:1"}}},
        {"engine": {"type": "vllm", "port": 8000, "args": [], "env": []}},
        {"drain": {"routeAwaySeconds": 15}},
    ],
)
def test_pc01_what_no_pod_is_made_from_gives_no_new_revision(spec: dict[str, Any]) -> None:
    assert name(**spec) == name()


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": image("2")},
        {"engine": {"type": "vllm", "args": ["--block-size=256"]}},
        {"engine": {"type": "vllm", "port": 9000}},
        {"model": {"name": "Qwen/Qwen3-8B"}},
        {"roles": [role("prefill", 2), role("decode", 1, args=["--max-num-seqs=64"])]},
        {"roles": [role("prefill", 2), role("decode", 1, tpu=TPU | {"topology": "2x2"})]},
        {"roles": [role("prefill", 2), role("decode", 1, template={"metadata": {"labels": {"a": "b"}}})]},
        {"roles": [role("prefill", 2), role("decode", 1), role("encode", 1)]},
        {"kvTransfer": {"connector": "TPUConnector"}},
        {"drain": {"engineSeconds": 60}},
        {"routing": {"sidecar": {}}},
    ],
)
def test_pc01_what_changes_a_pod_of_any_role_gives_one_new_revision(spec: dict[str, Any]) -> None:
    assert name(**spec) != name()


def test_an_upgrade_of_the_operator_rolls_nothing() -> None:
    """Neither another default image nor a field that is left at its default is part of a revision."""
    later = Images("example/runtime:2", "example/picker:2", "example/sidecar:2")
    assert asked_for(inference(), later).name == name()


def test_equal_specs_of_two_objects_have_different_revisions() -> None:
    """So that pods of `m` with role `1-a` never have the names of those of `m-1` with role `a`."""
    assert asked_for(inference("other"), IMAGES).name != name()


def test_names_have_a_fixed_length_and_letters_that_make_no_words() -> None:
    found = [digest(number, 8) for number in range(200)]
    assert len(set(found)) == 200
    assert {len(each) for each in found} == {8}
    assert set("".join(found)) <= set(ALPHABET)


def test_a_revision_that_is_remembered_keeps_its_images() -> None:
    first = asked_for(inference(routing={"sidecar": {}}), IMAGES)
    stored = ControllerRevision(Metadata("qwen-x"), 4, remember(first))
    later = Images("example/runtime:2", "example/picker:2", "example/sidecar:2")
    found = remembered(first.name, stored, later)
    assert found is not None
    assert found.images == Images("example/runtime:1", "example/picker:2", "example/sidecar:1")
    assert (found.spec, found.kv_compat, found.number) == (first.spec, first.kv_compat, 4)


def test_nulls_of_a_template_are_remembered() -> None:
    template = {"spec": {"automountServiceAccountToken": None}}
    first = asked_for(inference(roles=[role("decode", template=template)]), IMAGES)
    found = remembered(first.name, ControllerRevision(Metadata("x"), 1, remember(first)), IMAGES)
    assert found is not None
    assert found.spec.roles[0].template == template


@pytest.mark.parametrize("data", [{}, {"spec": 1}, {"spec": {"model": {}}}, {"spec": {}, "images": 3}])
def test_a_revision_that_makes_no_sense_is_none(data: dict[str, Any]) -> None:
    assert remembered("x", ControllerRevision(Metadata("qwen-x"), 1, data), IMAGES) is None


def test_kv_caches_are_handed_over_where_nothing_changes_their_layout() -> None:
    assert token(drain={"engineSeconds": 60}) == token()
    assert token(roles=[role("prefill", 2), role("decode", 1, env=[{"name": "A", "value": "b"}])]) == token()
    assert token(roles=[role("p", 2, "prefill"), role("d", 1, "decode")]) == token()


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": image("2")},
        {"engine": {"type": "vllm", "args": ["--dtype=float16"]}},
        {"model": {"name": "Qwen/Qwen3-8B"}},
        {"kvTransfer": {"connector": "TPUConnectorHMA"}},
        {"roles": [role("prefill", 2), role("decode", 1, tpu=TPU | {"topology": "2x2"})]},
    ],
)
def test_kv_caches_are_not_handed_over_where_something_may(spec: dict[str, Any]) -> None:
    assert token(**spec) != token()


def test_the_users_token_stands() -> None:
    assert token(kvCompatibility="v1") == "v1"
    assert token(kvCompatibility="v1", engine=image("2")) == "v1"

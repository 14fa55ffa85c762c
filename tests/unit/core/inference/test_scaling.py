"""How many replicas External roles have, and what their scalers begin with."""

from __future__ import annotations

from tests.inference import InferenceWorld, image, inference, role
from tpu_operator.api import GroupState

STATIC = [role("prefill", 2), role("decode", 3)]
EXTERNAL = [role("prefill", 2), role("decode", 1, scaling="External")]


def test_a_role_that_becomes_external_loses_no_replica() -> None:
    world = InferenceWorld(inference(roles=STATIC)).run()
    before = {name: pod.metadata.uid for name, pod in world.pods.items()}
    world.patch_spec(roles=EXTERNAL)
    for _ in range(5):
        assert not world.step().deletes
        assert all(group.state is not GroupState.DRAINING for group in world.status.groups)
    assert world.scalers["qwen-decode"].spec == {"replicas": 3}
    world.run()
    assert {name: pod.metadata.uid for name, pod in world.pods.items()} == before
    assert world.status.ready == "prefill 2/2, decode 3/3"


def test_in_a_rollout_it_keeps_what_it_was_to_have_without_the_surge() -> None:
    world = InferenceWorld(inference(roles=STATIC)).run()
    world.patch_spec(engine=image("2")).settle()
    assert len(world.of("decode", host=0)) == 4
    world.patch_spec(roles=EXTERNAL).run()
    assert world.scalers["qwen-decode"].spec == {"replicas": 3}
    assert world.counts() == {world.status.updated_revision: {"prefill": 2, "decode": 3}}


def test_a_fresh_external_role_begins_with_the_replicas_of_its_spec() -> None:
    world = InferenceWorld(inference(roles=[role("prefill", 2), role("decode", 2, scaling="External")]))
    world.run()
    assert world.scalers["qwen-decode"].spec == {"replicas": 2}
    assert world.status.ready == "prefill 2/2, decode 2/2"


def test_a_scaler_that_somebody_deletes_comes_back_with_what_it_asked_for() -> None:
    world = InferenceWorld(inference(roles=EXTERNAL)).run()
    world.scale("decode", 4)
    world.run()
    del world.scalers["qwen-decode"]
    plan = world.step()
    assert not plan.deletes
    assert world.scalers["qwen-decode"].spec == {"replicas": 4}
    world.run()
    assert world.status.ready == "prefill 2/2, decode 4/4"


def test_copies_that_become_external_keep_all_their_replicas() -> None:
    world = InferenceWorld(inference(roles=STATIC, replicas=2)).run()
    world.patch_spec(roles=EXTERNAL).run()
    assert world.scalers["qwen-decode"].spec == {"replicas": 6}
    assert world.status.ready == "prefill 4/4, decode 6/6"

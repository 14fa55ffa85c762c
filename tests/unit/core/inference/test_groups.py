"""Pods of replicas, and replicas made of pods."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.builders import NOW, RUNNING, SETTINGS, STARTING, decode_pod, report, stamp, terminated
from tests.inference import IMAGES, InferenceWorld, image, inference, role
from tpu_operator.core.inference.factory import RoleFactory
from tpu_operator.core.inference.groups import GroupKey, free_indexes, key_of, victims
from tpu_operator.core.inference.revision import asked_for

LARGE = {"accelerator": "v5p", "topology": "8x8x8"}


def factory(name: str = "decode", **spec: Any) -> RoleFactory:
    the_inference = inference(**spec)
    revision = asked_for(the_inference, IMAGES)
    found = revision.role(name)
    assert found is not None
    return RoleFactory(the_inference, revision, found, SETTINGS)


def environment(pod: dict[str, Any]) -> dict[str, str]:
    main = next(each for each in pod["spec"]["containers"] if each["name"] == "main")
    return {each["name"]: each.get("value", "") for each in main["env"]}


def test_names_say_whose_pod_it_is() -> None:
    made = factory()
    name = made.pod(2, 3, 0).manifest["metadata"]["name"]
    assert name == f"qwen-decode-{made.revision.name}-2-3"


def test_a_replica_is_a_slice_of_its_own() -> None:
    made = factory()
    base = f"qwen-decode-{made.revision.name}-2"
    env = environment(made.pod(2, 3, 1).manifest)
    assert env["TPU_WORKER_HOSTNAMES"] == ",".join(f"{base}-{host}.qwen" for host in range(4))
    assert (env["TPU_WORKER_ID"], env["TPU_NAME"]) == ("3", base)
    assert (env["MEGASCALE_NUM_SLICES"], env["TPU_OPERATOR_NUM_SLICES"]) == ("", "1")
    assert (env["TPU_OPERATOR_KIND"], env["TPU_OPERATOR_NAME"]) == ("TPUInference", "qwen")
    assert (env["TPU_OPERATOR_SLICE"], env["TPU_OPERATOR_ATTEMPT"]) == ("0", "1")
    assert env["TPU_OPERATOR_COORDINATOR"] == f"{base}-0.qwen"


def test_only_host_0_is_one_that_routers_find() -> None:
    made = factory()
    first, second = (made.pod(0, host, 0).manifest["metadata"]["labels"] for host in (0, 1))
    assert first["llm-d.ai/role"] == "decode"
    assert first["llm-d.ai/inference-serving"] == "true"
    assert not [key for key in second if key.startswith("llm-d.ai/")]
    assert first["tpu-operator.dev/kv-compat"] == made.revision.kv_compat


def test_every_replica_keeps_others_out_of_its_node_pool() -> None:
    made, other = factory(), factory("prefill")
    ids = {made.slice_id(0), made.slice_id(1), other.slice_id(0), factory(engine=image("2")).slice_id(0)}
    assert len(ids) == 4
    assert all(len(each) <= 63 for each in ids)


def test_labels_fit_with_the_longest_names() -> None:
    made = factory("d" * 40, roles=[role("d" * 40, kind="decode", tpu=LARGE)])
    for key, value in made.pod(511, 127, 99).manifest["metadata"]["labels"].items():
        assert len(value) <= 63, key


def test_long_lists_of_hosts_are_in_a_config_map_of_the_replica() -> None:
    made = factory(roles=[role("decode", tpu=LARGE | {"topology": "16x16x16"})])
    one, other = made.pod(0, 0, 0), made.pod(1, 0, 0)
    assert one.lists is not None
    assert other.lists is not None
    assert one.lists["metadata"]["name"] != other.lists["metadata"]["name"]


def test_what_keeps_a_role_from_being_made_is_named_with_its_field() -> None:
    template = {"spec": {"hostname": "mine"}}
    (told,) = factory(roles=[role("decode", template=template)]).problems
    assert told.startswith("spec.roles[decode].template.spec.hostname is 'mine'")
    (told,) = factory(roles=[role("decode", template={"spec": {"containers": [{}]}})]).problems
    assert told.startswith("spec.roles[decode].template.spec.containers[0]")


def test_a_pod_tells_the_replica_that_it_belongs_to() -> None:
    made = factory()
    pod = decode_pod(made.pod(2, 3, 0).manifest)
    assert key_of(pod) == GroupKey("decode", made.revision.name, 2)
    assert key_of(decode_pod({"metadata": {"name": "x", "labels": {}}})) is None


def test_a_replica_is_ready_once_all_its_hosts_are() -> None:
    world = InferenceWorld(inference(roles=[role("decode", 1)])).settle().all_pods(**RUNNING)
    (group,) = world.view.groups
    assert (group.ready, group.hosts_ready) == (True, 4)
    world.set_pod(world.of("decode", host=2)[0], **STARTING)
    (group,) = world.view.groups
    assert (group.ready, group.hosts_ready) == (False, 3)


def test_case_56_those_that_are_not_ready_go_first_and_then_the_highest_index() -> None:
    world = InferenceWorld(inference(roles=[role("decode", 3)])).settle().all_pods(**RUNNING)
    world.set_pod(world.of("decode", host=1)[0], **STARTING)
    view = world.view
    assert [group.key.index for group in victims(view.groups, 2, view.available)] == [0, 2]


def test_those_that_have_just_become_ready_go_before_those_that_budgets_count_on() -> None:
    spec = inference(roles=[role("decode", 3)], rollout={"minReadySeconds": 60})
    world = InferenceWorld(spec).settle().all_pods(**RUNNING).settle()
    world.now += timedelta(minutes=5)
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": stamp(world.now)}
    now_ready = RUNNING | {"conditions": [RUNNING["conditions"][0], ready]}
    world.set_pod(world.of("decode", host=0)[0], **now_ready)
    view = world.settle().view
    assert [view.available(group) for group in view.groups] == [False, True, True]
    assert [group.key.index for group in victims(view.groups, 2, view.available)] == [0, 2]


def test_indexes_are_the_lowest_free_ones() -> None:
    assert free_indexes([0, 2, 3], 3) == [1, 4, 5]
    assert free_indexes([], 0) == []


def test_a_pod_that_is_gone_before_anybody_looked_still_tells_why() -> None:
    world = InferenceWorld(inference(roles=[role("decode")])).run()
    victim, *_ = world.of("decode", host=2)
    world.set_pod(victim, **terminated(3, report(exit_code=3), NOW))
    world.vanish(victim).settle()
    failure = world.status.last_failure
    assert world.status.restarts == 1
    assert failure is not None
    assert (failure.cause, failure.pod, failure.exit_code) == ("UserError", victim, 3)

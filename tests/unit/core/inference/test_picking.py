"""What the endpoint picker is told of revisions whose roles are of other types than the spec's."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.builders import RUNNING
from tests.inference import InferenceWorld, inference, role
from tests.unit.core.inference.test_analysis import FOUR, rolled_back
from tpu_operator.core import names
from tpu_operator.core.inference.picking import Serving, required
from tpu_operator.core.inference.routing import KINDS
from tpu_operator.core.inference.view import observe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpu_operator.api import RoleType

ROUTING: dict[str, Any] = {"inferencePool": {}, "endpointPicker": {}}
PAIR = [role("prefill"), role("decode")]
WITH_ENCODE = [*PAIR, role("encode")]
ONE = [role("all", kind="prefill-decode")]


def config(world: InferenceWorld) -> dict[str, Any]:
    """The picker's configuration, as it would be made now."""
    snapshot = replace(world.snapshot(), routing={kind: {} for kind in KINDS})
    applies = observe(snapshot, world.now, world.installation).routing.applies
    (deployment,) = (each for each in applies if each["kind"] == "Deployment")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    text = next(each for each in arguments if each.startswith("--config-text="))
    found: dict[str, Any] = json.loads(text.removeprefix("--config-text="))
    return found


def gate(world: InferenceWorld) -> list[str]:
    """Types of roles that a revision needs to get requests."""
    plugins = {each["type"]: each for each in config(world)["plugins"]}
    parameters = plugins["disaggregatedset-rollout-screener"]["parameters"]
    return list(parameters["revisionGating"]["requireRoles"]["values"])


def profiles(world: InferenceWorld) -> list[str]:
    return [each["name"] for each in config(world)["schedulingProfiles"]]


def let_through(world: InferenceWorld) -> set[str]:
    """Revisions that the gate lets requests to: those with a ready pod of each type that it asks for."""
    types: defaultdict[str, set[str]] = defaultdict(set)
    for pod in world.pods.values():
        labels = pod.metadata.labels
        if labels.get(names.LABEL_LLMD_SERVING) == names.SERVING and pod.ready and not pod.deleting:
            types[labels[names.LABEL_REVISION]].add(labels[names.LABEL_LLMD_ROLE])
    return {revision for revision, found in types.items() if found >= set(gate(world))}


def serving(roles: list[dict[str, Any]], **spec: Any) -> InferenceWorld:
    world = InferenceWorld(inference(roles=roles, routing=ROUTING, **spec)).run()
    world.keep_deleted = True
    return world


def states(world: InferenceWorld) -> Iterator[None]:
    """Every state of a rollout, after each pass and whatever kubelets have done."""
    for _ in range(40):
        world.step()
        yield
        before = dict(world.pods)
        if not world.plan().creates and not world.plan().deletes:
            world.vanish().all_pods(**RUNNING)
            yield
            if world.pods == before and len(world.counts()) == 1:
                return
    raise AssertionError("no end")


@pytest.mark.parametrize(
    ("before", "after"),
    [(PAIR, WITH_ENCODE), (WITH_ENCODE, PAIR), (PAIR, ONE), (ONE, PAIR)],
    ids=["a role more", "a role less", "two become one", "one becomes two"],
)
def test_some_revision_always_gets_requests_while_types_of_roles_change(
    before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> None:
    world = serving(before)
    old, first = world.status.current_revision, gate(world)
    world.patch_spec(roles=after)
    seen: list[set[str]] = [let_through(world)]
    for _ in states(world):
        seen.append(let_through(world))
        assert seen[-1], (gate(world), world.counts())
    new = world.status.current_revision
    assert seen[0] == {old}
    assert seen[-1] == {new}
    assert gate(world) == sorted(each["type"] for each in after) != first


def test_a_type_that_only_the_newest_has_is_asked_for_in_the_end() -> None:
    world = serving(PAIR)
    world.patch_spec(roles=WITH_ENCODE)
    gates = [gate(world) for _ in states(world)]
    change = gates.index(["decode", "encode", "prefill"])
    assert set(map(tuple, gates[:change])) == {("decode", "prefill")}
    assert set(map(tuple, gates[change:])) == {("decode", "encode", "prefill")}


def test_pc07_a_revision_without_one_of_the_common_types_gets_nothing() -> None:
    world = serving(PAIR)
    old = world.status.current_revision
    world.patch_spec(roles=WITH_ENCODE).settle()
    for name in world.of("decode", world.status.updated_revision):
        world.set_pod(name, **RUNNING)
    assert let_through(world) == {old}


def test_a_rollout_that_is_paused_before_it_begins_changes_nothing() -> None:
    world = serving(PAIR)
    first = gate(world)
    world.patch_spec(roles=WITH_ENCODE, rollout={"paused": True}).settle()
    assert gate(world) == first


def test_a_rejected_revision_changes_nothing_for_the_one_before() -> None:
    encode = role("encode", 4, tpu=FOUR[0]["tpu"])
    world, old, new = rolled_back(roles=[*FOUR, encode], routing=ROUTING)
    assert old != new
    assert world.counts().keys() == {old}
    assert gate(world) == ["decode", "prefill"]


def test_prefill_and_decode_are_told_apart_as_long_as_any_replica_needs_it() -> None:
    world = serving(PAIR)
    world.patch_spec(roles=ONE)
    seen = [profiles(world) for _ in states(world)]
    assert seen[0] == ["prefill", "decode"]
    assert seen[-1] == ["default"]
    last = max(number for number, names_ in enumerate(seen) if len(names_) == 2)
    assert all(len(names_) == 2 for names_ in seen[: last + 1])


def test_without_a_common_type_the_newest_that_serves_counts() -> None:
    def of(*types: str, servable: bool) -> Serving:
        found: frozenset[RoleType] = frozenset(types)  # type: ignore[arg-type]
        return Serving(found, servable)

    old = of("prefill", "decode", servable=True)
    assert required([of("prefill-decode", servable=False), old]) == ["decode", "prefill"]
    assert required([of("prefill-decode", servable=True), old]) == ["prefill-decode"]
    assert required([of("prefill-decode", servable=False)]) == ["prefill-decode"]

"""Replicas are made and taken down in an order that keeps the ratio of roles after every single write."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.builders import RUNNING
from tests.inference import InferenceWorld, image, inference, role
from tpu_operator.core import names
from tpu_operator.core.inference import missing
from tpu_operator.core.inference.ratio import in_ratio

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpu_operator.core.plan import Manifest

ONE_HOST = {"accelerator": "v5e", "topology": "2x2"}


@pytest.mark.parametrize(
    ("now", "later", "order"),
    [
        ((0, 0), (4, 2), [0, 1, 0, 0, 1, 0]),
        ((1, 0), (3, 2), [1, 0, 0, 1]),
        ((4, 2), (0, 0), [0, 1, 0, 0, 1, 0]),
        ((2, 2), (0, 0), [1, 0, 1, 0]),
        ((3, 1), (3, 1), []),
    ],
)
def test_up_from_the_emptiest_and_down_from_the_fullest(
    now: tuple[int, ...], later: tuple[int, ...], order: list[int]
) -> None:
    assert in_ratio(now, later, (4, 2)) == order


def test_a_role_without_a_target_counts_by_its_replicas() -> None:
    assert in_ratio((2, 1), (0, 0), (2, 0)) == [0, 1, 0]


def kinds(pods: Iterable[Manifest]) -> list[tuple[str, str]]:
    """Revision and role of what pods of host 0 are written for."""
    found = [each["metadata"]["labels"] for each in pods if each["kind"] == "Pod"]
    return [
        (labels[names.LABEL_REVISION], labels[names.LABEL_ROLE])
        for labels in found
        if labels.get(names.LABEL_HOST) == "0"
    ]


class Roles:
    """Replicas that routers know, by revision and role."""

    def __init__(self, world: InferenceWorld, **targets: int) -> None:
        self._targets = targets
        self._counts: Counter[tuple[str, str]] = Counter()
        for pod in world.pods.values():
            labels = pod.metadata.labels
            if labels.get(names.LABEL_LLMD_SERVING) == names.SERVING and not pod.deleting:
                self._counts[labels[names.LABEL_REVISION], labels[names.LABEL_ROLE]] += 1

    def drift(self, kind: tuple[str, str], change: int) -> float:
        """By how much the parts of a revision's roles differ, once one replica more or less is there."""
        self._counts[kind] += change
        parts = [self._counts[kind[0], name] / target for name, target in self._targets.items()]
        return max(parts) - min(parts)


@pytest.mark.parametrize("surge", [1, 2, 4])
def test_pc32_the_ratio_is_kept_by_every_single_write(surge: int) -> None:
    targets = {"prefill": 4, "decode": 2}
    roles = [role(name, count, tpu=ONE_HOST) for name, count in targets.items()]
    world = InferenceWorld(inference(roles=roles, rollout={"maxSurge": surge})).run()
    world.keep_deleted = True
    world.patch_spec(engine=image("2"))
    writes = 0
    while len(world.status.revisions) > 1 or not writes:
        plan, seen = world.plan(), Roles(world, **targets)
        gone = [world.pods[each["metadata"]["name"]] for each in plan.applies if each["kind"] == "Pod"]
        for pod in gone:
            labels = pod.metadata.labels
            kind = (labels[names.LABEL_REVISION], labels[names.LABEL_ROLE])
            assert seen.drift(kind, -1) <= 1 / 2, plan.applies
        for kind in kinds(plan.creates):
            assert seen.drift(kind, 1) <= 1 / 2, plan.creates
        writes += len(gone) + len(plan.creates)
        world.carry_out(plan)
        if not gone and not plan.creates:
            world.vanish().all_pods(**RUNNING)
    assert writes == 2 * sum(targets.values()) + 1


def test_of_what_one_decision_leaves_for_the_next_the_ratio_is_kept_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(missing, "AT_ONCE", 3)
    roles: list[dict[str, Any]] = [role("prefill", 4, tpu=ONE_HOST), role("decode", 2, tpu=ONE_HOST)]
    world = InferenceWorld(inference(roles=roles))
    made = [name for _ in range(3) for _, name in kinds(world.step().creates)]
    assert made == ["decode", "prefill", "prefill", "decode", "prefill", "prefill"]
    world.run()
    assert world.status.ready == "prefill 4/4, decode 2/2"


def test_what_was_there_before_comes_first() -> None:
    world = InferenceWorld().run()
    old = world.status.current_revision
    world.vanish(world.of("prefill", host=1)[0])
    for _ in range(2):
        world.step()  # one decides, and one takes away what is left of it
    made = [revision for revision, _ in kinds(world.patch_spec(engine=image("2")).step().creates)]
    assert made[0] == old
    assert world.status.updated_revision in made[1:]

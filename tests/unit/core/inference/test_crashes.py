"""An operator that ends after any of its writes in a rollout: the same end, and every promise on the way."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from tests.builders import RUNNING
from tests.inference import InferenceWorld, image, inference, role
from tpu_operator.core import names

if TYPE_CHECKING:
    from tpu_operator.core.plan import Plan

SMALL = {"accelerator": "v5e", "topology": "2x4", "chipsPerHost": 4}
"""Two hosts."""
TARGETS = {"prefill": 2, "decode": 1}


def writes(plan: Plan) -> int:
    """Writes of children; the status is one more."""
    return len(plan.applies) + len(plan.deletes) + len(plan.creates)


def judge(world: InferenceWorld, surge: int) -> None:
    """The promises, from the pods alone."""
    there: defaultdict[str, set[str]] = defaultdict(set)
    ready: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    for pod in world.pods.values():
        labels = pod.metadata.labels
        replica = pod.name.rsplit("-", 1)[0]
        there[labels[names.LABEL_ROLE]].add(replica)
        ready[labels[names.LABEL_ROLE], labels[names.LABEL_REVISION], replica] += (
            pod.ready and not pod.deleting
        )
    whole = [key for key, hosts in ready.items() if hosts == 2]
    roles: defaultdict[str, set[str]] = defaultdict(set)
    for name, revision, _ in whole:
        roles[revision].add(name)
    for name, target in TARGETS.items():
        assert len(there[name]) <= target + surge, there[name]
        assert sum(key[0] == name for key in whole) >= target, whole
    assert any(found == TARGETS.keys() for found in roles.values()), whole


def roll(dies_after: int | None) -> tuple[int, set[str]]:
    """A rollout from end to end, with an operator that ends once; its writes, and the pods in the end."""
    wire = [role(name, count, tpu=SMALL) for name, count in TARGETS.items()]
    world = InferenceWorld(inference(roles=wire)).run()
    world.keep_deleted = True
    world.patch_spec(engine=image("2"))
    made, idle = 0, 0
    while idle < 2:
        plan = world.plan()
        size = writes(plan) + (plan.status is not None)
        if dies_after is not None and made <= dies_after < made + size:
            world.carry_out(plan, dies_after - made, status=False)
        else:
            world.carry_out(plan)
        made += size
        judge(world, surge=1)
        idle = 0 if size else idle + 1
        if not size:
            # Kubelets end what goes and start what came; then the operator has something to do again.
            before = dict(world.pods)
            world.vanish().all_pods(**RUNNING)
            idle = idle if world.pods == before else 0
    assert (world.status.phase, world.status.restarts) == ("Serving", 0)
    assert world.counts() == {world.status.updated_revision: TARGETS}
    return made, set(world.pods)


REFERENCE = roll(None)


@pytest.mark.parametrize("dies_after", range(REFERENCE[0]))
def test_the_end_is_the_same_and_no_promise_is_broken(dies_after: int) -> None:
    assert roll(dies_after)[1] == REFERENCE[1]

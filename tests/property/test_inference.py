"""A TPUInference in a world in which anything may happen, and an operator that may end at any write."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.builders import RUNNING, STARTING, report, terminated
from tests.inference import InferenceWorld, image, inference, role
from tpu_operator.core import names
from tpu_operator.core.inference import scaling

SMALL = {"accelerator": "v5e", "topology": "2x4", "chipsPerHost": 4}
"""Two hosts."""
COUNTS = st.integers(1, 3)
BUDGETS = st.sampled_from([(1, 0), (0, 1), (1, 1), (2, 1), (0, 2)])


def roles(prefill: int, decode: int) -> list[dict[str, Any]]:
    return [role("prefill", prefill, tpu=SMALL), role("decode", decode, tpu=SMALL)]


class Inferences(RuleBasedStateMachine):
    """What kubelets, people, autoscalers and clocks do, in any order."""

    world: InferenceWorld

    @initialize(prefill=COUNTS, decode=COUNTS, budgets=BUDGETS, slow=st.booleans())
    def start(self, prefill: int, decode: int, budgets: tuple[int, int], slow: bool) -> None:
        surge, unavailable = budgets
        rollout = {"maxSurge": surge, "maxUnavailable": unavailable}
        self.world = InferenceWorld(inference(roles=roles(prefill, decode), rollout=rollout))
        self.world.keep_deleted = slow

    @rule()
    def the_operator_acts(self) -> None:
        self.world.settle()

    @rule(writes=st.integers(0, 12))
    def the_operator_dies_at_a_write(self, writes: int) -> None:
        self.world.carry_out(self.world.plan(), writes, status=False)

    @rule()
    def kubelets_start_everything(self) -> None:
        self.world.all_pods(**RUNNING)

    @rule(data=st.data())
    def a_pod_changes(self, data: st.DataObject) -> None:
        alive = sorted(name for name, pod in self.world.pods.items() if not pod.deleting)
        if not alive:
            return
        name = data.draw(st.sampled_from(alive))
        at = self.world.now
        end = terminated(1, report(at=at), at)
        self.world.set_pod(name, **data.draw(st.sampled_from([STARTING, RUNNING, end, terminated(0, at=at)])))

    @rule(data=st.data())
    def a_pod_is_gone(self, data: st.DataObject) -> None:
        if self.world.pods:
            self.world.vanish(data.draw(st.sampled_from(sorted(self.world.pods))))

    @rule()
    def what_terminates_is_gone(self) -> None:
        self.world.vanish()

    @rule(tag=st.sampled_from("123"))
    def another_image(self, tag: str) -> None:
        self.world.patch_spec(engine=image(tag))

    @rule(prefill=COUNTS, decode=COUNTS, copies=st.integers(0, 2))
    def another_size(self, prefill: int, decode: int, copies: int) -> None:
        self.world.patch_spec(roles=roles(prefill, decode), replicas=copies)

    @rule(budgets=BUDGETS, paused=st.booleans())
    def another_rollout(self, budgets: tuple[int, int], paused: bool) -> None:
        surge, unavailable = budgets
        rollout = {"maxSurge": surge, "maxUnavailable": unavailable, "paused": paused}
        self.world.patch_spec(rollout=rollout)

    @rule(seconds=st.sampled_from([1, 30, 700]))
    def time_passes(self, seconds: int) -> None:
        self.world.now += timedelta(seconds=seconds)

    @invariant()
    def no_replica_is_of_two_revisions_or_twice_there(self) -> None:
        hosts = Counter(
            (pod.name.rsplit("-", 1)[0], pod.metadata.labels[names.LABEL_HOST])
            for pod in self.world.pods.values()
        )
        assert set(hosts.values()) <= {1}
        for pod in self.world.pods.values():
            labels = pod.metadata.labels
            group = names.group_name(
                labels[names.LABEL_ROLE], labels[names.LABEL_REVISION], int(labels[names.LABEL_REPLICA])
            )
            assert pod.name == f"qwen-{group}-{labels[names.LABEL_HOST]}"

    @invariant()
    def every_revision_with_pods_is_remembered(self) -> None:
        used = {pod.metadata.labels[names.LABEL_REVISION] for pod in self.world.pods.values()}
        assert {names.revision_name("qwen", each) for each in used} <= self.world.revisions.keys()

    def teardown(self) -> None:
        """Once nothing goes wrong any more, all becomes as the spec has it."""
        world = getattr(self, "world", None)
        if world is None:
            return
        world.patch_spec(rollout={"maxSurge": 1})
        for _ in range(40):
            world.now += timedelta(seconds=700)
            before = dict(world.pods)
            world.settle().vanish().all_pods(**RUNNING).settle()
            if dict(world.pods) == before:
                break
        newest = world.status.updated_revision
        wanted = scaling.targets(world.inference, world.scalers)
        found = Counter(pod.metadata.labels[names.LABEL_ROLE] for pod in world.pods.values())
        assert {pod.metadata.labels[names.LABEL_REVISION] for pod in world.pods.values()} <= {newest}
        assert {name: found[name] for name in wanted} == {name: 2 * count for name, count in wanted.items()}
        assert world.status.phase == ("Serving" if any(wanted.values()) else "Stopped")
        assert world.status.rollout.state == "Idle"


TestInferences = Inferences.TestCase
TestInferences.settings = settings(max_examples=30, stateful_step_count=25)

"""Which pods a job should have: heads, pods that the spec has no place for any more, pods that do not go."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.builders import RUNNING, STARTING, World, job

HEAD = {"spec": {"containers": [{"name": "main", "image": "driver"}]}}
TPU = {"accelerator": "v5e", "topology": "4x4"}


def world(**spec: Any) -> World:
    return World(job(**spec))


class TestHead:
    def test_a_head_is_made_with_the_workers(self) -> None:
        the_world = world(head=HEAD).settle()
        assert set(the_world.pods) == {"train-head", *(f"train-0-{host}" for host in range(4))}

    @pytest.mark.parametrize("scope", ["Job", "Slice"])
    def test_a_head_that_could_not_be_made_yet_is_no_failure(self, scope: str) -> None:
        """A quota may leave room for the workers alone."""
        the_world = world(head=HEAD, failurePolicy={"restartScope": scope})
        the_world.settle().vanish("train-head")
        the_world.all_pods(**STARTING)
        the_world.step()
        the_world.vanish("train-head")
        the_world.all_pods(**RUNNING)
        the_world.step()
        the_world.vanish("train-head").settle()
        assert the_world.job.status.restarts.total == 0
        assert the_world.job.status.phase == "Pending"
        assert the_world.run().job.status.phase == "Running"

    @pytest.mark.parametrize("scope", ["Job", "Slice"])
    def test_a_head_that_is_deleted_takes_its_slices_with_it(self, scope: str) -> None:
        tpu = TPU | {"slices": 2}
        the_world = world(head=HEAD, tpu=tpu, failurePolicy={"restartScope": scope}).run()
        the_world.vanish("train-head").settle()
        attempts = [s.attempt for s in the_world.job.status.slices]
        assert attempts == ([1, 1] if scope == "Job" else [1, 0])
        assert the_world.job.status.restarts.by_cause == {"PodDeleted": 1}

    def test_a_head_decides_where_the_leader_does(self) -> None:
        the_world = world(head=HEAD, successPolicy="Leader").run()
        the_world.set_pod("train-0-0", phase="Succeeded")
        assert the_world.settle().job.status.phase == "Running"
        the_world.set_pod("train-head", phase="Succeeded")
        assert the_world.settle().job.status.phase == "Succeeded"


class TestSurplus:
    def test_pods_of_a_larger_shape_go_before_those_of_a_smaller_one_come(self) -> None:
        """The spec may change while the job is suspended, before the pods are gone or even told to."""
        the_world = world(tpu=TPU | {"slices": 2}).run()
        the_world.keep_deleted = True
        the_world.patch_spec(suspend=True)
        the_world.patch_spec(tpu={"accelerator": "v5e", "topology": "2x2"})
        the_world.patch_spec(suspend=False)
        the_world.settle()
        assert all(pod.deleting for name, pod in the_world.pods.items() if name != "train-0-0")
        the_world.vanish("train-1-3").settle()
        assert len(the_world.pods) == 7, "nothing new while chips may still be held"
        the_world.vanish().settle()
        assert set(the_world.pods) == {"train-0-0"}
        assert [s.index for s in the_world.job.status.slices] == [0]

    def test_suspended_jobs_have_none(self) -> None:
        the_world = world(tpu=TPU | {"slices": 2}).run()
        the_world.patch_spec(suspend=True, tpu=TPU)
        assert not the_world.settle().pods

    def test_finished_jobs_have_none_that_run(self) -> None:
        the_world = world(tpu=TPU | {"slices": 2}, successPolicy="Leader").run()
        the_world.patch_spec(tpu=TPU)
        the_world.set_pod("train-0-0", phase="Succeeded")
        assert set(the_world.settle().pods) == {"train-0-0"}

    def test_a_head_that_is_not_wanted_any_more_goes(self) -> None:
        the_world = world(head=HEAD).run()
        the_world.patch_spec(head=None)
        assert "train-head" not in the_world.settle().pods
        assert the_world.job.status.restarts.total == 0


class TestPodsThatDoNotGo:
    def test_the_pass_that_tells_of_them_comes_by_itself(self) -> None:
        the_world = world().run()
        the_world.keep_deleted = True
        the_world.patch_spec(suspend=True)
        the_world.settle()
        the_world.patch_spec(suspend=False)
        the_world.settle()
        wait = the_world.plan().requeue_after
        assert wait == pytest.approx(60), "30 s of grace, and 30 s more"
        the_world.now += timedelta(seconds=wait or 0)
        assert the_world.settle().condition("Blocked") == "True/WaitingForOldPods"
        assert the_world.plan().requeue_after is None

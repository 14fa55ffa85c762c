"""Changes of a spec, each of which once left a job otherwise than a fresh one of that spec."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import World, job, terminated

HEAD = {"spec": {"containers": [{"name": "driver", "image": "driver"}]}}
OTHER = {"command": ["python", "other.py"]}


def world(**spec: Any) -> World:
    return World(job(**spec))


def attempts(the_world: World) -> dict[str, int]:
    return {name: pod.attempt for name, pod in the_world.pods.items()}


def test_a_program_changed_while_its_first_pods_are_made_is_the_one_that_runs() -> None:
    the_world = world(tpu={"accelerator": "v5e", "topology": "2x2"})
    the_world.carry_out(the_world.plan(), status=False)
    the_world.patch_spec(run=OTHER)
    the_world.run()
    assert attempts(the_world) == {"train-0-0": 1}
    assert the_world.job.status.phase == "Running"
    assert the_world.job.status.restarts.total == 0


def test_a_template_changed_while_the_job_runs_waits_for_the_next_attempt() -> None:
    the_world = world().run()
    the_world.patch_spec(template={"metadata": {"labels": {"team": "a"}}})
    the_world.settle()
    assert set(attempts(the_world).values()) == {0}


@pytest.mark.parametrize("scope", ["Job", "Slice"])
def test_a_head_asked_for_while_the_job_runs_waits_for_the_next_attempt(scope: str) -> None:
    the_world = world(failurePolicy={"restartScope": scope}).run()
    the_world.patch_spec(head=HEAD)
    the_world.settle()
    assert attempts(the_world) == {f"train-0-{host}": 0 for host in range(4)}
    assert the_world.job.status.phase == "Running"
    the_world.vanish("train-0-1").run()
    assert attempts(the_world) == {f"train-0-{host}": 1 for host in range(4)} | {"train-head": 1}
    assert the_world.job.status.restarts.total == 1


def test_host_0_leads_until_there_is_a_head() -> None:
    the_world = world(successPolicy="Leader").run()
    the_world.patch_spec(head=HEAD)
    the_world.set_pod("train-0-0", **terminated(0))
    the_world.settle()
    assert the_world.job.status.phase == "Succeeded"


def test_a_head_that_was_there_and_is_gone_was_deleted() -> None:
    the_world = world(head=HEAD).run()
    the_world.vanish("train-head").settle()
    assert the_world.job.status.restarts.by_cause == {"PodDeleted": 1}


def test_a_host_that_is_gone_after_a_change_of_the_template_was_deleted() -> None:
    the_world = world().run()
    the_world.patch_spec(template={"metadata": {"labels": {"team": "a"}}})
    the_world.vanish("train-0-1").settle()
    assert the_world.job.status.restarts.by_cause == {"PodDeleted": 1}


def test_what_is_said_of_overridden_variables_ends_with_the_pods_that_have_them() -> None:
    the_world = world(run={**OTHER, "env": [{"name": "TPU_NAME", "value": "mine"}]}).run()
    assert the_world.condition("Blocked") == "False/EnvironmentOverridden"
    the_world.patch_spec(suspend=True)
    the_world.settle()
    the_world.patch_spec(suspend=False, run=OTHER)
    the_world.run()
    assert the_world.condition("Blocked") == "False/NotBlocked"


def test_the_status_of_an_ended_job_says_that_it_has_seen_the_spec() -> None:
    the_world = world().run().all_pods(**terminated(0)).settle()
    the_world.patch_spec(ttlSecondsAfterFinished=3600)
    the_world.settle()
    assert the_world.job.status.phase == "Succeeded"
    assert the_world.job.status.observed_generation == the_world.job.metadata.generation

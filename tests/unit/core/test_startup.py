"""`startupTimeoutSeconds`, played through on a job of four hosts."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from tests.builders import NOW, World, job, report, stamp, terminated
from tpu_operator.core.snapshot import Pod

LIMIT = 60
NAMES = [f"train-0-{host}" for host in range(4)]


def world(**spec: Any) -> World:
    return World(job(**{"startupTimeoutSeconds": LIMIT} | spec)).settle()


def status(bound: datetime = NOW, *, ready: datetime | None = None, **more: Any) -> dict[str, Any]:
    """A pod that got its node at one time, and became ready, or not, at another."""
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(bound)},
        {
            "type": "Ready",
            "status": "True" if ready else "False",
            "lastTransitionTime": stamp(ready or bound),
        },
    ]
    running = {"name": "main", "ready": bool(ready), "state": {"running": {"startedAt": stamp(bound)}}}
    return {"phase": "Running", "conditions": conditions, "containerStatuses": [running]} | more


def up(the_world: World, *late: str, **more: Any) -> World:
    """All hosts are ready but some."""
    for name in the_world.pods:
        the_world.set_pod(name, **(status(**more) if name in late else status(ready=NOW)))
    return the_world.settle()


def after(the_world: World, seconds: float) -> World:
    the_world.now = NOW + timedelta(seconds=seconds)
    the_world.step()
    return the_world


def causes(the_world: World) -> tuple[int, dict[str, int]]:
    restarts = the_world.job.status.restarts
    return restarts.counted, {str(cause): count for cause, count in restarts.by_cause.items()}


def test_a_gang_that_is_not_up_in_time_is_restarted_and_charged() -> None:
    the_world = up(world(), "train-0-2")
    assert the_world.plan().requeue_after == LIMIT
    assert causes(after(the_world, LIMIT - 1)) == (0, {})
    assert causes(after(the_world, LIMIT)) == (1, {"StartupTimeout": 1})
    found = the_world.job.status.last_failure
    assert found is not None
    assert (found.pod, found.slice, found.host) == ("train-0-2", 0, 2)
    assert found.time == NOW + timedelta(seconds=LIMIT)
    assert the_world.settle().pods["train-0-2"].attempt == 1


def test_the_message_names_each_host_that_is_not_ready_and_why() -> None:
    the_world = world()
    waiting = {"reason": "ImagePullBackOff", "message": "no such tag"}
    pulls = {"phase": "Pending", "containerStatuses": [{"name": "main", "state": {"waiting": waiting}}]}
    the_world.set_pod("train-0-0", **status(ready=NOW))
    the_world.set_pod("train-0-1", **status() | pulls)
    the_world.set_pod("train-0-2", "node-2", **status(phase="Pending", containerStatuses=[]))
    the_world.set_pod("train-0-3", **status())
    found = after(the_world, LIMIT).job.status.last_failure
    assert found is not None
    assert found.message == (
        "60 s after all of them got nodes, 3 of 4 hosts are not ready: "
        "train-0-1 (container main waits: ImagePullBackOff: no such tag), "
        "train-0-2 (the kubelet of node node-2 has not started a container), "
        "train-0-3 (runs, but is at the launcher's gate or without all its processes)"
    )


def test_a_sidecar_that_is_not_ready_is_named() -> None:
    the_world = up(world(), "train-0-0", ready=None)
    running = {"running": {"startedAt": stamp(NOW)}}
    both = [
        {"name": "main", "ready": True, "state": running},
        {"name": "proxy", "ready": False, "state": running},
    ]
    the_world.set_pod("train-0-0", **status(containerStatuses=both))
    found = after(the_world, LIMIT).job.status.last_failure
    assert found is not None
    assert "train-0-0 (container proxy runs, but is not ready)" in (found.message or "")


def test_waiting_for_nodes_does_not_count() -> None:
    the_world = up(world())
    the_world.set_pod("train-0-3", None, phase="Pending")
    assert causes(after(the_world, 36000)) == (0, {})
    late = NOW + timedelta(seconds=36000)
    the_world.set_pod("train-0-3", **status(late))
    assert causes(after(the_world, 36000 + LIMIT - 1)) == (0, {})
    assert causes(after(the_world, 36000 + LIMIT)) == (1, {"StartupTimeout": 1})


def test_launchers_leave_the_time_to_the_operator() -> None:
    plan = World(job(startupTimeoutSeconds=1)).plan()
    env = {e["name"]: e.get("value") for e in plan.creates[1]["spec"]["containers"][0]["env"]}
    assert env["TPU_LAUNCH_GATE_TIMEOUT_SECONDS"] == str(24 * 3600)


def test_what_was_up_once_has_started() -> None:
    the_world = up(world())
    assert the_world.job.status.phase == "Running"
    lost = status()
    lost["conditions"][1]["lastTransitionTime"] = stamp(NOW + timedelta(seconds=30))
    the_world.set_pod("train-0-1", **lost)
    assert after(the_world, 2 * LIMIT).plan().requeue_after is None
    assert causes(the_world) == (0, {})


def test_a_container_restarted_in_place_has_its_time_again() -> None:
    the_world = up(world())
    again = status(NOW + timedelta(seconds=500))
    again["containerStatuses"][0]["restartCount"] = 1
    the_world.set_pod("train-0-1", **again)
    assert causes(after(the_world, 500 + LIMIT - 1)) == (0, {})
    assert causes(after(the_world, 500 + LIMIT)) == (1, {"StartupTimeout": 1})


def test_between_two_lives_of_a_container_the_clock_stands() -> None:
    the_world = up(world())
    between = status(containerStatuses=[{"name": "main", "restartCount": 1, "state": {"waiting": {}}}])
    the_world.set_pod("train-0-1", **between)
    assert causes(after(the_world, 9 * LIMIT)) == (0, {})


def test_a_failure_before_the_time_was_over_is_the_root() -> None:
    the_world = up(world(), "train-0-2")
    early = NOW + timedelta(seconds=20)
    the_world.set_pod("train-0-1", **terminated(1, report(at=early), at=early))
    assert causes(after(the_world, 2 * LIMIT)) == (1, {"UserError": 1})


def test_each_slice_has_a_clock_of_its_own_where_slices_restart_alone() -> None:
    tpu = {"accelerator": "v5e", "topology": "4x4", "slices": 2}
    the_world = up(world(tpu=tpu, failurePolicy={"restartScope": "Slice"}), "train-1-0")
    after(the_world, LIMIT)
    assert [s.attempt for s in the_world.job.status.slices] == [0, 1]


def test_a_slice_that_is_done_needs_no_pods_and_has_no_clock() -> None:
    tpu = {"accelerator": "v5e", "topology": "4x4", "slices": 2}
    the_world = up(world(tpu=tpu, failurePolicy={"restartScope": "Slice"}), "train-1-0")
    for name in NAMES:
        the_world.set_pod(name, phase="Succeeded")
    the_world.settle().vanish(*NAMES)
    after(the_world, LIMIT)
    assert [s.attempt for s in the_world.job.status.slices] == [0, 1]


def test_not_while_suspended() -> None:
    the_world = up(world(), "train-0-2")
    the_world.patch_spec(suspend=True)
    assert causes(after(the_world, 2 * LIMIT)) == (0, {})


def test_without_budget_the_job_fails_and_says_why() -> None:
    the_world = up(world(failurePolicy={"maxRestarts": 0, "coalesceSeconds": 0}), "train-0-2")
    after(the_world, LIMIT).settle()
    assert the_world.condition("Failed") == "True/MaxRestartsReached"
    assert "train-0-2 (runs, but is at the launcher's gate" in (the_world.job.status.message or "")


def test_a_rule_may_leave_it_alone() -> None:
    rules = [{"onCauses": ["StartupTimeout"], "action": "Ignore"}]
    the_world = up(world(failurePolicy={"rules": rules}), "train-0-2")
    plan = after(the_world, 2 * LIMIT).plan()
    assert (causes(the_world), plan.requeue_after) == ((0, {}), None)


@pytest.mark.parametrize("condition", [None, {"type": "PodScheduled", "status": "True"}])
def test_without_the_schedulers_word_the_pods_age_counts(condition: dict[str, str] | None) -> None:
    the_world = up(world())
    pod = msgspec.to_builtins(the_world.pods["train-0-1"])
    pod["metadata"]["creationTimestamp"] = stamp(NOW)
    pod["status"]["conditions"] = [condition] if condition else []
    the_world.pods["train-0-1"] = msgspec.convert(pod, Pod)
    assert causes(after(the_world, LIMIT)) == (1, {"StartupTimeout": 1})
